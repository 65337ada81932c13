"""What a request may say: every number is held against the job's spec before anything follows it.

Refusals are final for the call and change nothing.
"""

import numpy as np

from ctr_pipeline.dataset.order import EpochOrder
from ctr_pipeline.distributed.coordination.messages import (
    RestoreRequest,
    SnapshotRequest,
    TaskBitmap,
)
from ctr_pipeline.distributed.coordination.rounds import BatchId
from ctr_pipeline.distributed.coordination.spec import BATCHES_PER_TASK, JobSpec
from ctr_pipeline.distributed.rpc.failures import Refusal
from ctr_pipeline.distributed.rpc.packed import PushRequest
from ctr_pipeline.storage.protocol import check_key

_MOST = 1 << 40
"""Bound of numbers that the spec does not bound: attempts, cuts, generations."""

_MOST_STEPS = (1 << 31) - 1
"""Rows keep the step of their last update in 32 bits."""

_ID_BITS = 44
"""Bits of a key, below the number of its table."""


class RequestLimits:
    """The numbers that requests of one job can hold.

    Args:
        spec: The job's spec. Without training rows, its tasks are not bounded.
    """

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        course, train = spec.course, spec.split("train")
        self._num_tasks = _MOST
        if train is not None:
            order = EpochOrder(
                train.num_rows, course.batch_size, course.seed, 0, course.shuffle, BATCHES_PER_TASK
            )
            self._num_tasks = order.num_tasks
        num_positions = max(len(spec.position_tables) or len(spec.tables), 1)
        self._most_in_batch = course.batch_size * num_positions

    def check_batch(self, batch: BatchId) -> None:
        """A batch of a training task; raises Refusal."""
        epochs = self._spec.course.epochs
        if batch.epoch >= epochs or batch.task >= self._num_tasks or batch.attempt > _MOST:
            raise Refusal("mismatch", f"the job has no {_name_of(batch)}, attempt {batch.attempt}")

    def check_next_epoch(self, batch: BatchId, newest: int) -> None:
        """An epoch follows the newest one that is known, or is not newer; raises Refusal."""
        if batch.epoch > newest + 1:
            raise Refusal("mismatch", f"{_name_of(batch)} comes before epoch {newest + 1}")

    def check_version(self, request: PushRequest, version: int) -> None:
        """Values that gradients were computed with are not newer than the server's; or Refusal."""
        if request.version > version:
            raise Refusal(
                "mismatch",
                f"{_name_of(request.batch)} knows version {request.version} of {version}",
            )

    def check_push(self, request: PushRequest) -> None:
        """Numbers and gradients of a push, whose keys may be anybody's; raises Refusal."""
        self.check_batch(request.batch)
        spec = self._spec
        most_steps = min(spec.course.epochs * self._num_tasks * BATCHES_PER_TASK, _MOST_STEPS)
        if (
            request.step > min(most_steps, _MOST_STEPS - spec.earlier_steps)
            or request.learning_rate_factor > 1.0
            or request.num_examples > spec.course.batch_size
        ):
            raise Refusal(
                "mismatch",
                f"{_name_of(request.batch)} says step {request.step}, {request.num_examples} "
                f"examples, learning rate × {request.learning_rate_factor}",
            )
        counts = request.num_occurrences
        if len(counts) and not 1 <= counts.min() <= counts.max() <= self._most_in_batch:
            raise Refusal(
                "mismatch",
                f"{_name_of(request.batch)} says that a key occurs {counts.min()} to "
                f"{counts.max()} times",
            )
        self._check_finite(request)

    def _check_finite(self, request: PushRequest) -> None:
        for gradients in (request.sums, request.dense):
            if np.isfinite(gradients).all():
                continue
            where = "the dense parameters"
            if gradients is request.sums:
                row = int(np.flatnonzero(~np.isfinite(gradients).all(axis=1))[0])
                tables, table = self._spec.tables, int(request.keys[row]) >> _ID_BITS
                # Whose keys they are is looked at later.
                is_known = 0 <= table < len(tables)
                where = f"table '{tables[table].name}'" if is_known else f"table {table}"
            raise Refusal(
                "not_finite",
                f"{_name_of(request.batch)} has gradients of {where} that are not finite: the "
                "training diverges, or a value of the rows is out of bounds",
            )

    def check_snapshot(self, request: SnapshotRequest) -> None:
        """Numbers of a cut; raises Refusal."""
        numbers = (request.cut - 1, request.parent, request.oldest_step)
        if min(numbers) < 0 or request.parent >= request.cut or request.cut > _MOST:
            raise Refusal(
                "mismatch", f"there is no checkpoint {request.cut} after {request.parent}"
            )
        _check_key(f"{request.prefix}rows")

    def check_restore(self, request: RestoreRequest) -> None:
        """All that a restore names exists, or is refused before anything is given up.

        Raises:
            Refusal: It does not.
        """
        if not (0 <= request.generation <= _MOST and 0 <= request.cut <= _MOST):
            raise Refusal(
                "mismatch", f"there is no checkpoint {request.cut}, generation {request.generation}"
            )
        for chain in request.partitions:
            if not 0 <= chain.partition < self._spec.num_partitions:
                raise Refusal("mismatch", f"there is no partition {chain.partition}")
            if not 0 <= chain.bitmaps_of < max(len(request.bitmaps), 1):
                raise Refusal("mismatch", f"there are no bitmaps of server {chain.bitmaps_of}")
            for file in chain.files:
                _check_key(file.name)
        for file in request.dense:
            _check_key(file.name)
        for bitmaps in request.bitmaps:
            for bitmap in bitmaps:
                self._check_bitmap(bitmap)

    def _check_bitmap(self, bitmap: TaskBitmap) -> None:
        is_known = (
            0 <= bitmap.epoch <= _MOST and 0 <= bitmap.task <= _MOST and 0 <= bitmap.mask < 1 << 64
        )
        if is_known and bitmap.scope is not None:
            is_known = all(
                0 <= partition < self._spec.num_partitions for partition in bitmap.scope.partitions
            ) and all(0 <= low <= high <= self._spec.num_dense for low, high in bitmap.scope.dense)
        if not is_known:
            raise Refusal("mismatch", f"there are no such bitmaps: {bitmap}"[:300])


def _check_key(key: str) -> None:
    """Files lie among the checkpoints."""
    try:
        check_key(key)
    except ValueError:
        raise Refusal("mismatch", f"{key[:100]!r} is no key of a file of a checkpoint") from None


def _name_of(batch: BatchId) -> str:
    return f"batch {batch.batch} of training task {batch.task} of epoch {batch.epoch}"
