"""Files of the row log: their names, which of them are a chain, when one begins anew.

Pure, and light enough for a process without NumPy.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

LogKind = Literal["base", "delta", "whole", "dense"]

MOST_DELTAS = 8
# Columns beside values and slots: table, id, count, last seen, deleted.
_FIXED_ROW_BYTES = 4 + 8 + 4 + 4 + 1
_FILE_BYTES = 8192


@dataclass(frozen=True)
class CutFile:
    """A file of a cut.

    Attributes:
        name: Its key in the storage of the checkpoints.
        num_bytes: Its size.
        num_rows: Rows in it; of dense parameters, values. A `whole` file says it itself.
        partition: The partition of the rows; -1 for dense parameters.
        kind: `base` holds all rows of its partition, `delta` those touched since the last cut,
            `whole` those of all partitions, as `row_file` writes them.
        first: Where the range of dense parameters begins.
    """

    name: str
    num_bytes: int
    crc32: int
    num_rows: int
    partition: int
    kind: LogKind
    first: int


@dataclass(frozen=True)
class ParameterFiles:
    """Where the parameters of a checkpoint lie.

    Attributes:
        chains: Files of rows by partition: a base and deltas after it, a whole one, or none.
        dense: Files of the dense parameters, by range.
        trained_by: Processes that held a share of the rows each.
    """

    chains: tuple[tuple[CutFile, ...], ...]
    dense: tuple[CutFile, ...]
    trained_by: int

    @property
    def num_partitions(self) -> int:
        """Partitions of the rows."""
        return len(self.chains)


def rows_name(partition: int, kind: LogKind, cut: int) -> str:
    """The file of a partition's rows in a cut."""
    return f"rows-{partition:04d}-{kind}-{cut:06d}.arrow"


def dense_name(first: int, cut: int) -> str:
    """The file of a range of dense parameters in a cut."""
    return f"dense-{first:04d}-{cut:06d}.bin"


def needs_base(chains: Iterable[Sequence[CutFile]]) -> bool:
    """Whether the next cut should hold all rows, not only those touched since the last.

    So it is where deltas have grown larger than the bases that they follow, so that reading them
    and keeping them costs more than writing everything, or where there are more than 8 of them.

    Args:
        chains: Files of each partition at the last cut, base first.
    """
    base_bytes = delta_bytes = most_deltas = 0
    for chain in chains:
        if not chain or chain[0].kind != "base":
            return True
        base_bytes += chain[0].num_bytes
        delta_bytes += sum(file.num_bytes for file in chain[1:])
        most_deltas = max(most_deltas, len(chain) - 1)
    return delta_bytes > base_bytes or most_deltas >= MOST_DELTAS or not base_bytes


def extend_chain(chain: Sequence[CutFile], written: CutFile | None) -> tuple[CutFile, ...]:
    """Files of a partition after a cut that wrote `written` for it; None: nothing was touched."""
    if written is None:
        return tuple(chain)
    if written.kind == "base":
        return (written,)
    if not chain or chain[0].kind != "base":
        raise ValueError(f"{written.name} follows no base")
    return (*chain, written)


def base_bytes(num_rows: int, *, width: int, num_slots: int, num_partitions: int) -> int:
    """Bytes of a cut that holds all rows; an upper bound, within a few percent."""
    row = _FIXED_ROW_BYTES + 4 * (width + num_slots)
    return num_rows * row + num_partitions * _FILE_BYTES + num_rows * row // 50


def most_kept_bytes(full_cut_bytes: int, *, num_kept: int) -> int:
    """Bytes that the log comes to on disk at the worst, if every row changes between two cuts.

    A chain is at most a base, deltas as large as it, and one delta more: three full cuts. The kept
    cuts wrote one each; the oldest of them may rest on two before it; the best cut has a chain of
    its own; one more is written before an old one goes.
    """
    return full_cut_bytes * (num_kept + 2 + 3 + 1)
