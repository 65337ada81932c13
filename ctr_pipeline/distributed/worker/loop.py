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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ctr_pipeline.distributed.coordination.messages import LeasedTask
from ctr_pipeline.distributed.coordination.spec import JobSpec
from ctr_pipeline.distributed.rpc.failures import PeerUnavailable
from ctr_pipeline.distributed.worker.exchanges import Pull, Push, PushOutcome
from ctr_pipeline.distributed.worker.patience import Leaving, Patience
from ctr_pipeline.distributed.worker.ps_calls import Moved, RolledBack, Superseded
from ctr_pipeline.distributed.worker.ps_client import PsClient
from ctr_pipeline.distributed.worker.session import WorkerSession
from ctr_pipeline.distributed.worker.session_state import Route
from ctr_pipeline.distributed.worker.step_numbers import StepNumbers
from ctr_pipeline.distributed.worker.task_reader import TaskBatch, TaskReader, Unreadable
from ctr_pipeline.distributed.worker.task_scores import TaskScores
from ctr_pipeline.errors import DataError, TrainingError
from ctr_pipeline.machine import is_refused_thread
from ctr_pipeline.tracebacks import render_traceback
from ctr_pipeline.training.batches import Prefetcher
from ctr_pipeline.training.compiled import CompiledModel
from ctr_pipeline.training.profile import Stage, StageClock, stage_lines
from ctr_pipeline.training.step import TrainingStep

