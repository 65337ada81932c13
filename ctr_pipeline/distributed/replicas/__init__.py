"""Replicas of a model that train together: each holds all parameters and owns a part of the sums.

- `messages`: shares and sums as bytes.
- `service`: adds the shares of what this replica owns, and hands its parameters to others.
- `world`: joins worlds, brings shares to their owners; the trainer's `Replicas`.
"""
