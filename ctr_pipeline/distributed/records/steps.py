"""Which records a step takes, and which of them each member; pure.

The records of all epochs are one sequence. A position in it is the number of records before it. The
sequence depends on the seed alone: neither on the members nor on the sizes of their batches.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ctr_pipeline.dataset.order import EpochOrder

_BATCH_RECORDS = 64
"""Only sets, with the batches of a task, how far records are mixed: over 4,096 of them, from blocks
of all files."""


@dataclass(frozen=True)
class RecordStep:
    """One step of a world.

    Attributes:
        first: Position of its first record.
        after: Position after its last one.
    """

    first: int
    after: int

    def share_of(self, rank: int, size: int) -> range:
        """The positions of one of `size` members; empty if there are fewer records than members."""
        number = self.after - self.first
        return range(self.first + number * rank // size, self.first + number * (rank + 1) // size)


@dataclass(frozen=True)
class RecordSequence:
    """The records of all epochs.

    Attributes:
        num_records: Records of one epoch.
        epochs: 1 or more.
        seed: The order of shuffled records follows from it.
        shuffle: False keeps the order of the records.
    """

    num_records: int
    epochs: int
    seed: int
    shuffle: bool

    @property
    def length(self) -> int:
        """Records of all epochs."""
        return self.num_records * self.epochs

    def steps(self, first: int, step_records: int) -> Iterator[RecordStep]:
        """The steps from a position on; the last one of an epoch may be smaller."""
        while first < self.length:
            end_of_epoch = (first // self.num_records + 1) * self.num_records
            after = min(first + step_records, end_of_epoch)
            yield RecordStep(first, after)
            first = after

    def records_at(self, positions: range) -> NDArray[np.int64]:
        """Numbers of the records at neighbouring positions of one epoch, int64 [N]."""
        if not self.shuffle or not positions:
            return np.arange(positions.start, positions.stop) % max(self.num_records, 1)
        epoch = positions.start // self.num_records
        first, stop = (one - epoch * self.num_records for one in (positions.start, positions.stop))
        order = EpochOrder(self.num_records, _BATCH_RECORDS, self.seed, epoch)
        found = []
        task = first // order.rows_per_task
        # The task with the end of the data is shorter, wherever it is.
        while task + 1 < order.num_tasks and _records_before(order, task + 1) <= first:
            task += 1
        while (before := _records_before(order, task)) < stop:
            found.append(_records_of(order, task)[max(first - before, 0) : stop - before])
            task += 1
        return np.concatenate(found)


def _records_before(order: EpochOrder, task: int) -> int:
    missing = sum(order.rows_per_task - rows for one, rows in order.uneven_tasks if one < task)
    return task * order.rows_per_task - missing


@lru_cache(maxsize=4)
def _records_of(order: EpochOrder, task: int) -> NDArray[np.int64]:
    rows = order.rows_of(task)
    records = np.concatenate([np.arange(first, first + count) for first, count in rows.ranges])
    return records if rows.permutation is None else records[rows.permutation]
