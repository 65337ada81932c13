"""The records of a script that runs on nodes that come and go."""

import json
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ctr_pipeline.distributed.elastic.client import RendezvousClient
from ctr_pipeline.distributed.elastic.script import rendezvous_of_script, world_of_script
from ctr_pipeline.distributed.records.sources import Records, open_records
from ctr_pipeline.distributed.records.steps import RecordSequence, RecordStep
from ctr_pipeline.distributed.rpc.failures import CallRefused, PeerUnavailable
from ctr_pipeline.errors import CtrPipelineError

if TYPE_CHECKING:
    import tensorflow as tf

_LOGGER = logging.getLogger(__name__)
_MEET_SECONDS = 600.0
_RETRY_SECONDS = 0.5
_END_SECONDS = 120.0
"""Time for the agent to end this script, once its world is over."""


class ElasticRecords:
    """Records that the members of a world read in lockstep, each its share of every step.

    When the members change, `ctrpipe elastic-run` starts the script again, and reading goes on
    after the last step that was finished: none of its records is read again, and none is left out.
    A script that goes back to a checkpoint says where that was taken by `go_on_from`.

    Without `ctrpipe elastic-run` the script reads all records alone, or, with `TF_CONFIG`, as its
    worker.

    Args:
        source: Files, as a path, a list of them or a glob; or a number of records, whose numbers
            are then read.
        batch_size: Records of each member in a step, so that a step grows with the members.
        global_batch_size: Records of all members in a step together, in place of `batch_size`.
        epochs: How often all records are read.
        shuffle: Mix the records, anew in each epoch; False keeps their order.
        seed: The order of shuffled records follows from it.
        name: Names these records, if the script reads several.
        format: `tfrecord`, `recordio`, `text` (a record is a line) or `parquet`; None: as the
            ending of the files' names says.
        columns: Which columns of Parquet files are read; None: all.
        header: The first line of each text file is no record.

    Raises:
        CtrPipelineError: A file is missing, damaged or of an unknown format; an argument is wrong.

    Example:
        >>> records = ElasticRecords(10, batch_size=4, shuffle=False)
        >>> [batch.tolist() for batch in records]
        [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    """

    def __init__(
        self,
        source: int | str | Sequence[str],
        *,
        batch_size: int | None = None,
        global_batch_size: int | None = None,
        epochs: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        name: str = "records",
        format: str | None = None,
        columns: Sequence[str] | None = None,
        header: bool = False,
    ) -> None:
        given = [one for one in (batch_size, global_batch_size) if one is not None]
        if len(given) != 1 or given[0] < 1 or epochs < 1:
            raise CtrPipelineError(
                f"batch_size={batch_size}, global_batch_size={global_batch_size}, epochs={epochs}",
                place="ElasticRecords",
                remedy="Give either batch size, and epochs, each 1 or more",
            )
        self._world = world_of_script()
        self._rendezvous = rendezvous_of_script(self._world)
        self._batch_size = batch_size
        self._global_batch_size = global_batch_size
        self._source = open_records(source, file_format=format, columns=columns, has_header=header)
        self._sequence = RecordSequence(self._source.num_records, epochs, seed, shuffle)
        self._name = name
        self._wanted: int | None = None
        self._position: int | None = None
        self._step_records = 0
        self._answers = True

    @property
    def num_records(self) -> int:
        """Records of one epoch."""
        return self._source.num_records

    @property
    def world_size(self) -> int:
        """Members that read together."""
        return len(self._world.addresses)

    @property
    def rank(self) -> int:
        """Place of this one among them."""
        return self._world.rank

    @property
    def position(self) -> int:
        """Records of all epochs up to the current step, which is included.

        A checkpoint taken in a step keeps it for `go_on_from`.
        """
        return self._begin()

    @property
    def epoch(self) -> int:
        """Epoch of the current step, from 0."""
        return max(self._begin() - 1, 0) // self.num_records

    @property
    def step_records(self) -> int:
        """Records of the current step over all members; a loss divided by it is their mean.

        Smaller in the last step of an epoch, when members may even have an empty batch.
        """
        return self._step_records

    def go_on_from(self, position: int) -> None:
        """Reads on from where a checkpoint was taken; called by all members, before they read.

        Args:
            position: The `position` that the checkpoint kept; 0: there is none yet.

        Raises:
            CtrPipelineError: There is no such position, or reading has begun.
        """
        if self._position is not None:
            raise CtrPipelineError(
                "go_on_from was called after reading had begun",
                place="ElasticRecords",
                remedy="Call it before dataset() and steps()",
            )
        if not 0 <= position <= self._sequence.length:
            raise CtrPipelineError(
                f"position {position:,} of {self._sequence.length:,} records",
                place="ElasticRecords",
                remedy="Give the position of a checkpoint of the same records and epochs",
            )
        self._wanted = int(position)

    def dataset(self) -> "tf.data.Dataset":
        """The batches of this member from here on, as a dataset of TensorFlow.

        Its elements are string [B] of bytes, int64 [B] of numbers, or of Parquet a dictionary of
        such tensors by column. `map` and `prefetch` it as you like, but keep a batch a batch: what
        `steps` iterates over has an element for each step.
        """
        import tensorflow as tf

        first = self._begin()

        def spec(values: Any) -> Any:
            kind = tf.string if values.dtype == object else tf.as_dtype(values.dtype)
            return tf.TensorSpec((None,), kind)

        signature = tf.nest.map_structure(spec, self._read(RecordStep(0, 0)))
        return tf.data.Dataset.from_generator(
            lambda: map(self._read, self._steps_from(first)), output_signature=signature
        )

    def steps(self, batches: Iterable[Any] | None = None) -> Iterator[Any]:
        """Iterates over batches; when the next one is asked for, the step of the last is finished.

        Args:
            batches: An element for each step, such as `dataset()` mapped; None: the batches of
                `dataset()` as arrays of NumPy.

        Raises:
            CtrPipelineError: `batches` has more elements than there are steps.
        """
        first = self._begin()
        planned = self._steps_from(first)
        if batches is None:
            batches = map(self._read, self._steps_from(first))
        for batch in batches:
            step = next(planned, None)
            if step is None:
                raise CtrPipelineError(
                    "the dataset has more elements than steps",
                    place="ElasticRecords",
                    remedy="Leave out repeat, batch and unbatch",
                )
            self._position, self._step_records = step.after, step.after - step.first
            yield batch
            self._report(step.after)

    def __iter__(self) -> Iterator[Any]:
        """As `steps`, of arrays."""
        return self.steps()

    def _steps_from(self, first: int) -> Iterator[RecordStep]:
        size = self._global_batch_size or (self._batch_size or 0) * self.world_size
        return self._sequence.steps(first, size)

    def _read(self, step: RecordStep) -> Records:
        share = step.share_of(self._world.rank, self.world_size)
        return self._source.read(self._sequence.records_at(share))

    def _begin(self) -> int:
        """Where reading is; agrees with the other members first."""
        if self._position is None:
            if self._rendezvous is None:
                self._position = self._wanted or 0
            else:
                self._position = self._agree(self._rendezvous)
                _LOGGER.info("Reading '%s' from record %d", self._name, self._position)
        return self._position

    def _agree(self, rendezvous: RendezvousClient) -> int:
        """Where all members begin."""
        order = f"in the order of seed {self._sequence.seed}" if self._sequence.shuffle else "as is"
        content = f"{self.num_records} records {order}"
        brought = {
            "finished": 0,
            "wanted": self._wanted,
            "epochs": self._sequence.epochs,
            "batch": [self._batch_size, self._global_batch_size],
        }
        try:
            brought["finished"] = rendezvous.take_records(self._name, content, self._world.version)
            tag = f"records {self._name}"
            texts = rendezvous.synchronize(tag, json.dumps(brought), _MEET_SECONDS)
        except CallRefused as error:
            if error.code == "other_records":
                raise CtrPipelineError(
                    error.message,
                    place="ElasticRecords",
                    remedy="Give other records another name=, or the rendezvous another ledger",
                ) from error
            raise self._await_end(error) from error
        position = _common_position([json.loads(text) for text in texts])
        if position > self._sequence.length:
            raise CtrPipelineError(
                f"{position:,} records are finished, of {self._sequence.length:,}",
                place="ElasticRecords",
                remedy="Read as many epochs as before, or more",
            )
        self._report(position, begins=True)
        return position

    def _report(self, position: int, *, begins: bool = False) -> None:
        """Tells the rendezvous; waits for it if nothing else keeps the position."""
        is_told = self._rendezvous is None
        while not is_told:
            is_told = self._try_to_report(position, begins=begins)
            if self._wanted is not None:
                # The checkpoints keep it; and the next report says all that this one says.
                return
            if not is_told:
                time.sleep(_RETRY_SECONDS)

    def _try_to_report(self, position: int, *, begins: bool) -> bool:
        assert self._rendezvous is not None  # noqa: S101  the caller has looked
        try:
            self._rendezvous.report_records(
                self._name, self._world.version, position, begins=begins
            )
        except (PeerUnavailable, CallRefused) as error:
            if isinstance(error, CallRefused) and not error.may_pass:
                raise self._await_end(error) from error
            if self._answers:
                waits = "goes on" if self._wanted is not None else "waits"
                _LOGGER.warning("The rendezvous does not answer, reading %s (%s)", waits, error)
            self._answers = False
            return False
        self._answers = True
        return True

    @staticmethod
    def _await_end(error: CallRefused) -> CtrPipelineError:
        """Waits for the agent to end this script, as the world is over; the error if it does not.

        To fail instead would count as a failure of the script.
        """
        with suppress(KeyboardInterrupt):
            time.sleep(_END_SECONDS)
        return CtrPipelineError(
            f"this world is over, and nobody ends the script ({error.message})",
            place="ElasticRecords",
            remedy="Check that the agent, 'ctrpipe elastic-run', still runs",
        )


def _common_position(brought: Sequence[dict[str, Any]]) -> int:
    """Where members begin that have brought this, by rank.

    Raises:
        CtrPipelineError: They do not agree.
    """
    for key, what, remedy in (
        ("wanted", "go on from different positions", "Load the same checkpoint on all nodes"),
        ("epochs", "read different numbers of epochs", "Start all nodes with the same arguments"),
        ("batch", "have different batch sizes", "Start all nodes with the same arguments"),
    ):
        values = [one[key] for one in brought]
        if any(value != values[0] for value in values):
            raise CtrPipelineError(
                f"the nodes {what}: {', '.join(map(str, values))} by rank",
                place="ElasticRecords",
                remedy=remedy,
            )
    wanted = brought[0]["wanted"]
    return max(one["finished"] for one in brought) if wanted is None else int(wanted)
