"""Both sides of a move of partitions from one server to another, while updates go on.

The source shows its rows part by part and notes the keys that change meanwhile; then these, until
few are left; then it holds, answers nobody, and shows the last. The target puts what it is shown
beside its own rows, where nobody asks for it, and takes it over once the placement says so.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ctr_pipeline.distributed.coordination.messages import (
    HoldReply,
    MovedRowsRequest,
    MoveRequest,
)
from ctr_pipeline.distributed.rpc.packed import MovedRows
from ctr_pipeline.embeddings.arrays import BoolArray, Float32Array, Int32Array, Int64Array
from ctr_pipeline.embeddings.partition import partitions_of
from ctr_pipeline.embeddings.rows import RowStorage
from ctr_pipeline.embeddings.unique import sorted_distinct
from ctr_pipeline.kernels.ranges import RangeRunner

_MOST_NOTES = 64
# Of one part of a move; a pull or push waits for one at most.
_ROWS_LOOKED_AT = 1 << 15
_ROWS_SHOWN = 1 << 14


class MoveSource(Protocol):
    """The server that partitions move away from, as the target sees it."""

    def show_rows(self, request: MovedRowsRequest) -> MovedRows:
        """Some rows."""

    def hold(self, request: MoveRequest) -> HoldReply:
        """Answers nobody from now on; says what it knows beside rows."""

    def show_dense(self, request: MoveRequest) -> MovedRows:
        """The dense range, see `DenseRange.records`, as one record; only while it holds."""


class Outgoing:
    """What the source knows of a move.

    Attributes:
        is_held: The source answers nobody until it hears the outcome.
    """

    def __init__(self, move: MoveRequest, num_partitions: int) -> None:
        self.move = move
        self.is_held = False
        self.is_moving_P: BoolArray = np.zeros(num_partitions, np.bool_)
        self.is_moving_P[list(move.partitions)] = True
        self._changed: list[Int64Array] = []

    @property
    def num_changed(self) -> int:
        """Keys noted and not shown since; some may be counted twice."""
        return sum(map(len, self._changed))

    def note(self, keys: Int64Array, partitions_U: Int32Array) -> None:
        """Rows of these keys are made or changed."""
        moving = keys[self.is_moving_P[partitions_U]]
        if len(moving):
            self._changed.append(moving)
        if len(self._changed) > _MOST_NOTES:
            self._changed = [sorted_distinct(np.concatenate(self._changed))]

    def show_rows(self, rows: RowStorage | None, first_row: int) -> MovedRows:
        """Some rows of the moving partitions.

        Args:
            rows: All rows of the server; None: the job has no tables.
            first_row: Rows from this one on are looked at; negative: those that have changed.
        """
        if rows is None:
            return MovedRows(-1, 0, np.empty(0, np.int64), np.empty((0, 0), np.float32))
        if first_row < 0:
            keys = self._take_changed(_ROWS_SHOWN)
            places, _ = rows.find(keys, RangeRunner(1))
            # One without a row was never admitted.
            places, keys = places[places >= 0], keys[places >= 0]
            return MovedRows(-1, self.num_changed, keys, rows.records_NR[places])
        end = min(first_row + _ROWS_LOOKED_AT, rows.num_rows)
        keys = rows.keys_N[first_row:end].copy()
        chosen = np.flatnonzero(self.is_moving_P[partitions_of(keys, len(self.is_moving_P))])
        next_row = -1 if end == rows.num_rows else end
        return MovedRows(
            next_row, self.num_changed, keys[chosen], rows.records_NR[first_row + chosen]
        )

    def _take_changed(self, most: int) -> Int64Array:
        """Takes at most so many of the keys noted, each once."""
        keys = sorted_distinct(np.concatenate([np.empty(0, np.int64), *self._changed]))
        self._changed = [keys[most:]] if len(keys) > most else []
        return keys[:most]


@dataclass(frozen=True)
class Arrived:
    """What the target takes over beside rows, once the placement says so.

    Attributes:
        state: State of the source when it held.
        dense: Values and state of its dense range; None if that does not move.
    """

    state: HoldReply
    dense: Float32Array | None
