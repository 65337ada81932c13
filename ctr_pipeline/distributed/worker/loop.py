"""The pipeline of batches: read ahead, pull ahead, step, push.

While a batch is computed, the values of the next one are already on their way. What this batch's
push changes of them comes back with its reply, so a worker alone trains exactly as one process
does. Where updates are asynchronous nobody waits for that reply: the push of a batch travels while
the next one is computed, with values that know of all of this worker's pushes but that one. Nothing
here keeps a parameter: whatever fails, a batch is pulled and computed again.

Axes: B batch, F fields, P dense parameters, R rows of a score task.
"""

import contextlib
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ctr_pipeline import durable
from ctr_pipeline.dataset.encoded import EncodedReader, EncodedRows
from ctr_pipeline.distributed.coordination.messages import LeasedTask, ScoreSummary
from ctr_pipeline.distributed.coordination.rounds import BatchId
from ctr_pipeline.distributed.coordination.spec import JobSpec
from ctr_pipeline.distributed.rpc.backoff import delays
from ctr_pipeline.distributed.rpc.failures import PeerUnavailable
from ctr_pipeline.distributed.worker.exchanges import PushOutcome
from ctr_pipeline.distributed.worker.ps_calls import Moved, RolledBack, Superseded
from ctr_pipeline.distributed.worker.session import Route, WorkerSession
from ctr_pipeline.distributed.worker.step_numbers import StepNumbers
from ctr_pipeline.errors import DataError, TrainingError
from ctr_pipeline.evaluation.histogram import ScoreHistogram
from ctr_pipeline.machine import is_refused_thread
from ctr_pipeline.tracebacks import render_traceback
from ctr_pipeline.training.batches import Position, Prefetcher, pad
from ctr_pipeline.training.compiled import CompiledModel
from ctr_pipeline.training.profile import Stage, StageClock, stage_lines
from ctr_pipeline.training.step import TrainingStep

_LOGGER = logging.getLogger(__name__)
_BATCHES_AHEAD = 3
_POLL_SECONDS = 0.2
_FLUSH_SECONDS = 10.0
_SPEED_SECONDS = 5.0

Floats = NDArray[np.float32]
T = TypeVar("T")


class PendingPush(Protocol):
    """Gradients that are on their way."""

    def wait(self) -> PushOutcome:
        """What became of them."""


class ParameterClient(Protocol):
    """The parameter servers as the loop sees them; `PsClient` is one.

    Calls raise `RolledBack`, `Moved`, `Superseded` and `PeerUnavailable`.
    """

    def route(self, generation: int, addresses: Sequence[str]) -> None:
        """Where the servers are from now on."""

    def init_dense(self, values: Floats) -> None:
        """Gives the servers initial dense parameters, if they have none."""

    def prepare(self, ids_BF: NDArray[np.int32], num_valid: int) -> Any:
        """Makes ids unique; may run in another thread."""

    def start_pull(
        self, prepared: Any, *, create: bool, batch: BatchId | None, dense: bool, after: Any | None
    ) -> Any:
        """Asks for the values of a batch, once a push is through; and for newer dense ones."""

    def gather_parts(self, pull: Any, num_leading: int) -> tuple[Floats, Floats]:
        """Values by place, [B, F, A] and [B, F, D]."""

    def dense(self, pull: Any) -> Floats:
        """Dense parameters, the newest known."""

    def start_push(
        self,
        pull: Any,
        gradients: tuple[Floats, Floats],
        dense_gradient: Floats,
        batch: BatchId,
        *,
        step: int,
        learning_rate_factor: float,
        num_examples: int,
        refresh: Any | None,
    ) -> PendingPush:
        """Hands in gradients, and brings the values of the pull ahead up to date."""


@dataclass
class _Batch:
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
    prepared: Any
    pull: Any = None

    @property
    def trains(self) -> bool:
        return self.task.key.kind == "train"

    @property
    def batch_id(self) -> BatchId | None:
        if not self.trains:
            return None
        key = self.task.key
        return BatchId(key.epoch, key.task, self.task.attempt, self.number)

    @property
    def position(self) -> Position:
        return Position(self.task.key.epoch, self.task.key.task, self.number)


