"""Plain frozen dataclasses that packages share which do not import each other.

`optimizer`, `segment` and `table` say what embedding rows are made of and how they are trained: the
config makes them, the job's spec carries them and the store of every process takes them as they
are. `parity` is the proof of an export, `launchers` lists what can start members. Nothing here
imports anything heavy: parameter servers and the master start with it.
"""
