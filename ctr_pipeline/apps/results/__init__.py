"""Where a command writes rows of results: a file, an object of a store, a table."""
