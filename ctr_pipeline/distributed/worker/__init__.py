"""A worker: leases tasks, pulls parameters, computes gradients, pushes them, reports.

- `leases`: what this worker holds and what of it is done; pure.
- `step_numbers`: which step of the run a batch is.
- `session`: talks to the master, for ever, in a thread of its own.
- `ps_client`: talks to the parameter servers.
- `loop`: the pipeline of batches.
- `program`: puts them together in one process.
"""
