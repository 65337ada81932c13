"""The rows of one vocabulary."""

from dataclasses import dataclass

from ctr_pipeline.specs.segment import SegmentSpec

ID_BITS = 44
MAX_TABLES = 1 << (63 - ID_BITS)


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
