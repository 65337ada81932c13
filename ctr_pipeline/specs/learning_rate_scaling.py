"""Batches of a step of several workers, and how learning rates follow their number.

`train.global_batch` and `train.scale_learning_rate`.
"""

import math
from typing import Literal

GlobalBatch = Literal["growing", "fixed"]
LearningRateScaling = Literal["none", "linear", "sqrt"]


def scale_of(scaling: LearningRateScaling, num_batches: int) -> float:
    """The factor on every learning rate in a step of so many batches.

    `linear`: Goyal et al. 2017, "Accurate, large minibatch SGD" (arXiv:1706.02677), section 2.1.
    `sqrt`: Krizhevsky 2014 (arXiv:1404.5997), section 5, keeps the variance of the update.
    """
    if scaling == "linear":
        return float(num_batches)
    return math.sqrt(num_batches) if scaling == "sqrt" else 1.0
