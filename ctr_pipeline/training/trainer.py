"""The training loop on one machine.

A run is a pure function of data, config and seed: the order of rows, dropout and initial values
depend only on (seed, epoch, task, batch), so a run that is killed and resumed ends like an
undisturbed one.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from ctr_pipeline import interruption
from ctr_pipeline.config.models import TrainConfig
from ctr_pipeline.dataset.encoded import EncodedReader
from ctr_pipeline.dataset.order import DoneBatches, EpochOrder
from ctr_pipeline.embeddings.dense import DenseParameters
from ctr_pipeline.embeddings.eviction import oldest_step_kept
from ctr_pipeline.embeddings.store import EmbeddingStore
from ctr_pipeline.errors import CheckpointError
from ctr_pipeline.progress import Progress, ProgressTask
from ctr_pipeline.storage.protocol import Storage
from ctr_pipeline.training.batches import (
    EVERY_BATCH,
    Batch,
    Position,
    Prefetcher,
    Turn,
    epoch_batches,
)
from ctr_pipeline.training.checkpoint import Checkpoint, Checkpoints
from ctr_pipeline.training.compiled import CompiledModel
from ctr_pipeline.training.events import EventLog, ScalarLog
from ctr_pipeline.training.history import EpochRecord, RefitRecord, WorldRecord, save_history
from ctr_pipeline.training.lookup import SavedRows
from ctr_pipeline.training.parameters import load_dense, load_rows
from ctr_pipeline.training.profile import Stage, StageClock, TrainingProfile
from ctr_pipeline.training.scoring import Scorer
from ctr_pipeline.training.step import StepGradients, TrainingStep
from ctr_pipeline.training.stopping import decide_stop

_STEPS_PER_EVENT = 100
_STEPS_PER_NOTE = 10
_VALIDATION = "validation rows"


@dataclass
class TrainingState:
    """The state of training beside the parameters; part of every checkpoint.

    Attributes:
        position: The next batch to train.
        done: Batches of this epoch that are over, of those from there on: workers that shared it
            have left gaps.
        step: Batches trained.
        epoch_loss_sum: Sum of the loss of this epoch's rows so far.
        epoch_rows: Rows of this epoch so far.
        epoch_seconds: Seconds of training in this epoch so far.
        history: Finished epochs.
        best_step: Step of the best epoch's checkpoint.
        finished: Why training ended; empty while it goes on.
        rows_fingerprint: Fingerprint of the encoded rows that are trained on.
        plan_fingerprint: Fingerprint of the transforms that encoded them.
        earlier_steps: Batches that trained the parameters before this run began. The optimizers'
            moments count them, the schedule does not.
        refit: Progress of the refit, if there is or was one.
        worlds: The replicas that trained together, if several did, in their order.
    """

    position: Position = field(default_factory=lambda: Position(0, 0, 0))
    done: list[DoneBatches] = field(default_factory=list)
    step: int = 0
    epoch_loss_sum: float = 0.0
    epoch_rows: int = 0
    epoch_seconds: float = 0.0
    history: list[EpochRecord] = field(default_factory=list)
    best_step: int | None = None
    finished: str = ""
    rows_fingerprint: str = ""
    plan_fingerprint: str = ""
    earlier_steps: int = 0
    refit: RefitRecord | None = None
    worlds: list[WorldRecord] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Returns the state as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "TrainingState":
        """Reads the state that `to_json` wrote."""
        known = dict(values)
        known["position"] = Position(**known["position"])
        known["done"] = [(first, end, mask) for first, end, mask in known["done"]]
        known["history"] = [EpochRecord(**record) for record in known["history"]]
        known["worlds"] = [WorldRecord(**record) for record in known["worlds"]]
        if known.get("refit") is not None:
            known["refit"] = RefitRecord(**known["refit"])
        return cls(**known)

    def count_step(self, following: Position, loss_sum: float, num_rows: int) -> None:
        """A step is done, and the batch at `following` is next."""
        self.step += 1
        self.position = following
        self.epoch_loss_sum += loss_sum
        self.epoch_rows += num_rows

    def count_refit_epoch(self, epoch: int, refit: RefitRecord) -> float:
        """Ends an epoch of a refit, which has no validation; returns its train logloss."""
        logloss = self.epoch_loss_sum / self.epoch_rows
        seconds = refit.seconds + self.epoch_seconds
        self.refit = replace(refit, steps=self.step, train_logloss=logloss, seconds=seconds)
        if epoch + 1 == refit.epochs:
            self.best_step = self.step
            self.finished = f"all {refit.epochs} epochs are done"
        return logloss

    def leave_epoch(self) -> None:
        """Counts anew, as nothing of the next epoch is trained."""
        self.epoch_loss_sum, self.epoch_rows, self.epoch_seconds = 0.0, 0, 0.0
        self.done = []


@dataclass(frozen=True)
class TrainerFiles:
    """Files and folders that a trainer writes.

    Attributes:
        checkpoints: Storage of checkpoints.
        history: `history.csv`.
        events: Folder of TensorBoard events.
    """

    checkpoints: Storage
    history: Path
    events: Path


class Trainer:
    """Trains a model and its embedding rows.

    Args:
        config: The `train:` section.
        compiled: The model.
        embeddings: Its rows.
        dense: Its dense parameters.
        train: Training rows.
        valid: Validation rows; None trains all epochs of the config without validation and keeps
            the last one.
        judged: Epochs that the learning rate schedule goes by where there is no validation.
        files: Files and folders to write.
        progress: Receives progress and messages.
        after_epoch: Called after each epoch; a text that it returns stops training and is the
            reason.
        after_first_step: Called when the first step of this process is done.
        clock: Monotonic clock, seconds.
    """

    def __init__(
        self,
        *,
        config: TrainConfig,
        compiled: CompiledModel,
        embeddings: SavedRows,
        dense: DenseParameters,
        train: EncodedReader,
        valid: EncodedReader | None,
        files: TrainerFiles,
        progress: Progress,
        judged: Sequence[EpochRecord] = (),
        after_epoch: Callable[[EpochRecord], str] | None = None,
        after_first_step: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state = TrainingState(
            refit=None if valid is not None else RefitRecord(config.epochs, train.meta.num_rows)
        )
        self.checkpoints = Checkpoints(files.checkpoints)
        self._config = config
        self._compiled = compiled
        self._embeddings = embeddings
        self._dense = dense
        self._train = train
        self._valid = valid
        self._judged = judged
        self._files = files
        self._progress = progress
        self._after_epoch = after_epoch
        self._stages, self._stages_ahead = StageClock(), StageClock()
        self._lap = self._stages.lap
        self._processor_seconds = 0.0
        self._rows_trained = 0
        self._after_first_step = after_first_step
        self._is_compiled = False
        self._last_factor = 1.0
        self._clock = clock
        self._last_checkpoint = clock()
        # The reading thread creates rows, which it must not do while they are saved.
        self._locating = threading.Lock()
        self._scorer = Scorer(compiled, embeddings, dense)
        self._arithmetic = TrainingStep(config, compiled)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restores a checkpoint."""
        self._load_rows(checkpoint)
        load_dense(checkpoint, self._dense)
        state = TrainingState.from_json(checkpoint.state)
        if state.history:
            # The number of epochs and the stopping rule may have changed since the checkpoint.
            decision = decide_stop(state.history, self._config.early_stopping, self._config.epochs)
            state.finished = decision.reason if decision.stop else ""
        self.state = state
        if state.step:
            epoch = state.position.epoch - (1 if self._is_between_epochs() else 0)
            self._last_factor = self._learning_rate_factor(state.step, epoch)

    def _learning_rate_factor(self, step: int, epoch: int) -> float:
        """The factor of the schedule at a step of an epoch; steps count from 1, epochs from 0."""
        history = self.state.history if self._valid is not None else self._judged
        return self._config.learning_rate_schedule.factor(
            step, [vars(record) for record in history[:epoch]]
        )

    def _load_rows(self, checkpoint: Checkpoint) -> None:
        if not isinstance(self._embeddings, EmbeddingStore):
            raise TypeError("rows that are not here are not loaded here")
        load_rows(checkpoint, self._embeddings)

    def fit(self) -> TrainingState:
        """Trains to the end, then restores the best epoch.

        Ctrl-C and SIGTERM stop it after the current step, with a checkpoint.

        Raises:
            TrainingError: The loss is not finite; names the step and the likely cause.
            Interrupted: A signal asked to stop; a checkpoint is written.
        """
        events = EventLog(self._files.events)
        self._stages.start()
        self._processor_seconds -= time.process_time()
        try:
            with interruption.deferred():
                while not self.state.finished:
                    if self._awaits_validation:
                        self._end_epoch(self.state.position.epoch - 1, events)
                    else:
                        self._run_epoch(events)
                    if interruption.requested():
                        break
        finally:
            events.close()
        self._go_to_best()
        self._lap(Stage.CHECKPOINT)
        self._processor_seconds += time.process_time()
        return self.state

    def profile(self, cores: int) -> TrainingProfile:
        """Returns where the time of `fit` went.

        Args:
            cores: Threads that the config or the machine allows.
        """
        return TrainingProfile(
            num_steps=self._stages.times.get(Stage.GATHER, 0),
            num_rows=self._rows_trained,
            processor_seconds=self._processor_seconds,
            cores=cores,
            stages=self._stages.stages() + self._stages_ahead.stages(),
        )

    def _go_to_best(self) -> None:
        if self.state.best_step is None or self.state.best_step == self.state.step:
            return
        finished, history = self.state.finished, self.state.history
        try:
            best = self.checkpoints.load(self.state.best_step)
        except CheckpointError as error:
            self._progress.log(f"The last epoch is kept instead of the best: {error}")
            return
        self.restore(best)
        self.state = replace(self.state, finished=finished, history=history)

    def _run_epoch(self, events: ScalarLog) -> None:
        state, config = self.state, self._config
        epoch = state.position.epoch
        order = EpochOrder(
            self._train.meta.num_rows, config.batch_size, config.seed, epoch, config.shuffle
        )
        batches = epoch_batches(
            self._train,
            order,
            self._embeddings,
            state.position,
            self._locating,
            clock=self._stages_ahead,
            turn=self._turn,
            done=state.done,
        )
        kind = "Training" if state.refit is None else "Training with validation rows"
        title = f"{kind}, epoch {epoch + 1} of {config.epochs}"
        with (
            self._progress.task(title, total=order.num_rows) as task,
            Prefetcher(batches) as ahead,
        ):
            task.advance(state.epoch_rows)
            started = self._clock()
            self._lap(Stage.OTHER)
            for num_rows in self._steps(ahead, order):
                task.advance(num_rows)
                if state.step % _STEPS_PER_NOTE == 0:
                    task.note(f"logloss {state.epoch_loss_sum / state.epoch_rows:.4f}")
                if state.step % _STEPS_PER_EVENT == 0:
                    events.scalars(
                        state.step, train_logloss=state.epoch_loss_sum / state.epoch_rows
                    )
                now = self._clock()
                state.epoch_seconds += now - started
                started = now
                due = now - self._last_checkpoint >= config.checkpoint_seconds
                self._lap(Stage.OTHER)
                if (due or interruption.requested()) and state.position.epoch == epoch:
                    self._save(task)
                    started = self._clock()
                if interruption.requested() and state.position.epoch == epoch:
                    return
            task.note(f"logloss {state.epoch_loss_sum / max(state.epoch_rows, 1):.4f}")
        self._end_epoch(epoch, events)

    def _is_between_epochs(self) -> bool:
        position = self.state.position
        return position.task == 0 and position.batch == 0

    @property
    def _awaits_validation(self) -> bool:
        """Whether training stopped at the end of an epoch, before it was validated."""
        return self._is_between_epochs() and self.state.epoch_rows > 0

    @property
    def _turn(self) -> Turn:
        """Which batches are trained here."""
        return EVERY_BATCH

    @property
    def _writes_files(self) -> bool:
        """Whether history and events are written by this process."""
        return True

    def _steps(self, ahead: Iterable[Batch], order: EpochOrder) -> Iterator[int]:
        """Makes the steps of an epoch; yields the rows of each."""
        for batch in ahead:
            self._lap(Stage.AWAIT_BATCH)
            self._step(batch)
            yield batch.num_valid

    def _compute(self, batch: Batch, arithmetic: TrainingStep) -> StepGradients:
        linear, embeddings = self._embeddings.gather_parts(batch.prepared, num_leading=1)
        self._lap(Stage.GATHER)
        gradients = arithmetic.compute(
            batch.rows,
            batch.num_valid,
            position=batch.position,
            step=self.state.step + 1,
            parameters_P=self._dense.values,
            linear_BF1=linear,
            embeddings_BFD=embeddings,
        )
        self._lap(Stage.TENSORFLOW if self._is_compiled else Stage.COMPILE)
        return gradients

    def _step(self, batch: Batch) -> None:
        gradients = self._compute(batch, self._arithmetic)
        step = self.state.step + 1
        factor = self._learning_rate_factor(step, batch.position.epoch)
        of_all_runs = self.state.earlier_steps + step
        # First the rows, as those on servers may refuse: then nothing has been changed.
        self._embeddings.update(
            batch.prepared,
            (gradients.linear_BF1, gradients.embeddings_BFD),
            step=of_all_runs,
            learning_rate_factor=factor,
            num_examples=batch.num_valid,
        )
        self._lap(Stage.SPARSE_UPDATE)
        self._dense.update(
            gradients.parameters_P,
            step=of_all_runs,
            learning_rate_factor=factor,
        )
        self._lap(Stage.DENSE_UPDATE)
        self._count_step(
            batch.following,
            loss_sum=gradients.loss_sum,
            num_rows=batch.num_valid,
            factor=factor,
        )

    def _count_step(
        self, following: Position, *, loss_sum: float, num_rows: int, factor: float
    ) -> None:
        """Notes that a step is done, and which batch is next."""
        state = self.state
        self._rows_trained += num_rows
        self._last_factor = factor
        state.count_step(following, loss_sum, num_rows)
        if not self._is_compiled:
            self._is_compiled = True
            if self._after_first_step is not None:
                self._after_first_step()

    def _evict(self) -> None:
        """Evicts rows without a recent update; no batch may be in flight."""
        state, after = self.state, self._config.embeddings.evict_after
        num_evicted = self._embeddings.evict(
            oldest_step_kept(state.earlier_steps + state.step, after)
        )
        if num_evicted:
            self._progress.log(
                f"{num_evicted:,} embedding rows without an update in {after:,} steps are removed"
            )

    def _end_epoch(self, epoch: int, events: ScalarLog) -> None:
        state = self.state
        self._evict()
        self._lap(Stage.OTHER)
        factor = self._last_factor
        events.scalars(
            state.step,
            train_samples_per_second=state.epoch_rows / max(state.epoch_seconds, 1e-9),
            train_learning_rate_factor=factor,
        )
        if self._valid is not None:
            self._validate(epoch, factor, self._valid, events)
        elif state.refit is not None:
            logloss = state.count_refit_epoch(epoch, state.refit)
            self._progress.log(
                f"Epoch {epoch + 1} with validation rows: train logloss {logloss:.4f}"
            )
        state.leave_epoch()
        self._lap(Stage.OTHER)
        self._save(None)

    def _validate(
        self, epoch: int, learning_rate_factor: float, rows: EncodedReader, events: ScalarLog
    ) -> None:
        """Ends an epoch: validates it and decides whether it was the last."""
        state = self.state
        with self._progress.task("Validation", total=rows.meta.num_rows) as task:
            valid = self._scorer.summarize_split(rows, task, place=_VALIDATION)
        self._lap(Stage.VALIDATION)
        auc = valid.auc(place=_VALIDATION)
        record = EpochRecord(
            epoch=epoch,
            step=state.step,
            train_logloss=state.epoch_loss_sum / state.epoch_rows,
            valid_logloss=valid.logloss(),
            valid_auc=auc.value,
            valid_calibration=valid.calibration(),
            learning_rate_factor=learning_rate_factor,
            num_rows=state.epoch_rows,
            seconds=state.epoch_seconds,
        )
        state.history.append(record)
        decision = decide_stop(state.history, self._config.early_stopping, self._config.epochs)
        if decision.best_epoch == epoch:
            state.best_step = state.step
        verdict = "" if self._after_epoch is None else self._after_epoch(record)
        state.finished = decision.reason if decision.stop else verdict
        if self._writes_files:
            save_history(self._files.history, state.history)
        events.scalars(
            state.step,
            valid_logloss=record.valid_logloss,
            valid_auc=record.valid_auc,
            valid_calibration=record.valid_calibration,
        )
        self._progress.log(
            f"Epoch {epoch + 1}: train logloss {record.train_logloss:.4f}, validation logloss "
            f"{record.valid_logloss:.4f}, AUC {record.valid_auc:.4f}"
        )

    def _save(self, task: ProgressTask | None) -> None:
        if task is not None:
            task.note("checkpoint")

        def save_rows(file: IO[bytes]) -> None:
            with self._locating:
                self._embeddings.save(file)

        self.checkpoints.save(
            self.state.to_json(),
            rows=save_rows,
            dense=self._dense.save,
            num_dense=len(self._dense.values),
        )
        self.checkpoints.retain(self._config.keep_checkpoints, self.state.best_step)
        self._last_checkpoint = self._clock()
        self._lap(Stage.CHECKPOINT)
