"""The training loop of one of several replicas: a step trains a batch of each, and all apply it.

Replicas begin with the same parameters and apply the same totals, so they stay equal to the last
bit. The first of them writes checkpoints, history and events. A world of one trains exactly as
`Trainer` does. The order of the batches does not depend on the replicas: in a world of N, a step
trains the next N batches of the epoch.
"""

import io
import json
import struct
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ctr_pipeline import interruption
from ctr_pipeline.config.models import TrainConfig
from ctr_pipeline.dataset.order import EpochOrder
from ctr_pipeline.errors import CheckpointError
from ctr_pipeline.progress import ProgressTask
from ctr_pipeline.specs.learning_rate_scaling import scale_of
from ctr_pipeline.training.batches import Batch, Turn, position_after
from ctr_pipeline.training.checkpoint import Checkpoints
from ctr_pipeline.training.compiled import CompiledModel
from ctr_pipeline.training.events import EventLog
from ctr_pipeline.training.history import WorldRecord
from ctr_pipeline.training.lookup import DenseRows
from ctr_pipeline.training.profile import Stage
from ctr_pipeline.training.replicas import (
    Replicas,
    ReplicatedRows,
    Share,
    WorldChanged,
    describe_held,
)
from ctr_pipeline.training.step import TrainingStep, clip_norm
from ctr_pipeline.training.trainer import Trainer, TrainerFiles, TrainingState

_LENGTH = struct.Struct("<Q")
_NOTE_SECONDS = 0.5


