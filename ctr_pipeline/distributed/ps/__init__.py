"""A parameter server: the rows of its partitions, its range of the dense parameters, their updates.

- `marks`: which batches were applied, to which part of what the server holds.
- `dense`: the range of dense parameters.
- `core`: pulls, pushes, rounds, cuts and restores; knows no network.
- `program`: the process around it.
"""
