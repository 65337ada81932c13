"""Pulls and pushes: values of keys for batches, and the updates that their gradients make.

Axes: U keys of a message, W values of a row.

A pull sees one version and a push is one step; what a message alone tells is found out before the
lock is taken. A push of synchronous mode is answered when its round is complete, a pull of a worker
that is too far ahead when the others have come closer; neither holds a thread until then. An update
for whose old rows a cut has no room waits before it takes the lock.
"""

import logging
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from ctr_pipeline.distributed.coordination.rounds import (
    BatchId,
    Pace,
    Round,
    admit_push,
    worker_number,
)
from ctr_pipeline.distributed.ps.merging import RowGradients, without_repeats
from ctr_pipeline.distributed.ps.server_state import ServerGradients
from ctr_pipeline.distributed.ps.serving import Serving
from ctr_pipeline.distributed.rpc.failures import Refusal
from ctr_pipeline.distributed.rpc.later import LaterReply
from ctr_pipeline.distributed.rpc.packed import (
    DenseReply,
    DenseRequest,
    PullReply,
    PullRequest,
    PushReply,
    PushRequest,
    Status,
)
from ctr_pipeline.embeddings.arrays import Float32Array, Int32Array, Int64Array
from ctr_pipeline.errors import RunFolderError, TrainingError

_LOGGER = logging.getLogger(__name__)


@dataclass
class CallCounts:
    """What became of calls so far.

    Attributes:
        pulls: Answered.
        applied: Batches applied, wholly or where they were missing.
        repeated: Were applied before.
        stale: Their round did not fill.
        refused: Messages of an old generation or attempt.
        vanished_keys: Keys whose gradients were dropped, because they have no row; where rows are
            admitted by count, those below it are among them.
        dense_bytes: Bytes of dense gradients taken and dense values given.
    """

    pulls: int = 0
    applied: int = 0
    repeated: int = 0
    stale: int = 0
    refused: int = 0
    vanished_keys: int = 0
    dense_bytes: int = 0


@dataclass
class _WaitingPush:
    """A push of the open round; a lost call that is tried again waits for the same one.

    Attributes:
        weight: Its weight in the round.
        until: When it is given up.
        calls: Calls that wait for it.
    """

    gradients: ServerGradients
    weight: float
    until: float
    calls: list[tuple[PushRequest, LaterReply]] = field(default_factory=list)


@dataclass(frozen=True)
class _HeldPull:
    """A pull of a worker that is too far ahead."""

    request: PullRequest
    keys: Int64Array
    partitions_U: Int32Array
    later: LaterReply


