"""Where a run keeps what it writes and members share: a local disk or an object store."""
