"""The training loop of one of several replicas: a step trains a batch of each, and all apply it.

Replicas begin with the same parameters and apply the same totals, so they stay equal to the last
bit. The first of them writes checkpoints, history and events. A world of one trains exactly as
`Trainer` does, if a step is one batch. The order of the batches does not depend on the replicas: in
a world of N, a step trains the next N batches of the epoch, or a fixed number of them, which the
replicas share.
"""

import io
import json
import struct
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import IO, Any

from ctr_pipeline import interruption
from ctr_pipeline.config.models import TrainConfig
from ctr_pipeline.dataset.order import BatchesLeft, EpochOrder
from ctr_pipeline.embeddings.dense import DenseParameters
from ctr_pipeline.errors import CheckpointError
from ctr_pipeline.progress import ProgressTask
from ctr_pipeline.specs.learning_rate import scale_of
from ctr_pipeline.storage.commit_log import FencedError
from ctr_pipeline.training.batches import EVERY_BATCH, Batch, Turn, position_after
from ctr_pipeline.training.checkpoint import Checkpoint, Checkpoints
from ctr_pipeline.training.compiled import CompiledModel
from ctr_pipeline.training.events import EventLog
from ctr_pipeline.training.history import WorldRecord
from ctr_pipeline.training.profile import Stage
from ctr_pipeline.training.replicas import (
    Joined,
    Pace,
    Replicas,
    ReplicatedRows,
    ServedRows,
    Share,
    Total,
    WorldChanged,
    describe_held,
)
from ctr_pipeline.training.step import TrainingStep, clip_norm
from ctr_pipeline.training.trainer import Trainer, TrainerFiles, TrainingState

_LENGTH = struct.Struct("<Q")
_NOTE_SECONDS = 0.5
_NOTICE_SECONDS = 1.0
"""Within which a replica learns that its world is over."""