class Updates:
    """Answers the workers of a job.

    Args:
        round_timeout_seconds: A push of synchronous mode is answered `stale` after so long.

    Attributes:
        counts: Results of calls so far.
    """

    def __init__(self, serving: Serving, *, round_timeout_seconds: float) -> None:
        self.counts = CallCounts()
        self._serving = serving
        self._state = serving.state
        self._rule = serving.spec.update_rule
        self._timeout_seconds = round_timeout_seconds
        # Epochs follow each other; after a restore the first batch tells which one it is.
        self._epoch: int | None = None
        self._round = Round()
        self._waiting: dict[BatchId, _WaitingPush] = {}
        self._pace = Pace(self._rule.max_staleness, round_timeout_seconds)
        self._held: list[_HeldPull] = []
        self._active_workers: frozenset[int] | None = None
        self._news = threading.Event()

    @property
    def num_waiting(self) -> int:
        """Pushes in the open round, and pulls of workers that are too far ahead."""
        return len(self._round.members) + len(self._held)

    def set_active_workers(self, incarnations: Collection[str]) -> None:
        """Says which workers can still push; a round does not wait for others.

        Takes no lock: whoever tells the master that this server lives must not wait for rows. What
        follows from it is done by `keep_time`.
        """
        self._active_workers = frozenset(worker_number(name) for name in incarnations)
        self._news.set()

    def await_news(self, seconds: float) -> None:
        """Returns when the active workers are known anew, or after some seconds."""
        self._news.wait(seconds)
        self._news.clear()

    def keep_time(self) -> None:
        """Closes a round that nobody else can come to and ends what has waited for too long."""
        if not self._waiting and not self._held:
            return
        with self._lock_with_room():
            now = self._serving.clock()
            for batch, waiting in list(self._waiting.items()):
                if waiting.until <= now:
                    self._withdraw(batch, Status.STALE)
            self._close_complete_round()
            self._let_pull()

    def pull(self, request: PullRequest) -> PullReply | LaterReply:
        """Values of keys, and the dense values if they are newer than the caller's.

        Where staleness is bounded, the answer may have to wait for slower workers.

        Raises:
            Refusal: The keys are not of this server, or there is no room for their rows.
            RunFolderError: The disk has no room for them; there may be some later.
        """
        if request.batch is not None:
            self._serving.limits.check_batch(request.batch)
        keys, partitions_U = self._divided(request.keys)
        if request.batch is not None and self._rule.update == "bounded":
            with self._serving.lock:
                is_served = self._serving.gate(request.generation) is None
                if is_served and self._must_wait(request.worker):
                    later = LaterReply()
                    self._held.append(_HeldPull(request, keys, partitions_U, later))
                    return later
        return self._pull(request, keys, partitions_U)

    def push(self, request: PushRequest) -> PushReply | LaterReply:
        """Applies the gradients of a batch, once.

        In synchronous mode the answer comes with the end of the round.

        Raises:
            Refusal: The gradients do not fit what this server holds.
        """
        self._serving.limits.check_push(request)
        keys, partitions_U = self._divided(request.keys)
        if len(keys) and request.sums.shape[1] != self._state.width:
            raise Refusal("mismatch", f"rows of {request.sums.shape[1]} values, not of this job")
        rows = without_repeats(RowGradients(keys, request.num_occurrences.copy(), request.sums))
        fresh_keys, fresh_partitions = self._divided(request.fresh_keys)
        with self._lock_with_room(len(keys)):
            status = self._serving.gate_call(request.generation, request.placement)
            if status is None:
                self._require_owned(keys, partitions_U)
                first, last = self._state.range
                if len(request.dense) != last - first:
                    what = f"{len(request.dense)} dense gradients for {last - first}"
                    raise Refusal("mismatch", what)
                self._require_owned(fresh_keys, fresh_partitions)
                self._state.counts.count_push(partitions_U)
                self.counts.dense_bytes += request.dense.nbytes
            if status is None and not self._state.has_dense:
                status = Status.NOT_READY
            if status is None:
                # Versions are of one generation: a server that was started again begins anew.
                self._serving.limits.check_version(request, self._serving.version)
                status = self._fence(request.batch)
            if status is not None:
                return self._push_reply(request, status)
            outcome = self._admit(request, rows)
            if isinstance(outcome, LaterReply):
                return outcome
            if self._rule.update == "bounded":
                self._pace.note_heard(request.worker, self._active_workers, self._serving.clock())
                self._pace.count(request.worker, request.batch)
                self._let_pull()
            return self._push_reply(request, outcome)

    def init_dense(self, request: DenseRequest) -> DenseReply:
        """Takes the initial dense values of the first caller.

        Others are told where theirs differ in the last bits, as they may on another processor.

        Raises:
            Refusal: They are not those of this server, or of another model than the first caller's.
        """
        with self._serving.lock:
            status = self._serving.gate_call(request.generation, request.placement)
            if status is None:
                first, last = self._state.range
                if (request.first, len(request.values)) != (first, last - first):
                    raise Refusal("mismatch", f"dense values {first} … {last - 1} are expected")
                if not np.isfinite(request.values).all():
                    raise Refusal("not_finite", "an initial dense value is not finite")
                outcome = self._state.initialise_dense(request.values)
                if outcome == "other":
                    raise Refusal(
                        "dense_differs",
                        "another worker gave other initial values for the dense parameters",
                    )
                status = Status.DONE if outcome == "taken" else Status.REPEATED
                return DenseReply(status, self._shown_generation(), differs=outcome == "close")
            return DenseReply(status, self._shown_generation())

    def _must_wait(self, worker: int) -> bool:
        now = self._serving.clock()
        self._pace.note_heard(worker, self._active_workers, now)
        return self._pace.must_wait(worker, self._pace.slowest(self._active_workers, now))

    def _let_pull(self) -> None:
        """Answers the pulls that need not wait any longer; the lock is held."""
        slowest = self._pace.slowest(self._active_workers, self._serving.clock())
        for held in list(self._held):
            is_over = self._serving.gate(held.request.generation) is not None or held.later.is_over
            if is_over or not self._pace.must_wait(held.request.worker, slowest):
                self._held.remove(held)
                held.later.resume(partial(self._pull, held.request, held.keys, held.partitions_U))

    def _pull(self, request: PullRequest, keys: Int64Array, partitions_U: Int32Array) -> PullReply:
        with self._serving.lock:
            status = self._serving.gate_call(request.generation, request.placement)
            if status is None:
                self._require_owned(keys, partitions_U)
                self._state.counts.count_pull(partitions_U)
            if status is None and request.batch is not None:
                status = self._fence(request.batch)
            known = request.dense_version
            if status is None and known is not None and not self._state.has_dense:
                status = Status.NOT_READY
            if status is not None:
                return PullReply(status, self._shown_generation(), 0, self._no_values(), None)
            try:
                values = self._read_rows(keys, create=request.create)
            except TrainingError as error:
                # Nothing here makes room: asking again would go on for ever.
                _LOGGER.error("a pull is refused: %s", error)
                raise Refusal("no_room", str(error)) from error
            self.counts.pulls += 1
            is_newer = known is not None and known < self._serving.version
            return PullReply(
                status=Status.DONE,
                generation=self._serving.generation,
                version=self._serving.version,
                values=values,
                dense=self._dense_values() if is_newer else None,
            )

    def _read_rows(self, keys: Int64Array, *, create: bool) -> Float32Array:
        if not create:
            return self._state.read_rows(keys, create=False)
        # That there is no room is found out before a row is made.
        with self._serving.all_or_end(TrainingError, RunFolderError):
            return self._state.read_rows(keys, create=True)

    def _end_of_round(self, request: PushRequest, status: Status) -> PushReply:
        """The answer to a push that waited."""
        with self._serving.lock:
            # The job may have been rolled back, or partitions moved, meanwhile.
            gate = self._serving.gate_call(request.generation, request.placement)
            return self._push_reply(request, gate or status)

    def _push_reply(self, request: PushRequest, status: Status) -> PushReply:
        """What a push comes to, with the values of now; the lock is held."""
        if status in {Status.DONE, Status.REPEATED}:
            return PushReply(
                status=status,
                generation=self._shown_generation(),
                version=self._serving.version,
                dense=self._dense_values(),
                fresh=self._state.read_rows(request.fresh_keys.copy(), create=False),
            )
        if status is Status.STALE:
            self.counts.stale += 1
        elif status not in {Status.NOT_READY, Status.MOVED}:
            self.counts.refused += 1
        return PushReply(
            status=status,
            generation=self._shown_generation(),
            version=0,
            dense=np.empty(0, np.float32),
            fresh=self._no_values(),
        )

    def _fence(self, batch: BatchId) -> Status | None:
        """Refuses what a later attempt has taken over; notes the attempt otherwise."""
        if self._epoch is not None:
            self._serving.limits.check_next_epoch(batch, self._epoch)
        self._epoch = max(batch.epoch, self._epoch or 0)
        if not self._state.applied.begin(batch):
            return Status.SUPERSEDED
        for other in list(self._waiting):
            same_task = (other.epoch, other.task) == (batch.epoch, batch.task)
            if other.epoch < batch.epoch or (same_task and other.attempt < batch.attempt):
                self._withdraw(other, Status.SUPERSEDED)
        return None

    def _admit(self, request: PushRequest, rows: RowGradients) -> Status | LaterReply:
        """Applies a push, or lets it wait for its round; the lock is held."""
        if not self._state.applied.missing_units(request.batch).any():
            self.counts.repeated += 1
            self._round = self._round.excusing(request.worker)
            self._close_complete_round()
            return Status.REPEATED
        waiting = self._waiting.get(request.batch)
        if waiting is None:
            admission = admit_push(
                self._rule, version=self._serving.version, pulled_version=request.version
            )
            factor = request.learning_rate_factor
            if admission.action == "apply":
                factor *= admission.weight
            gradients = ServerGradients(
                batch=request.batch,
                step=request.step,
                learning_rate_factor=factor,
                num_examples=request.num_examples,
                rows=rows,
                dense=request.dense,
            )
            if admission.action == "apply":
                self._apply([gradients])
                return Status.DONE
            until = self._serving.clock() + self._timeout_seconds
            waiting = self._waiting[request.batch] = _WaitingPush(
                gradients, admission.weight, until
            )
            self._round = self._round.joined_by(request.worker, request.batch)
        later = LaterReply()
        waiting.calls.append((request, later))
        self._close_complete_round()
        return later

    def _withdraw(self, batch: BatchId, status: Status) -> None:
        waiting = self._waiting.pop(batch)
        self._round = self._round.left_by(batch)
        self._answer(waiting, status)

    def _close_complete_round(self) -> None:
        if not self._round.is_complete(self._rule, self._active_workers):
            return
        members = list(self._waiting.values())
        self._apply(_weighed(members))
        self._waiting.clear()
        self._round = Round()
        for waiting in members:
            self._answer(waiting, Status.DONE)

    def _answer(self, waiting: _WaitingPush, status: Status) -> None:
        for request, later in waiting.calls:
            later.resume(partial(self._end_of_round, request, status))

    @contextmanager
    def _lock_with_room(self, num_rows: int = 0) -> Iterator[None]:
        """Holds the lock, once no update of what has come would wait for a cut's disk meanwhile.

        Args:
            num_rows: Rows of a push, beside those of the open round.
        """
        while True:
            with self._serving.lock:
                needed = num_rows + sum(
                    len(waiting.gradients.rows.keys) for waiting in self._waiting.values()
                )
                snapshot = self._serving.snapshot
                if snapshot is None or snapshot.has_room(needed):
                    yield
                    return
            snapshot.await_room(needed)

    def _apply(self, batches: list[ServerGradients]) -> None:
        with self._serving.all_or_end():
            self.counts.vanished_keys += self._state.apply(batches)
        self.counts.applied += len(batches)
        self._serving.version += 1

    def _divided(self, keys: Int64Array) -> tuple[Int64Array, Int32Array]:
        # A copy, because the kernels are compiled for arrays that may be written.
        keys = keys.copy()
        return keys, self._state.partitions_of(keys)

    def _require_owned(self, keys: Int64Array, partitions_U: Int32Array) -> None:
        if not self._state.owns(keys, partitions_U):
            raise Refusal("mismatch", f"a key is not one of server {self._serving.index}")

    def _dense_values(self) -> Float32Array:
        values = self._state.dense_values()
        self.counts.dense_bytes += values.nbytes
        return values

    def _no_values(self) -> Float32Array:
        return np.empty((0, self._state.width), np.float32)

    def _shown_generation(self) -> int:
        return max(self._serving.announced, 0)

    def withdraw_all(self, status: Status) -> None:
        """Ends the open round: its pushes get that answer; the lock is held."""
        for batch in list(self._waiting):
            self._withdraw(batch, status)

    def begin_generation(self) -> None:
        """Another generation has been announced; the lock is held."""
        self._epoch = None
        self.withdraw_all(Status.ROLLED_BACK)
        self._let_pull()
        self._pace = Pace(self._rule.max_staleness, self._timeout_seconds)


def _weighed(members: list[_WaitingPush]) -> list[ServerGradients]:
    """What members bring to a round, each by its weight.

    Weights are relative in the gradients, and their mean is a factor on the learning rate: rules
    that divide by the size of gradients, such as Adam, would take no notice of smaller ones.
    """
    num_examples = sum(member.gradients.num_examples for member in members)
    mean = sum(member.weight * member.gradients.num_examples for member in members) / num_examples
    return [_scaled(member.gradients, member.weight / mean, mean) for member in members]


def _scaled(gradients: ServerGradients, scale: float, factor: float) -> ServerGradients:
    if scale != 1.0:
        rows = replace(gradients.rows, sums=gradients.rows.sums * np.float32(scale))
        gradients = replace(gradients, rows=rows, dense=gradients.dense * np.float32(scale))
    return replace(gradients, learning_rate_factor=gradients.learning_rate_factor * factor)
