"""A part of every embedding row and how it is trained."""

from dataclasses import dataclass
from typing import Literal

from ctr_pipeline.specs.initializer import ZEROS, InitializerSpec
from ctr_pipeline.specs.optimizer import OptimizerSpec

Reduction = Literal["sum", "mean"]


@dataclass(frozen=True)
class SegmentSpec:
    """A part of every row, such as the linear weight or the vector.

    Attributes:
        name: Unique within the row.
        dim: Number of values.
        optimizer: How the values are updated.
        reduction: `mean` divides the summed gradient, L2 included, by the batch's examples.
        l2_strength: Adds strength · n_b / count**l2_count_power · w to the summed gradient, for an
            id that occurs n_b times in the batch and count times in training.
        l2_count_power: 0: alike for all ids; 1, 2: rare ids are shrunk harder.
        initializer: Where new values come from.
    """

    name: str
    dim: int
    optimizer: OptimizerSpec
    reduction: Reduction
    l2_strength: float = 0.0
    l2_count_power: int = 1
    initializer: InitializerSpec = ZEROS

    def __post_init__(self) -> None:
        if self.dim < 1:
            raise ValueError(f"segment {self.name!r}: dim {self.dim} is below 1")
        if self.reduction not in {"sum", "mean"}:
            raise ValueError(f"segment {self.name!r}: unknown reduction {self.reduction!r}")