@dataclass(frozen=True)
class _Sent:
    """A batch whose gradients were handed in.

    Attributes:
        push: The first try.
        push_again: Makes another.
        seconds: Spent on it.
    """

    batch: _Batch
    push: PendingPush
    push_again: Callable[[], PendingPush]
    loss_sum: float
    seconds: float


@dataclass(frozen=True)
class _Unreadable:
    """A task whose rows could not be read."""

    task: LeasedTask
    error: Exception


@dataclass
class _Scores:
    """What a score task has found so far."""

    task: LeasedTask
    histogram: ScoreHistogram = field(default_factory=ScoreHistogram.empty)
    logits: list[Floats] = field(default_factory=list)
    seconds: float = 0.0


class _Leaving(Exception):  # noqa: N818  an event
    """The worker is to leave while it waits for a parameter server."""


class WorkerLoop:
    """Works on tasks until the session is over.

    Args:
        spec: The job.
        session: The master's side.
        client: The parameter servers' side.
        compiled: The model.
        step: Its arithmetic.
        scores_root: Where relative names of score files begin.
        overlap_pushes: Compute a batch before the push of the last one is answered.
        clock: Seconds, monotonic.
        sleep: Waits some seconds.

    Attributes:
        laps: Where the time of its thread goes.
    """

    def __init__(
        self,
        *,
        spec: JobSpec,
        session: WorkerSession,
        client: ParameterClient,
        compiled: CompiledModel,
        step: TrainingStep,
        scores_root: Path,
        overlap_pushes: bool,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._spec = spec
        self._session = session
        self._client = client
        self._compiled = compiled
        self._step = step
        self._scores_root = scores_root
        self._overlap_pushes = overlap_pushes
        self._clock = clock
        self._sleep = sleep
        self._generation = 0
        self._has_ended = False
        self._readers: dict[str, EncodedReader] = {}
        train = self._split("train")
        self._numbers = StepNumbers(
            train.num_rows, spec.course.batch_size, spec.course.seed, spec.course.shuffle
        )
        self._scores: _Scores | None = None
        # The batch whose push nobody has waited for yet.
        self._sent: _Sent | None = None
        self._speed = Speed(clock)
        self._batch_began = clock()
        # Of its own clock: a lap must not be what a test's clock advances by.
        self.laps = StageClock()

    @property
    def samples_per_second(self) -> float:
        """Rows trained or scored, over the last seconds; may be asked from any thread."""
        return self._speed.per_second()

    def run(self) -> None:
        """Works until the session is over; progress is reported when this returns.

        Raises:
            Exception: A task cannot be done, for instance because of the model; the master knows.
            CtrPipelineError: The master refuses us.
        """
        try:
            # At once, also while a call is under way: it may be waiting for who is gone.
            self._session.follow_route(self._reroute)
            if self._join_generation(0):
                with Prefetcher(self._read_ahead(), num_ahead=_BATCHES_AHEAD) as ahead:
                    self.laps.start()
                    try:
                        self._work(ahead)
                    finally:
                        # Leaving the context waits for its thread, which may wait for a task.
                        self._has_ended = True
                for line in stage_lines(self.laps.stages()):
                    _LOGGER.info("%s", line)
            self._session.raise_refusal()
            if not self._session.flush(_FLUSH_SECONDS):
                _LOGGER.warning("The last progress could not be reported to the master")
        finally:
            for reader in self._readers.values():
                reader.close()

    def _work(self, ahead: "Prefetcher[_Batch | _Unreadable]") -> None:
        # The batch to be finished, and the one after it.
        begun: list[_Batch] = []
        while not self._session.is_over:
            try:
                if self._session.is_pausing:
                    self._pause(begun)
                    continue
                if not begun:
                    item = ahead.take(0.0 if self._sent else _POLL_SECONDS)
                    self.laps.lap(Stage.AWAIT_BATCH)
                    if item is None:
                        # The master is to know of the last batch before there is another one.
                        self._settle()
                        self.laps.lap(Stage.AWAIT_UPDATES)
                    self._admit(item, begun)
                    continue
                if len(begun) == 1:
                    self._admit(ahead.take(0.0), begun)
                self._finish(*begun)
                begun.pop(0)
            except RolledBack as error:
                if not self._join_generation(error.generation):
                    return
                # Tasks of the new generation may have been read before we went along.
                begun = [batch for batch in begun if self._session.holds(batch.task)]
                for batch in begun:
                    batch.pull = None
            except _Leaving:
                return
        with contextlib.suppress(RolledBack, _Leaving):
            self._settle()

    def _pause(self, begun: list[_Batch]) -> None:
        """Hands everything back; a batch whose gradients were handed in is finished first."""
        self._settle()
        begun.clear()
        self._scores = None
        self._session.pause(_POLL_SECONDS)

    def _reroute(self, route: Route) -> None:
        servers = self._spec.num_parameter_servers
        self._client.route(route.generation, route.addresses or ("",) * servers)

    def _join_generation(self, generation: int) -> bool:
        """Goes along with a rollback, or begins; False if the worker is to leave instead."""
        while True:
            self._session.rolled_back(generation)
            route = self._session.wait_route(generation)
            if route is None:
                return False
            self._generation = route.generation
            self._scores = self._sent = None
            try:
                self._trying(lambda: self._client.init_dense(self._compiled.initial_parameters()))
            except RolledBack as error:
                generation = error.generation
            except _Leaving:
                return False
            else:
                return True

    def _admit(self, item: _Batch | _Unreadable | None, begun: list[_Batch]) -> None:
        """Begins a batch, if there is one and it is still ours."""
        if isinstance(item, _Unreadable):
            self._give_up(item.task, item.error)
        elif item is not None and self._session.holds(item.task):
            begun.append(item)
            # The push in between brings the dense values of the next batch.
            self._start_pull(item, dense=not (item.trains and begun[0].trains and len(begun) > 1))

    def _start_pull(self, batch: _Batch, *, dense: bool = True) -> None:
        """Asks for the values of a batch, if somebody is there to be asked."""
        batch.pull = None
        with contextlib.suppress(PeerUnavailable):
            batch.pull = self._client.start_pull(
                batch.prepared,
                create=batch.trains,
                batch=batch.batch_id,
                dense=dense,
                after=self._sent.push if self._sent else None,
            )

    def _finish(self, batch: _Batch, following: _Batch | None = None) -> None:
        if self._session.route.generation > self._generation:
            raise RolledBack(self._session.route.generation)
        if not self._session.holds(batch.task):
            return
        self._batch_began = self._clock()
        try:
            if batch.trains:
                self._train(batch, following)
            else:
                self._score(batch)
        except (RolledBack, _Leaving, MemoryError):
            # Not the task's fault, whatever ends us.
            raise
        except Superseded:
            self._let_go(batch.task)
            return
        except Exception as error:
            # The master is to know of it first, unless it is not the task's fault.
            if is_refused_thread(error):
                raise
            self._give_up(batch.task, error)
        self._speed.add(batch.num_valid)

    def _train(self, batch: _Batch, following: _Batch | None) -> None:
        while True:
            sent = self._compute(batch, following)
            if self._overlap_pushes:
                self._sent = sent
                return
            outcome = self._outcome_of(sent)
            self.laps.lap(Stage.AWAIT_UPDATES)
            if outcome.verdict == "applied":
                break
            # Others were faster: their updates are to be known first.
            if self._session.is_over:
                raise _Leaving
            if not self._session.holds(batch.task):
                return
            self._start_pull(batch)
        self._mark(sent, outcome)

    def _compute(self, batch: _Batch, following: _Batch | None) -> _Sent:
        """Computes gradients and hands them in, once those of the batch before are through."""
        batch_id = batch.batch_id
        if batch_id is None:
            raise AssertionError("only batches of training tasks are trained")
        step = self._numbers.step_of(batch.position)
        self.laps.lap(Stage.OTHER)
        parameters_P = self._await_values(batch)
        self.laps.lap(Stage.AWAIT_VALUES)
        linear, embeddings = self._client.gather_parts(batch.pull, 1)
        self.laps.lap(Stage.GATHER)
        gradients = self._step.compute(
            batch.rows,
            batch.num_valid,
            position=batch.position,
            step=step,
            parameters_P=parameters_P,
            linear_BF1=linear,
            embeddings_BFD=embeddings,
        )
        self.laps.lap(Stage.TENSORFLOW)
        self._settle()
        self.laps.lap(Stage.AWAIT_UPDATES)
        # With a push on its way, the pull ahead waits for it and needs no refreshing.
        refresh = None if following is None or self._overlap_pushes else following.pull

        def push() -> PendingPush:
            return self._client.start_push(
                batch.pull,
                (gradients.linear_BF1, gradients.embeddings_BFD),
                gradients.parameters_P,
                batch_id,
                step=step,
                learning_rate_factor=gradients.learning_rate_factor,
                num_examples=batch.num_valid,
                refresh=refresh,
            )

        sent = _Sent(batch, push(), push, gradients.loss_sum, self._lap())
        self.laps.lap(Stage.SEND)
        return sent

    def _settle(self) -> None:
        """Waits for the push that is on its way, if there is one, and marks its batch."""
        sent, self._sent = self._sent, None
        if sent is None:
            return
        try:
            outcome = self._outcome_of(sent)
        except Superseded:
            self._let_go(sent.batch.task)
        else:
            if outcome.verdict == "applied":
                self._mark(sent, outcome)
            elif self._session.holds(sent.batch.task):
                # Partitions moved under it.
                self._train_anew(sent.batch)

    def _train_anew(self, batch: _Batch) -> None:
        """Trains a batch again that not all servers have, to the end."""
        outcome = None
        while outcome is None or outcome.verdict != "applied":
            if self._session.is_over:
                raise _Leaving
            if not self._session.holds(batch.task):
                return
            self._start_pull(batch)
            sent = self._compute(batch, None)
            outcome = self._outcome_of(sent)
        self._mark(sent, outcome)

    def _outcome_of(self, sent: _Sent) -> PushOutcome:
        """What became of a push; one that found no server is made again."""
        tries = itertools.chain((lambda: sent.push,), itertools.repeat(sent.push_again))
        return self._trying(lambda: next(tries)().wait())

    def _mark(self, sent: _Sent, outcome: PushOutcome) -> None:
        self._session.mark_batch(
            sent.batch.task,
            sent.batch.number,
            loss_sum=sent.loss_sum,
            repeated=outcome.repeated,
            finished=sent.batch.is_last,
            seconds=sent.seconds,
        )

    def _let_go(self, task: LeasedTask) -> None:
        _LOGGER.warning("Another worker has %s now", task.key)
        self._session.lose(task)

    def _score(self, batch: _Batch) -> None:
        self._settle()
        if self._scores is None or self._scores.task is not batch.task:
            self._scores = _Scores(batch.task)
        scores = self._scores
        parameters_P = self._await_values(batch)
        linear, embeddings = self._client.gather_parts(batch.pull, 1)
        logits = self._compiled.logits(
            parameters_P=parameters_P,
            linear_BF1=linear,
            embeddings_BFD=embeddings,
            numbers_BN=batch.rows.numbers_BN,
        )[: batch.num_valid]
        split = batch.task.key.split
        place = "validation rows" if split == "valid" else f"{split} rows"
        labels, weights = batch.rows.labels_B[: batch.num_valid], batch.rows.weights_B
        if weights is not None:
            weights = weights[: batch.num_valid]
        scores.histogram += ScoreHistogram.of(labels, logits, weights=weights, place=place)
        scores.logits.append(logits)
        scores.seconds += self._lap()
        self.laps.lap(Stage.SCORE)
        if batch.is_last:
            self._keep_scores(batch.task, np.concatenate(scores.logits))
            self._session.finish_scores(batch.task, summary_of(scores.histogram), scores.seconds)
            self._scores = None

    def _keep_scores(self, task: LeasedTask, logits: Floats) -> None:
        if not task.scores_file:
            return
        path = self._scores_root / task.scores_file
        path.parent.mkdir(parents=True, exist_ok=True)
        with durable.durable_write(path) as file:
            file.write(np.ascontiguousarray(logits, "<f4").data)

    def _await_values(self, batch: _Batch) -> Floats:
        """Waits for a pull, and gives the dense values; one that failed is asked again."""

        def wait() -> Floats | None:
            if batch.pull is None:
                batch.pull = self._client.start_pull(
                    batch.prepared,
                    create=batch.trains,
                    batch=batch.batch_id,
                    dense=True,
                    after=None,
                )
            try:
                batch.pull.wait()
                return self._client.dense(batch.pull)
            except PeerUnavailable:
                batch.pull = None
                raise
            except Moved:
                batch.pull = None
                return None

        while (values := self._trying(wait)) is None:
            pass
        return values

    def _trying(self, operation: Callable[[], T]) -> T:
        """Does it, again and again while a parameter server does not answer.

        Raises:
            RolledBack: The job is in another generation.
            _Leaving: The worker is to leave.
        """
        pauses: Iterator[float] | None = None
        while True:
            try:
                return operation()
            except PeerUnavailable as error:
                if pauses is None:
                    _LOGGER.warning("A parameter server does not answer: %s", error)
                    pauses = delays(0.05, 2.0, 1.0, threading.get_ident())
            self._session.ask_again()
            self._sleep(next(pauses))
            route = self._session.route
            if route.generation > self._generation:
                raise RolledBack(route.generation)
            if self._session.is_over:
                raise _Leaving

    def _give_up(self, task: LeasedTask, error: Exception) -> None:
        """Tells the master why a task cannot be done, then lets the error end the worker."""
        _LOGGER.error("%s cannot be done", task.key, exc_info=error)
        with contextlib.suppress(RolledBack, _Leaving):
            self._settle()
        # Parameters that have diverged stay so, and would be in the next checkpoint.
        is_final = isinstance(error, TrainingError)
        self._session.fail(task, render_traceback(error), is_final=is_final)
        if not self._session.flush(_FLUSH_SECONDS):
            _LOGGER.warning("The failure could not be reported to the master")
        raise error

    def _lap(self) -> float:
        """Seconds spent on this batch; what it waited for a task is none of them."""
        return self._clock() - self._batch_began

    # What the thread that reads ahead does.

    def _read_ahead(self) -> Iterator[_Batch | _Unreadable]:
        while not self._session.is_over and not self._has_ended:
            task = self._session.wait_task(_POLL_SECONDS)
            if task is None:
                continue
            try:
                yield from self._batches_of(task)
            except Exception as error:  # noqa: BLE001  raised where the task is worked on
                yield _Unreadable(task, error)

    def _batches_of(self, task: LeasedTask) -> Iterator[_Batch]:
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
            yield _Batch(
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

    def _split(self, name: str) -> Any:
        split = self._spec.split(name)
        if split is None:
            raise DataError(f"the job has no split '{name}'")
        return split


class Speed:
    """Rows a second over the last seconds; safe for several threads.

    Args:
        clock: Seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._recent: deque[tuple[float, int]] = deque()
        self._began = clock()

    def add(self, num_rows: int) -> None:
        """Some rows are done."""
        with self._lock:
            now = self._clock()
            self._recent.append((now, num_rows))
            self._forget(now)

    def per_second(self) -> float:
        """Rows a second."""
        with self._lock:
            now = self._clock()
            self._forget(now)
            seconds = min(_SPEED_SECONDS, max(now - self._began, 1e-3))
            return sum(num_rows for _, num_rows in self._recent) / seconds

    def _forget(self, now: float) -> None:
        while self._recent and self._recent[0][0] < now - _SPEED_SECONDS:
            self._recent.popleft()


def summary_of(histogram: ScoreHistogram) -> ScoreSummary:
    """The histogram as a message."""
    return ScoreSummary(
        positives=histogram.sparse_positives,
        negatives=histogram.sparse_negatives,
        loss_sum=histogram.loss_sum,
        probability_sum=histogram.probability_sum,
    )
