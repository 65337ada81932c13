"""Where the state of a job is kept, so that a master that died is replaced by another."""
