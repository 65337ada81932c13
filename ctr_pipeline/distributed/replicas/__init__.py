"""Replicas of a model that train together: each owns a part of the sums.

Each holds all parameters, or all but embedding rows.

- `messages`: shares and sums as bytes.
- `service`: adds the shares of what this replica owns, and hands its parameters to others.
- `row_server`, `served_rows`: embedding rows on servers, and how a replica sees them.
- `world`: joins worlds, brings shares to their owners; the trainer's `Replicas`.
"""