class ReplicaTrainer(Trainer):
    """Trains one replica, together with those that `replicas` finds.

    Args:
        config: The `train:` section.
        compiled: The model.
        embeddings: This replica's rows.
        dense: Its dense parameters.
        files: Files of the run, which the first replica alone writes.
        replicas: The others.
        on_progress: Called by the first replica now and then, and after each epoch.
        clock: Monotonic clock, seconds.
        others: As for `Trainer`.
    """

    def __init__(
        self,
        *,
        config: TrainConfig,
        compiled: CompiledModel,
        embeddings: ReplicatedRows,
        dense: DenseRows,
        files: TrainerFiles,
        replicas: Replicas,
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
        self._rows = embeddings
        self._replicas = replicas
        self._on_progress = on_progress
        self._next_note = 0.0
        # The norm is bounded once the gradients of all are added.
        self._unbounded = TrainingStep(
            config.model_copy(update={"gradient_clip_norm": None}), compiled
        )
        self._holds_parameters = False
        self._world_turn = Turn(0, 1)
        self._steps_repeated = 0
        self._events: EventLog | None = None

    @property
    def _turn(self) -> Turn:
        return self._world_turn

    @property
    def _writes_files(self) -> bool:
        return self._world_turn.rank == 0

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
                            self._save(None)
        finally:
            if self._events is not None:
                self._events.close()
        return self.state

    def _train_on(self) -> bool:
        """Trains in the current world; False if a signal asked to stop before the end."""
        while True:
            if self._is_between_epochs():
                # The first replica has saved the epoch: nobody goes on before that.
                self._replicas.meet(f"step-{self.state.step}")
            if self.state.finished:
                return True
            self._run_epoch(self)
            self._tell_progress()
            if interruption.requested():
                return False

    def _is_between_epochs(self) -> bool:
        position = self.state.position
        return position.task == 0 and position.batch == 0

    def _join(self) -> None:
        """Joins the next world, with the parameters of those that are further than this replica."""
        began, state = self._clock(), self.state
        held = ""
        if self._holds_parameters:
            held = describe_held(state.step, zlib.crc32(self._dense.values.tobytes()))
        joined = self._replicas.join(held, self._save_state)
        # Another replica may have saved meanwhile; who saves now is decided anew.
        self.checkpoints = Checkpoints(self._files.checkpoints)
        if joined.is_first:
            checkpoint = self.checkpoints.load_newest(self._progress.log)
            if checkpoint is not None:
                self._require_same_rows(TrainingState.from_json(checkpoint.state))
                self.restore(checkpoint)
                self.checkpoints.go_on_from(checkpoint)
        elif joined.state is not None:
            self._load_state(joined.state)
        self._holds_parameters = True
        self._world_turn = Turn(joined.rank, joined.size)
        worlds, place = self.state.worlds, (joined.version, self.state.step)
        # The rendezvous of a run that is resumed counts versions anew.
        if not worlds or (worlds[-1].version, worlds[-1].step) != place:
            seconds = self._clock() - began
            worlds.append(
                WorldRecord(
                    joined.version, joined.size, self.state.step, seconds, self._steps_repeated
                )
            )
        self._steps_repeated = 0
        self._progress.log(
            f"World {joined.version}: {joined.size} replicas, this one has rank {joined.rank}, "
            f"from step {self.state.step:,}"
        )
        step = self.state.step
        is_epoch = step and self._is_between_epochs()
        if is_epoch and self._writes_files and step not in self.checkpoints.steps():
            # The one that was to save this epoch may be the one that was lost.
            self._save(None)

    def _require_same_rows(self, other: TrainingState) -> None:
        if other.rows_fingerprint != self.state.rows_fingerprint:
            raise CheckpointError("the data changed since the model was trained")

    def _steps(self, ahead: Iterable[Batch], order: EpochOrder) -> Iterator[int]:
        own = iter(ahead)
        while self.state.position.epoch == order.epoch:
            batch = next(own, None)
            self._lap(Stage.AWAIT_BATCH)
            self._replicas.require_unchanged()
            before = self.state.epoch_rows
            if self._world_turn.size == 1 and batch is not None:
                self._step(batch)
            else:
                self._step_together(batch, order)
            self._tell_progress_now_and_then()
            yield self.state.epoch_rows - before

    def _step_together(self, batch: Batch | None, order: EpochOrder) -> None:
        """Makes a step of the world; near the end of an epoch there may be no batch for all."""
        state = self.state
        share = Share(0, 0.0, self._no_gradient())
        if batch is not None:
            gradients = self._compute(batch, self._unbounded)
            share = Share(
                batch.num_valid,
                gradients.loss_sum,
                gradients.parameters_P,
                batch.prepared,
                (gradients.linear_BF1, gradients.embeddings_BFD),
            )
        try:
            total = self._replicas.add(state.step + 1, share)
        except WorldChanged:
            self._steps_repeated = 1
            raise
        self._lap(Stage.AWAIT_UPDATES)
        factor = self._arithmetic.learning_rate_factor(state.step + 1) * scale_of(
            self._config.scale_learning_rate, total.num_batches
        )
        of_all_runs = state.earlier_steps + state.step + 1
        self._dense.update(
            clip_norm(total.parameters_P, self._config.gradient_clip_norm),
            step=of_all_runs,
            learning_rate_factor=factor,
        )
        self._lap(Stage.DENSE_UPDATE)
        with self._locating:
            # Rows of the others' batches.
            self._rows.read_rows(total.keys_U, create=True)
        self._rows.apply_gradients(
            total.keys_U,
            total.sums_UW,
            total.num_occurrences_U,
            step=of_all_runs,
            learning_rate_factor=factor,
            num_examples=total.num_examples,
        )
        self._lap(Stage.SPARSE_UPDATE)
        self._count_step(
            position_after(order, state.position, total.num_batches),
            loss_sum=total.loss_sum,
            num_rows=total.num_examples,
            factor=factor,
        )

    def _no_gradient(self) -> Any:
        return self._dense.values * 0.0

    def _save(self, task: ProgressTask | None) -> None:
        if self._writes_files and self._holds_parameters:
            super()._save(task)
        else:
            self._last_checkpoint = self._clock()

    def _tell_progress_now_and_then(self) -> None:
        if self._clock() >= self._next_note:
            self._tell_progress()

    def _tell_progress(self) -> None:
        self._next_note = self._clock() + _NOTE_SECONDS
        if self._writes_files:
            self._on_progress(self.state)

    def _save_state(self) -> bytes:
        """Everything that another replica needs to go on from here."""
        parts = [json.dumps(self.state.to_json()).encode()]
        with self._locating:
            for save in (self._dense.save, self._embeddings.save):
                file = io.BytesIO()
                save(file)
                parts.append(file.getvalue())
        return b"".join(_LENGTH.pack(len(part)) + part for part in parts)

    def _load_state(self, data: bytes) -> None:
        parts, first = [], 0
        while first < len(data):
            (length,) = _LENGTH.unpack_from(data, first)
            first += _LENGTH.size
            parts.append(data[first : first + length])
            first += length
        state, dense, rows = parts
        other = TrainingState.from_json(json.loads(state))
        self._require_same_rows(other)
        self._dense.load(io.BytesIO(dense))
        self._embeddings.load(io.BytesIO(rows))
        self.state = other