_LOGGER = logging.getLogger(__name__)
_BATCHES_AHEAD = 3
_POLL_SECONDS = 0.2
_FLUSH_SECONDS = 10.0
_SPEED_SECONDS = 5.0

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class _Sent:
    """A batch whose gradients were handed in.

    Attributes:
        push: The first try.
        push_again: Makes another.
        seconds: Spent on it.
    """

    batch: TaskBatch
    push: Push
    push_again: Callable[[], Push]
    loss_sum: float
    seconds: float

    def mark(self, session: WorkerSession, outcome: PushOutcome) -> None:
        """Tells the master that all servers have it."""
        session.mark_batch(
            self.batch.task,
            self.batch.number,
            loss_sum=self.loss_sum,
            repeated=outcome.repeated,
            finished=self.batch.is_last,
            seconds=self.seconds,
        )


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
        client: PsClient,
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
        self._patience = Patience(session, sleep)
        train = spec.split("train")
        if train is None:
            raise DataError("the job has no split 'train'")
        self._numbers = StepNumbers(
            train.num_rows, spec.course.batch_size, spec.course.seed, spec.course.shuffle
        )
        self._reader = TaskReader(spec, session, client, self._numbers)
        self._scores: TaskScores | None = None
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
                with Prefetcher(self._reader.batches(), num_ahead=_BATCHES_AHEAD) as ahead:
                    self.laps.start()
                    try:
                        self._work(ahead)
                    finally:
                        # Leaving the context waits for its thread, which may wait for a task.
                        self._reader.end()
                for line in stage_lines(self.laps.stages()):
                    _LOGGER.info("%s", line)
            self._session.raise_refusal()
            if not self._session.flush(_FLUSH_SECONDS):
                _LOGGER.warning("The last progress could not be reported to the master")
        finally:
            self._reader.close()

    def _work(self, ahead: "Prefetcher[TaskBatch | Unreadable]") -> None:
        # The batch to be finished, and the one after it.
        begun: list[TaskBatch] = []
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
            except Leaving:
                return
        with contextlib.suppress(RolledBack, Leaving):
            self._settle()

    def _pause(self, begun: list[TaskBatch]) -> None:
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
            self._patience.generation = route.generation
            self._scores = self._sent = None
            try:
                self._patience.until_done(
                    lambda: self._client.init_dense(self._compiled.initial_parameters())
                )
            except RolledBack as error:
                generation = error.generation
            except Leaving:
                return False
            else:
                return True

    def _admit(self, item: TaskBatch | Unreadable | None, begun: list[TaskBatch]) -> None:
        """Begins a batch, if there is one and it is still ours."""
        if isinstance(item, Unreadable):
            self._give_up(item.task, item.error)
        elif item is not None and self._session.holds(item.task):
            begun.append(item)
            # The push in between brings the dense values of the next batch.
            self._start_pull(item, dense=not (item.trains and begun[0].trains and len(begun) > 1))

    def _start_pull(self, batch: TaskBatch, *, dense: bool = True) -> None:
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

    def _finish(self, batch: TaskBatch, following: TaskBatch | None = None) -> None:
        self._patience.require_generation()
        if not self._session.holds(batch.task):
            return
        self._batch_began = self._clock()
        try:
            if batch.trains:
                self._train(batch, following)
            else:
                self._score(batch)
        except (RolledBack, Leaving, MemoryError):
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

    def _train(self, batch: TaskBatch, following: TaskBatch | None) -> None:
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
                raise Leaving
            if not self._session.holds(batch.task):
                return
            self._start_pull(batch)
        sent.mark(self._session, outcome)

    def _compute(self, batch: TaskBatch, following: TaskBatch | None) -> _Sent:
        """Computes gradients and hands them in, once those of the batch before are through."""
        batch_id = batch.batch_id
        if batch_id is None:
            raise AssertionError("only batches of training tasks are trained")
        step = self._numbers.step_of(batch.position)
        schedule = self._spec.course.learning_rate_schedule
        factor = schedule.factor_of_step(step) * batch.task.learning_rate_factor
        self.laps.lap(Stage.OTHER)
        pull, parameters_P = self._await_values(batch)
        self.laps.lap(Stage.AWAIT_VALUES)
        linear, embeddings = self._client.gather_parts(pull, 1)
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

        def push() -> Push:
            return self._client.start_push(
                pull,
                (gradients.linear_BF1, gradients.embeddings_BFD),
                gradients.parameters_P,
                batch_id,
                step=step,
                learning_rate_factor=factor,
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
                sent.mark(self._session, outcome)
            elif self._session.holds(sent.batch.task):
                # Partitions moved under it.
                self._train_anew(sent.batch)

    def _train_anew(self, batch: TaskBatch) -> None:
        """Trains a batch again that not all servers have, to the end."""
        outcome = None
        while outcome is None or outcome.verdict != "applied":
            if self._session.is_over:
                raise Leaving
            if not self._session.holds(batch.task):
                return
            self._start_pull(batch)
            sent = self._compute(batch, None)
            outcome = self._outcome_of(sent)
        sent.mark(self._session, outcome)

    def _outcome_of(self, sent: _Sent) -> PushOutcome:
        """What became of a push; one that found no server is made again."""
        tries = itertools.chain((lambda: sent.push,), itertools.repeat(sent.push_again))
        return self._patience.until_done(lambda: next(tries)().wait())

    def _let_go(self, task: LeasedTask) -> None:
        _LOGGER.warning("Another worker has %s now", task.key)
        self._session.lose(task)

    def _score(self, batch: TaskBatch) -> None:
        self._settle()
        if self._scores is None or self._scores.task is not batch.task:
            self._scores = TaskScores(batch.task)
        scores = self._scores
        pull, parameters_P = self._await_values(batch)
        linear, embeddings = self._client.gather_parts(pull, 1)
        logits = self._compiled.logits(
            parameters_P=parameters_P,
            linear_BF1=linear,
            embeddings_BFD=embeddings,
            numbers_BN=batch.rows.numbers_BN,
        )[: batch.num_valid]
        scores.add(batch.rows, logits)
        scores.seconds += self._lap()
        self.laps.lap(Stage.SCORE)
        if batch.is_last:
            summary = scores.finish(self._scores_root)
            self._session.finish_scores(batch.task, summary, scores.seconds)
            self._scores = None

    def _await_values(self, batch: TaskBatch) -> tuple[Pull, Floats]:
        """Waits for a pull, and gives the dense values; one that failed is asked again."""

        def wait() -> tuple[Pull, Floats] | None:
            if batch.pull is None:
                batch.pull = self._client.start_pull(
                    batch.prepared, create=batch.trains, batch=batch.batch_id
                )
            try:
                return batch.pull, self._client.dense(batch.pull)
            except PeerUnavailable:
                batch.pull = None
                raise
            except Moved:
                batch.pull = None
                return None

        while (values := self._patience.until_done(wait)) is None:
            pass
        return values

    def _give_up(self, task: LeasedTask, error: Exception) -> None:
        """Tells the master why a task cannot be done, then lets the error end the worker."""
        _LOGGER.error("%s cannot be done", task.key, exc_info=error)
        with contextlib.suppress(RolledBack, Leaving):
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
