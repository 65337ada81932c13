"""The batches of a worker's tasks: read ahead and prepared, in a thread beside the loop.

Axes: B batch, F fields.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ctr_pipeline.dataset.encoded import EncodedReader, EncodedRows
from ctr_pipeline.distributed.coordination.messages import LeasedTask
from ctr_pipeline.distributed.coordination.rounds import BatchId
from ctr_pipeline.distributed.coordination.spec import EncodedSplit, JobSpec
from ctr_pipeline.distributed.worker.batch_keys import PreparedKeys
from ctr_pipeline.distributed.worker.exchanges import Pull
from ctr_pipeline.distributed.worker.ps_client import PsClient
from ctr_pipeline.distributed.worker.session import WorkerSession
from ctr_pipeline.distributed.worker.step_numbers import StepNumbers
from ctr_pipeline.errors import DataError
from ctr_pipeline.training.batches import Position, pad

_POLL_SECONDS = 0.2


@dataclass
class TaskBatch:
    """One batch of a task, read and prepared.

    Attributes:
        number: Within the task.
        is_last: No other batch of the task follows.
        rows: Padded to the batch size.
        num_valid: Rows that are not padding.
        prepared: What the client made of the ids.
        pull: Once it was asked for.
    """

    task: LeasedTask
    number: int
    is_last: bool
    rows: EncodedRows
    num_valid: int
    prepared: PreparedKeys
    pull: Pull | None = None

    @property
    def trains(self) -> bool:
        """Whether its task is one of training."""
        return self.task.key.kind == "train"

    @property
    def batch_id(self) -> BatchId | None:
        """The batch's name for servers; None where it is scored."""
        if not self.trains:
            return None
        key = self.task.key
        return BatchId(key.epoch, key.task, self.task.attempt, self.number)

    @property
    def position(self) -> Position:
        """Where it is in the course of training."""
        return Position(self.task.key.epoch, self.task.key.task, self.number)


@dataclass(frozen=True)
class Unreadable:
    """A task whose rows could not be read."""

    task: LeasedTask
    error: Exception


class TaskReader:
    """Reads the tasks that the session leases, one after another.

    Args:
        spec: The job.
        session: Gives tasks, and is told of those that are done already.
        client: Prepares ids.
        numbers: The order of rows.
    """

    def __init__(
        self, spec: JobSpec, session: WorkerSession, client: PsClient, numbers: StepNumbers
    ) -> None:
        self._spec = spec
        self._session = session
        self._client = client
        self._numbers = numbers
        self._has_ended = False
        self._readers: dict[str, EncodedReader] = {}

    def end(self) -> None:
        """Waits for no more tasks."""
        self._has_ended = True

    def close(self) -> None:
        """Closes the files; nobody reads any more."""
        for reader in self._readers.values():
            reader.close()

    def batches(self) -> Iterator[TaskBatch | Unreadable]:
        """Batches of all tasks, until the session is over; waits for tasks."""
        while not self._session.is_over and not self._has_ended:
            task = self._session.wait_task(_POLL_SECONDS)
            if task is None:
                continue
            try:
                yield from self._batches_of(task)
            except Exception as error:  # noqa: BLE001  raised where the task is worked on
                yield Unreadable(task, error)

    def _batches_of(self, task: LeasedTask) -> Iterator[TaskBatch]:
        size = self._spec.course.batch_size
        if task.key.kind == "train":
            order = self._numbers.order_of(task.key.epoch)
            wanted = [
                number
                for number in range(order.batches_of(task.key.task))
                if not task.done_mask >> number & 1
            ]
            if not wanted:
                self._session.finish_empty(task)
                return
            batches = self._reader("train").read_task(order.rows_of(task.key.task), size)
        else:
            wanted = list(range(-(-task.num_rows // size)))
            batches = self._ranges_of(task)
        remaining = set(wanted)
        for number, rows in enumerate(batches):
            if number not in remaining:
                continue
            if not self._session.holds(task):
                return
            whole = pad(rows, size)
            yield TaskBatch(
                task=task,
                number=number,
                is_last=number == wanted[-1],
                rows=whole,
                num_valid=rows.num_rows,
                prepared=self._client.prepare(whole.ids_BF, rows.num_rows),
            )

    def _ranges_of(self, task: LeasedTask) -> Iterator[EncodedRows]:
        reader, end = self._reader(task.key.split), task.first_row + task.num_rows
        for first in range(task.first_row, end, self._spec.course.batch_size):
            yield reader.read_range(first, min(self._spec.course.batch_size, end - first))

    def _reader(self, split: str) -> EncodedReader:
        reader = self._readers.get(split)
        if reader is None:
            reader = EncodedReader(Path(self._split(split).folder))
            self._readers[split] = reader
            if reader.meta.fingerprint != self._spec.rows_fingerprint:
                raise DataError(
                    "holds other rows than the job was started with",
                    place=self._split(split).folder,
                    remedy="Let nothing else write into the run folder, and start the job again",
                )
        return reader

    def _split(self, name: str) -> EncodedSplit:
        split = self._spec.split(name)
        if split is None:
            raise DataError(f"the job has no split '{name}'")
        return split
