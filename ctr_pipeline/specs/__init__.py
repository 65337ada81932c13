"""Plain frozen classes that packages share which do not import each other.

`optimizer`, `initializer`, `segment` and `table` say what embedding rows are made of and how they
are trained, `course` for how long and in what order: the config makes them, the job's spec carries
them and every process takes them as they are. `section` is what mappings of the YAML are. `parity`
is the proof of an export, `launchers` lists what can start members. Nothing here imports anything
heavier than pydantic: parameter servers and the master start with it.
"""
