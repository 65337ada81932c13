"""A parameter server: the rows of its partitions, its range of the dense parameters, their updates.

- `applied_batches`: which batches were applied, to which part of what the server holds.
- `dense`: the range of dense parameters.
- `merging`: gradients of equal keys; `ownership`: whose keys they are.
- `server_state`: all that a server holds.
- `core`: pulls, pushes, rounds, cuts and restores; knows no network.
- `service`: what is offered to others; `session`: the talk with the master; `metrics`.
- `memory`: what is given back once kernels are compiled.
- `program`: the process around it.
"""
