"""The order of records: a seekable permutation, a pure function of (seed, epoch, task).

Rows are grouped into blocks of `BLOCK_ROWS` neighbours. An epoch visits the blocks in a
pseudo-random order; `batches_per_task` batches' worth of blocks make a *task*, and the rows of a
task are permuted once more. Any task of any epoch can be computed without the ones before it, in
memory bounded by one task, and reads the disk in runs of whole blocks. Batches never cross tasks,
so the last batch of a task may be short.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ctr_pipeline import splitmix

BLOCK_ROWS = 64
ALL_BATCHES = (1 << 64) - 1
DoneBatches = tuple[int, int, int]
"""The first task of some, the one after the last, and the mask of the batches of each that are
over."""

_FEISTEL_ROUNDS = 4

_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class TaskRows:
    """The rows of one task.

    Attributes:
        task: Number of the task within its epoch.
        ranges: Runs of neighbouring rows to read, int64 [num_ranges, 2] of (first_row, num_rows).
        permutation: int64 [num_rows]: the task's k-th row is the one at `permutation[k]` of the
            ranges read one after another; None keeps their order.
        num_rows: Rows of the task.
    """

    task: int
    ranges: NDArray[np.int64]
    permutation: NDArray[np.int64] | None
    num_rows: int


@dataclass(frozen=True)
class EpochOrder:
    """The tasks of one epoch over `num_rows` rows.

    Args:
        num_rows: Rows of the data.
        batch_size: Rows of a full batch.
        seed: Seed of the run.
        epoch: Number of the epoch, from 0.
        shuffle: False keeps the order of the rows.
        batches_per_task: Full batches of a task.
    """

    num_rows: int
    batch_size: int
    seed: int
    epoch: int
    shuffle: bool = True
    batches_per_task: int = 64

    @property
    def rows_per_task(self) -> int:
        """Rows of every task but those that hold the end of the data."""
        rows = self.batch_size * self.batches_per_task
        return -(-rows // BLOCK_ROWS) * BLOCK_ROWS

    @property
    def num_tasks(self) -> int:
        """Tasks of the epoch."""
        return -(-self.num_rows // self.rows_per_task)

    @property
    def num_batches(self) -> int:
        """Batches of the epoch, short ones included."""
        return self.batches_before(self.num_tasks)

    def batches_of(self, task: int) -> int:
        """Batches of one task."""
        rows = dict(self.uneven_tasks).get(task, self.rows_per_task)
        return -(-rows // self.batch_size)

    def batches_before(self, task: int) -> int:
        """Batches of all tasks before one, in time that does not depend on their number."""
        even = -(-self.rows_per_task // self.batch_size)
        more = (-(-rows // self.batch_size) - even for one, rows in self.uneven_tasks if one < task)
        return even * task + sum(more)

    @cached_property
    def uneven_tasks(self) -> tuple[tuple[int, int], ...]:
        """(task, rows) of the tasks with other than `rows_per_task` rows, ascending.

        There are two at most: the last one, and the one that holds the end of the data.
        """
        if not self.num_rows:
            return ()
        last_task, blocks_per_task = self.num_tasks - 1, self.rows_per_task // BLOCK_ROWS
        sizes = {last_task: (self._num_blocks - last_task * blocks_per_task) * BLOCK_ROWS}
        short_task = self._position_of(self._num_blocks - 1) // blocks_per_task
        missing = self._num_blocks * BLOCK_ROWS - self.num_rows
        sizes[short_task] = sizes.get(short_task, self.rows_per_task) - missing
        found = sorted(sizes.items())
        return tuple((task, rows) for task, rows in found if rows != self.rows_per_task)

    @property
    def _num_blocks(self) -> int:
        return -(-self.num_rows // BLOCK_ROWS)

    def _position_of(self, block: int) -> int:
        """Where in the order of the epoch a block stands."""
        if not self.shuffle:
            return block
        blocks = np.array([block], dtype=np.int64)
        return int(unpermute(blocks, size=self._num_blocks, key=mix(self.seed, self.epoch))[0])

    def _blocks_of(self, task: int) -> NDArray[np.int64]:
        blocks_per_task = self.rows_per_task // BLOCK_ROWS
        end = min((task + 1) * blocks_per_task, self._num_blocks)
        positions = np.arange(task * blocks_per_task, end, dtype=np.int64)
        if not self.shuffle:
            return positions
        return permute(positions, size=self._num_blocks, key=mix(self.seed, self.epoch))

    def _ranges_of(self, task: int) -> NDArray[np.int64]:
        # Sorted, so that the disk is read forwards; the permutation below undoes any order.
        first_rows = np.sort(self._blocks_of(task)) * BLOCK_ROWS
        counts = np.minimum(BLOCK_ROWS, self.num_rows - first_rows)
        starts_run = np.ones(len(first_rows), dtype=bool)
        starts_run[1:] = first_rows[1:] != first_rows[:-1] + counts[:-1]
        runs = np.flatnonzero(starts_run)
        return np.stack([first_rows[runs], np.add.reduceat(counts, runs)], axis=1)

    def rows_of(self, task: int) -> TaskRows:
        """The rows of one task, in their order."""
        if not 0 <= task < self.num_tasks:
            raise IndexError(f"task {task} of an epoch of {self.num_tasks}")
        ranges = self._ranges_of(task)
        num_rows = int(ranges[:, 1].sum())
        permutation = None
        if self.shuffle:
            generator = np.random.Generator(np.random.Philox(key=mix(self.seed, self.epoch, task)))
            permutation = generator.permutation(num_rows)
        return TaskRows(task, ranges, permutation, num_rows)

    def tasks(self, first: int = 0) -> Iterator[TaskRows]:
        """The tasks from `first` on."""
        for task in range(first, self.num_tasks):
            yield self.rows_of(task)


class BatchesLeft:
    """The batches of an epoch that are still to be trained, in their order.

    Args:
        order: The tasks of the epoch.
        done: Batches that are over, of which workers that shared the tasks left gaps.
    """

    def __init__(self, order: EpochOrder, done: Iterable[DoneBatches] = ()) -> None:
        self._order = order
        self._done = tuple(done)

    def of_task(self, task: int, first: int = 0) -> Iterator[int]:
        """Numbers of the batches of a task, from one on."""
        mask = 0
        for begin, end, batches in self._done:
            if begin <= task < end:
                mask |= batches
        for batch in range(first, self._order.batches_of(task)):
            if not mask >> batch & 1:
                yield batch

    def after(self, task: int, batch: int, most: int) -> tuple[int, tuple[int, int] | None]:
        """Goes on from a batch, which is the first that counts, by some batches.

        Args:
            task: The task of the batch.
            batch: Its number in the task.
            most: By how many, if so many are left.

        Returns:
            How many there were, and the one after them; None if none is left.
        """
        num_passed = 0
        while task < self._order.num_tasks:
            for number in self.of_task(task, batch):
                if num_passed == most:
                    return num_passed, (task, number)
                num_passed += 1
            task, batch = task + 1, 0
        return num_passed, None


def mix(*numbers: int) -> int:
    """One well-mixed 64-bit number from several."""
    state = np.zeros(1, np.uint64)
    for number in numbers:
        state = splitmix.mix(state + splitmix.GOLDEN + np.uint64(number & _MASK))
    return int(state[0])


def permute(positions: NDArray[np.int64], *, size: int, key: int) -> NDArray[np.int64]:
    """Maps each position in [0, size) to another one, one to one, in O(1) memory a position.

    A Feistel network over the next even power of two, walked until it falls inside [0, size)
    (Black and Rogaway 2002, "Ciphers with arbitrary finite domains").
    """
    half_bits, round_keys = _feistel(size, key)
    mask, shift = np.uint64((1 << half_bits) - 1), np.uint64(half_bits)

    def encrypt(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = values >> shift, values & mask
        for round_key in round_keys:
            left, right = right, left ^ (splitmix.mix(right ^ round_key) & mask)
        return (left << shift) | right

    return _walk(positions, encrypt, size)


def unpermute(values: NDArray[np.int64], *, size: int, key: int) -> NDArray[np.int64]:
    """The positions that `permute` maps to these values."""
    half_bits, round_keys = _feistel(size, key)
    mask, shift = np.uint64((1 << half_bits) - 1), np.uint64(half_bits)

    def decrypt(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = values >> shift, values & mask
        for round_key in reversed(round_keys):
            left, right = right ^ (splitmix.mix(left ^ round_key) & mask), left
        return (left << shift) | right

    return _walk(values, decrypt, size)


def _feistel(size: int, key: int) -> tuple[int, list[np.uint64]]:
    """Bits of each half, and the keys of the rounds."""
    half_bits = max(1, (max(size - 1, 1).bit_length() + 1) // 2)
    return half_bits, [np.uint64(mix(key, number)) for number in range(_FEISTEL_ROUNDS)]


def _walk(
    values: NDArray[np.int64],
    step: Callable[[NDArray[np.uint64]], NDArray[np.uint64]],
    size: int,
) -> NDArray[np.int64]:
    result = step(values.astype(np.uint64))
    while (outside := result >= size).any():
        result[outside] = step(result[outside])
    return result.astype(np.int64)
