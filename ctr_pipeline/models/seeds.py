"""One seed for a model, independent ones for its layers."""

import numpy as np


def derive_seeds(seed: int, count: int) -> list[int]:
    """`count` seeds in [0, 2**32) that depend on `seed` and their place alone.

    A layer that is added last leaves the seeds of the others as they were.
    """
    return [int(state) for state in np.random.SeedSequence(seed).generate_state(count)]
