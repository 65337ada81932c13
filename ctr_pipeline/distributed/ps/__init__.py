"""A parameter server: rows of its partitions and its range of the dense parameters."""
