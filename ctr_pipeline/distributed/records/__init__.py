"""Records for scripts under `ctrpipe elastic-run`, read in lockstep by all nodes.

- `sources`: records by their number, from files of several formats.
- `steps`: which records a step takes, and each member of it; pure.
- `elastic`: what a script uses.
"""
