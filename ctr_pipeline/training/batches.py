"""Padded batches, read and prepared ahead of the step by one thread.

Axes: B batch, F fields, N numbers.
"""

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from ctr_pipeline.dataset.encoded import EncodedReader, EncodedRows
from ctr_pipeline.dataset.order import BatchesLeft, DoneBatches, EpochOrder
from ctr_pipeline.training.lookup import EmbeddingLookup
from ctr_pipeline.training.profile import Stage, StageClock

_BATCHES_AHEAD = 4
_POLL_SECONDS = 0.1

T = TypeVar("T")


@dataclass(frozen=True, order=True)
class Position:
    """A batch of a run: the `batch`-th of the `task`-th task of the `epoch`-th epoch, from 0."""

    epoch: int
    task: int
    batch: int


@dataclass(frozen=True)
class Batch:
    """A padded batch, its rows found ahead.

    Attributes:
        position: Position of the batch in the run.
        following: Position of the next batch of the run.
        rows: Rows, padded to the batch size.
        num_valid: Number of rows before the padding.
        prepared: Result of `EmbeddingLookup.prepare`, with its embedding rows located.
    """

    position: Position
    following: Position
    rows: EncodedRows
    num_valid: int
    prepared: Any


@dataclass(frozen=True)
class Turn:
    """Which of the batches that are left are trained here.

    Attributes:
        rank: This replica's place.
        size: Replicas that train together.
        step_batches: Batches of a step; of these, the replica trains those at `rank`,
            `rank + size` and so on.
    """

    rank: int
    size: int
    step_batches: int

    def of_step(self, num_batches: int) -> range:
        """Places of the batches that are trained here, in a step of so many."""
        return range(self.rank, num_batches, self.size)


EVERY_BATCH = Turn(0, 1, 1)


def position_after(left: BatchesLeft, start: Position, num_batches: int) -> Position:
    """The position so many batches further on, at most the start of the next epoch."""
    _, following = left.after(start.task, start.batch, num_batches)
    return (
        Position(start.epoch + 1, 0, 0) if following is None else Position(start.epoch, *following)
    )


def pad(rows: EncodedRows, batch_size: int) -> EncodedRows:
    """Appends zeros to the rows up to the batch size."""
    missing = batch_size - rows.num_rows
    if not missing:
        return rows

    def padded(values: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate([values, np.zeros((missing, *values.shape[1:]), values.dtype)])

    return EncodedRows(
        padded(rows.ids_BF),
        padded(rows.numbers_BN),
        padded(rows.labels_B),
        None if rows.weights_B is None else padded(rows.weights_B),
    )


def epoch_batches(
    reader: EncodedReader,
    order: EpochOrder,
    embeddings: EmbeddingLookup,
    start: Position,
    locating: AbstractContextManager[Any],
    *,
    clock: StageClock | None = None,
    turn: Turn = EVERY_BATCH,
    done: Sequence[DoneBatches] = (),
) -> Iterator[Batch]:
    """Yields the batches of one epoch from `start` on, with their embedding rows found or created.

    Finding rows ahead of the step makes nothing stale: the step itself gathers the values, and the
    initial values of a row do not depend on when it is created.

    Args:
        reader: Training rows.
        embeddings: The store of the embedding rows.
        start: The first batch to yield.
        locating: Lock that is held while rows may be created.
        clock: Measures the stages of the thread that takes the batches.
        turn: Which batches to yield, counted from `start`.
        done: Batches that are not to be trained.
    """
    clock = clock or StageClock()
    clock.start()
    num_passed, mine = 0, turn.of_step(turn.step_batches)
    left = BatchesLeft(order, done)
    for task in range(start.task, order.num_tasks):
        wanted = set(left.of_task(task, start.batch if task == start.task else 0))
        if not wanted:
            continue
        for number, rows in enumerate(reader.read_task(order.rows_of(task), order.batch_size)):
            if number not in wanted:
                continue
            num_passed += 1
            if (num_passed - 1) % turn.step_batches not in mine:
                continue
            position = Position(order.epoch, task, number)
            following = position_after(left, position, 1)
            num_valid = rows.num_rows
            whole = pad(rows, order.batch_size)
            clock.lap(Stage.READ)
            prepared = embeddings.prepare(whole.ids_BF, num_valid)
            clock.lap(Stage.UNIQUE)
            with locating:
                # A checkpoint may hold the lock.
                clock.start()
                embeddings.locate(prepared, create=True)
            clock.lap(Stage.LOCATE)
            yield Batch(position, following, whole, num_valid, prepared)
            # The queue may have been full.
            clock.start()


class Prefetcher(Generic[T]):
    """Runs an iterator in a thread, a few items ahead; leaving the context stops the thread.

    An exception of the iterator is raised where its items are taken.
    """

    def __init__(self, items: Iterator[T], *, num_ahead: int = _BATCHES_AHEAD) -> None:
        self._queue: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(num_ahead)
        self._stopped = threading.Event()
        self._items = items
        self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def __iter__(self) -> Iterator[T]:
        while True:
            item, error = self._queue.get()
            if error is not None:
                raise error
            if item is None:
                return
            yield item

    def take(self, seconds: float) -> T | None:
        """Returns the next item, or None if it does not come in time or there is none."""
        try:
            item, error = self._queue.get(timeout=seconds) if seconds else self._queue.get_nowait()
        except queue.Empty:
            return None
        if error is not None:
            raise error
        return item

    def _put(self, item: T | None, error: BaseException | None) -> bool:
        while not self._stopped.is_set():
            try:
                self._queue.put((item, error), timeout=_POLL_SECONDS)
            except queue.Full:
                continue
            return True
        return False

    def _run(self) -> None:
        try:
            for item in self._items:
                if not self._put(item, None):
                    return
        except BaseException as error:  # noqa: BLE001  # raised again in the thread that waits
            self._put(None, error)
        else:
            self._put(None, None)
