"""What an embedding row is made of and how each part of it is trained."""

from dataclasses import dataclass
from typing import Literal

OptimizerName = Literal[
    "sgd",
    "momentum",
    "nesterov",
    "adagrad",
    "rowwise_adagrad",
    "adam",
    "amsgrad",
    "rmsprop",
    "ftrl",
]
Reduction = Literal["sum", "mean"]

ID_BITS = 44
MAX_TABLES = 1 << (63 - ID_BITS)


def oldest_step_kept(steps: int, evict_after: int | None) -> int:
    """Rows last updated at an earlier step are removed; 0 removes none.

    As DeepRec's `GlobalStepEvict` has it (`docs/docs_en/Feature-Eviction.md`, `steps_to_live`): a
    row goes when more than so many steps have passed since the last update of it.

    Args:
        steps: Trained so far.
        evict_after: Steps without an update after which a row goes; None: never.
    """
    return 0 if evict_after is None else max(steps - evict_after, 0)


@dataclass(frozen=True)
class OptimizerSpec:
    """An update rule with its constants; each rule uses the constants it knows.

    Attributes:
        name: Which rule.
        learning_rate: Step size.
        beta_1: Adam, AMSGrad: decay of the first moment.
        beta_2: Adam, AMSGrad: decay of the second moment.
        epsilon: Adam, AMSGrad: added to the root; Adagrad, RMSprop: added under the root.
        initial_accumulator: Adagrad, FTRL: first value of the squared-gradient sum.
        l1: FTRL: L1 strength.
        l2: FTRL: L2 strength.
        momentum: Momentum, Nesterov: decay of the velocity.
        rho: RMSprop: decay of the mean square.
    """

    name: OptimizerName
    learning_rate: float
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    initial_accumulator: float = 0.1
    l1: float = 0.0
    l2: float = 0.0
    momentum: float = 0.9
    rho: float = 0.9


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
        initial_range: New values are uniform in ± this; 0 makes zeros.
    """

    name: str
    dim: int
    optimizer: OptimizerSpec
    reduction: Reduction
    l2_strength: float = 0.0
    l2_count_power: int = 1
    initial_range: float = 0.0

    def __post_init__(self) -> None:
        if self.dim < 1:
            raise ValueError(f"segment {self.name!r}: dim {self.dim} is below 1")
        if self.reduction not in {"sum", "mean"}:
            raise ValueError(f"segment {self.name!r}: unknown reduction {self.reduction!r}")


@dataclass(frozen=True)
class TableSpec:
    """The rows of one vocabulary; ids are 0 … num_ids - 1.

    Attributes:
        name: Unique; initial values depend on it, not on the table's position.
        num_ids: Number of ids.
        segments: What its rows are made of, if otherwise than those of the store: segments of the
            same names, none of more values; None: those of the store.
    """

    name: str
    num_ids: int
    segments: tuple[SegmentSpec, ...] | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.num_ids <= 1 << ID_BITS:
            raise ValueError(f"table {self.name!r}: num_ids {self.num_ids} not in 1 … 2**{ID_BITS}")