class ReplicaTrainer(Trainer):
    """Trains one replica, together with those that `replicas` finds.

    Attributes:
        rows_trained_here: Rows of the batches of this replica so far, in steps that were made.

    Args:
        config: The `train:` section.
        compiled: The model.
        embeddings: This replica's rows, or those that servers have for all replicas.
        dense: Its dense parameters.
        files: Files of the run, which the first replica alone writes.
        replicas: The others.
        fixed_batches: Batches of a step, however many replicas there are; None: one for each.
        on_progress: Called by the first replica now and then, and after each epoch.
        clock: Monotonic clock, seconds.
        others: As for `Trainer`.
    """

    def __init__(
        self,
        *,
        config: TrainConfig,
        compiled: CompiledModel,
        embeddings: ReplicatedRows | ServedRows,
        dense: DenseParameters,
        files: TrainerFiles,
        replicas: Replicas,
        fixed_batches: int | None = None,
        on_progress: Callable[[TrainingState], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        **others: Any,
    ) -> None:
        super().__init__(
            config=config,
            compiled=compiled,
            embeddings=embeddings,
            dense=dense,
            files=files,
            clock=clock,
            **others,
        )
        self._rows = None if isinstance(embeddings, ServedRows) else embeddings
        self._served = embeddings if isinstance(embeddings, ServedRows) else None
        self._initial: tuple[TrainingState, bytes] | None = None
        self.rows_trained_here = 0
        self._replicas = replicas
        self._fixed_batches = fixed_batches
        self._on_progress = on_progress
        self._next_note = 0.0
        # The norm is bounded once the gradients of all are added.
        self._unbounded = TrainingStep(
            config.model_copy(update={"gradient_clip_norm": None}), compiled
        )
        self._holds_parameters = False
        self._world_turn = EVERY_BATCH
        self._steps_repeated = 0
        self._events: EventLog | None = None

    @property
    def _turn(self) -> Turn:
        return self._world_turn

    @property
    def _writes_files(self) -> bool:
        return self._world_turn.rank == 0

    def _load_rows(self, checkpoint: Checkpoint) -> None:
        # Servers have read theirs themselves, see `ServedRows.restore`.
        if self._served is None:
            super()._load_rows(checkpoint)

    def scalars(self, step: int, **values: float) -> None:
        """Writes events, if this replica is the first."""
        if self._writes_files:
            self._events = self._events or EventLog(self._files.events)
            self._events.scalars(step, **values)

    def fit(self) -> TrainingState:
        """Trains until training has finished everywhere; the parameters are those of the end.

        Raises:
            TrainingError: The loss is not finite.
            Interrupted: A signal asked to stop; the first replica has written a checkpoint.
        """
        self._stages.start()
        try:
            with interruption.deferred():
                while not interruption.requested():
                    try:
                        self._join()
                        if self._train_on():
                            break
                    except WorldChanged:
                        if interruption.requested():
                            with suppress(WorldChanged):
                                self._save(None)
        finally:
            if self._events is not None:
                self._events.close()
        return self.state

    def _train_on(self) -> bool:
        """Trains in the current world; False if a signal asked to stop before the end."""
        while True:
            if self._is_between_epochs():
                if self._awaits_validation:
                    self._end_epoch(self.state.position.epoch - 1, self)
                # The first replica has saved the epoch: nobody goes on before that.
                self._replicas.meet(f"step-{self.state.step}")
            if self.state.finished:
                return True
            self._run_epoch(self)
            self._report_progress()
            if interruption.requested():
                return False

    def _join(self) -> None:
        """Joins the next world, with the parameters of those that are further than this replica."""
        began, steps_before = self._clock(), self.state.step
        joined = self._replicas.join(self._describe_held(), self._save_state)
        # Another replica may have saved meanwhile; who saves now is decided anew.
        self.checkpoints = Checkpoints(self._files.checkpoints)
        if joined.is_first:
            self._begin(joined)
        elif joined.state is not None:
            self._load_state(joined.state)
        self._steps_repeated += max(0, steps_before - self.state.step)
        if self._served is not None:
            # The servers forget other steps than the one of all members.
            self._replicas.meet("enter")
            self._served.enter(joined.version, joined.size)
        self._holds_parameters = True
        step_batches = self._fixed_batches or joined.size
        self._world_turn = Turn(joined.rank, joined.size, step_batches)
        worlds, place = self.state.worlds, (joined.version, self.state.step)
        # The rendezvous of a run that is resumed counts versions anew.
        if not worlds or (worlds[-1].version, worlds[-1].step) != place:
            seconds = self._clock() - began
            worlds.append(
                WorldRecord(
                    version=joined.version,
                    size=joined.size,
                    step_rows=step_batches * self._config.batch_size,
                    step=self.state.step,
                    seconds=seconds,
                    steps_repeated=self._steps_repeated,
                )
            )
        self._steps_repeated = 0
        self._progress.log(
            f"World {joined.version}: {joined.size} replicas, this one has rank {joined.rank}, "
            f"from step {self.state.step:,}"
        )
        step = self.state.step
        is_epoch = step and self._is_between_epochs() and not self._awaits_validation
        if is_epoch and self._writes_files and step not in self.checkpoints.steps():
            # The one that was to save this epoch may be the one that was lost.
            self._save(None)

    def _describe_held(self) -> str:
        """What this replica has to go on from, for comparison; empty: nothing."""
        served = self._served
        if served is not None:
            if self._initial is None:
                file = io.BytesIO()
                self._dense.save(file)
                fresh = replace(self.state, history=[], worlds=[])
                self._initial = fresh, file.getvalue()
            served.leave()
            if not served.is_held():
                return ""
        if not self._holds_parameters:
            return ""
        held = describe_held(
            self.state.step,
            zlib.crc32(self._dense.values.tobytes()),
            awaits_validation=self._awaits_validation,
        )
        return held if served is None else f"{served.position} {held}"

    def _begin(self, joined: Joined) -> None:
        """Begins from the newest checkpoint, as all do of whom nobody has anything to go on from.

        Raises:
            WorldChanged: Another replica has found another checkpoint.
        """
        checkpoint = self.checkpoints.load_newest(self._progress.log)
        worlds = self.state.worlds
        if self._served is not None:
            step = 0 if checkpoint is None else checkpoint.step
            if joined.rank == 0:
                self._served.restore(joined.version, step)
            met = self._replicas.meet("restored", f"{step} {self._served.position}")
            if any(int(one.split()[0]) != step for one in met):
                raise WorldChanged("another checkpoint was written meanwhile")
            self._served.adopt(met[0].split()[1])
        if checkpoint is not None:
            self._require_same_rows(TrainingState.from_json(checkpoint.state))
            self.restore(checkpoint)
            self.checkpoints.go_on_from(checkpoint)
        elif self._initial is not None:
            # Servers of rows may have been lost before there was a checkpoint.
            state, dense = self._initial
            self.state = replace(state, history=[], worlds=[])
            self._dense.load(io.BytesIO(dense))
        if self._holds_parameters:
            self.state.worlds = worlds

    def _require_same_rows(self, other: TrainingState) -> None:
        if other.rows_fingerprint != self.state.rows_fingerprint:
            raise CheckpointError("the data changed since the model was trained")

    def _steps(self, ahead: Iterable[Batch], order: EpochOrder) -> Iterator[int]:
        own, turn = iter(ahead), self._world_turn
        left = BatchesLeft(order, self.state.done)
        while self.state.position.epoch == order.epoch:
            place, before = self.state.position, self.state.epoch_rows
            num_batches, _ = left.after(place.task, place.batch, turn.step_batches)
            batches = list(islice(own, len(turn.of_step(num_batches))))
            self._lap(Stage.AWAIT_BATCH)
            self._replicas.require_unchanged()
            try:
                if turn.step_batches == 1:
                    self._step(batches[0])
                else:
                    self._step_together(batches, num_batches, left)
            except WorldChanged:
                self._steps_repeated += 1
                raise
            self.rows_trained_here += sum(batch.num_valid for batch in batches)
            self._report_progress_in_time()
            yield self.state.epoch_rows - before

    def _step_together(self, batches: Sequence[Batch], num_batches: int, left: BatchesLeft) -> None:
        """Makes a step of the world.

        Args:
            batches: Batches that are trained here; near the end of an epoch there may be none.
            num_batches: How many batches all replicas train in the step.
            left: What is to be trained of the epoch.
        """
        state = self.state
        shares = []
        for batch in batches:
            gradients = self._compute(batch, self._unbounded)
            parts = (gradients.linear_BF1, gradients.embeddings_BFD)
            shares.append(
                Share(
                    batch.num_valid,
                    gradients.loss_sum,
                    gradients.parameters_P,
                    batch.prepared,
                    parts,
                )
            )
        factor = self._learning_rate_factor(state.step + 1, state.position.epoch)
        factor *= scale_of(self._config.scale_learning_rate, num_batches)
        of_all_runs = state.earlier_steps + state.step + 1
        total = self._replicas.add(Pace(state.step + 1, of_all_runs, factor), shares)
        self._lap(Stage.AWAIT_UPDATES)
        self._dense.update(
            clip_norm(total.parameters_P, self._config.gradient_clip_norm),
            step=of_all_runs,
            learning_rate_factor=factor,
        )
        self._lap(Stage.DENSE_UPDATE)
        if self._rows is not None:
            self._update_rows(self._rows, total, of_all_runs, factor)
        self._lap(Stage.SPARSE_UPDATE)
        self._count_step(
            position_after(left, state.position, num_batches),
            loss_sum=total.loss_sum,
            num_rows=total.num_examples,
            factor=factor,
        )

    def _update_rows(
        self, rows: ReplicatedRows, total: Total, step: int, learning_rate_factor: float
    ) -> None:
        with self._locating:
            # Rows of the others' batches.
            rows.read_rows(total.keys_U, create=True)
        rows.apply_gradients(
            total.keys_U,
            total.sums_UW,
            total.num_occurrences_U,
            step=step,
            learning_rate_factor=learning_rate_factor,
            num_examples=total.num_examples,
        )

    def _evict(self) -> None:
        if self._served is not None:
            # Nobody has to take the last step of the epoch back any more.
            self._replicas.meet(f"evict-{self.state.step}")
        super()._evict()

    def _save(self, task: ProgressTask | None) -> None:
        is_whole = self._holds_parameters and not self._awaits_validation
        if not (self._writes_files and is_whole):
            self._last_checkpoint = self._clock()
            return
        try:
            super()._save(task)
        except FencedError:
            # If this replica was held up for longer than its lease, another one saves now.
            time.sleep(_NOTICE_SECONDS)
            self._replicas.require_unchanged()
            raise

    def _report_progress_in_time(self) -> None:
        if self._clock() >= self._next_note:
            self._report_progress()

    def _report_progress(self) -> None:
        self._next_note = self._clock() + _NOTE_SECONDS
        if self._writes_files:
            self._on_progress(self.state)

    def _save_state(self) -> bytes:
        """Everything that another replica needs to go on from here."""
        parts = [json.dumps(self.state.to_json()).encode()]
        with self._locating:
            for save in (self._dense.save, self._save_rows):
                file = io.BytesIO()
                save(file)
                parts.append(file.getvalue())
        return _join_parts(parts)

    def _save_rows(self, file: IO[bytes]) -> None:
        if self._served is None:
            self._embeddings.save(file)
        else:
            file.write(self._served.position.encode())

    def _load_state(self, data: bytes) -> None:
        state, dense, rows = _split_parts(data)
        other = TrainingState.from_json(json.loads(state))
        self._require_same_rows(other)
        self._dense.load(io.BytesIO(dense))
        if self._rows is not None:
            self._rows.load(io.BytesIO(rows))
        elif self._served is not None:
            self._served.adopt(rows.decode())
        self.state = other


def _join_parts(parts: Iterable[bytes]) -> bytes:
    return b"".join(_LENGTH.pack(len(part)) + part for part in parts)


def _split_parts(data: bytes) -> list[bytes]:
    parts, first = [], 0
    while first < len(data):
        (length,) = _LENGTH.unpack_from(data, first)
        first += _LENGTH.size
        parts.append(data[first : first + length])
        first += length
    return parts
