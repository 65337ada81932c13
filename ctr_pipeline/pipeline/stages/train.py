"""Trains a model, or the models of an ensemble, in this process."""

import contextlib
import gc
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import keras

from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.config.models import Config
from ctr_pipeline.dataset.encoded import EncodedReader
from ctr_pipeline.embeddings.counts import IdCounts
from ctr_pipeline.pipeline.context import RunContext
from ctr_pipeline.pipeline.model.dense_model import compile_model
from ctr_pipeline.pipeline.model.embedding_rows import (
    describe_memory,
    memory_limit_of,
)
from ctr_pipeline.pipeline.model.ensemble import member_configs
from ctr_pipeline.pipeline.model.loading import open_trained
from ctr_pipeline.pipeline.model.parameters import Parameters
from ctr_pipeline.pipeline.model.trained_model import (
    TrainedModel,
    initial_parameters,
    require_same_rows,
)
from ctr_pipeline.pipeline.refit import best_epoch, discard_refit, find_refit
from ctr_pipeline.pipeline.resources import num_threads
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.pipeline.stages.encode import Encoding, new_counter
from ctr_pipeline.pipeline.stages.resumption import claim_to_train, newest_step
from ctr_pipeline.pipeline.stages.warm_start import WarmStart
from ctr_pipeline.pipeline.stages.warm_start_parameters import fill_from_earlier
from ctr_pipeline.pipeline.timing import FIRST_STEP, start_up_sentence
from ctr_pipeline.progress import Progress
from ctr_pipeline.training.checkpoint import Checkpoints, newest_number, require_to_go_on
from ctr_pipeline.training.compiled import CompiledModel
from ctr_pipeline.training.history import save_history
from ctr_pipeline.training.profile import (
    TrainingProfile,
    profile_lines,
    save_profile,
)
from ctr_pipeline.training.stopping import decide_stop
from ctr_pipeline.training.trainer import Trainer, TrainerFiles, TrainingState

_ROWS_COUNTED = 65_536


def run_training(
    context: RunContext, encoding: Encoding, *, warm_start: WarmStart | None = None
) -> TrainedModel:
    """Trains from the start or an earlier run, or resumes from the newest whole checkpoint.

    Args:
        context: Context of the run.
        encoding: The rows.
        warm_start: What the run takes over from an earlier one.

    Returns:
        The model; the caller releases its rows.
    """
    loaded, run = context.loaded, context.run
    claim = partial(claim_to_train, context, partial(newest_step, run), resumes=context.resume)
    job = _Training(context, encoding, claim, warm_start)
    with context.times.stage("training"):
        if context.resume:
            require_to_go_on(run.checkpoint_storage)
        if loaded.config.train.ensemble > 1:
            _train_members(loaded, job)
            return open_trained(loaded, run, context.progress)
        return _train(loaded, run, job)


@dataclass(frozen=True)
class _Training:
    """The inputs of the training of one model, or of each model of an ensemble.

    Attributes:
        context: Context of the run.
        encoding: Prepared rows.
        claim: Called before anything is written, once the first model could be built.
        warm_start: What the run takes over from an earlier one.
    """

    context: RunContext
    encoding: Encoding
    claim: Callable[[], None]
    warm_start: WarmStart | None


def _train_members(loaded: LoadedConfig, job: _Training) -> None:
    """Trains the models of an ensemble, one after another; only one is in memory at a time."""
    members, progress = member_configs(loaded.config), job.context.progress
    for number, config in enumerate(members):
        named = (
            f"Model {number + 1} of {len(members)} ({config.model.name}, seed {config.train.seed})"
        )
        folder = job.context.run.member(number)
        finished = _find_finished(config, folder, job) if job.context.resume else None
        if finished is not None:
            _restore_history(folder, finished)
            progress.log(f"{named} is trained already")
            if number == 0:
                job.claim()
            continue
        progress.log(named)
        # Frees what Keras and the compiler keep of the previous model.
        keras.utils.clear_session()
        gc.collect()
        _train(replace(loaded, config=config), folder, job).release_rows()


def _find_finished(config: Config, folder: RunFolder, job: _Training) -> TrainingState | None:
    """The training of a model of an ensemble; None if it is not trained to its end.

    Raises:
        CheckpointError: It was trained on other rows, or all of its checkpoints are damaged.
    """
    checkpoint = Checkpoints(folder.checkpoint_storage).load_newest(job.context.progress.log)
    if checkpoint is None:
        return None
    state = TrainingState.from_json(checkpoint.state)
    require_same_rows(state, job.encoding.fingerprint, job.context.run)
    train = config.train
    if not state.history:
        return None
    # As `Trainer.restore`: the number of epochs and the stopping rule may have changed.
    decision = decide_stop(state.history, train.early_stopping, train.epochs)
    if not decision.stop:
        return None
    if not train.refit:
        return state
    refit = find_refit(folder, checkpoint.state, job.context.progress, is_whole=True)
    return None if refit is None else state


def _restore_history(folder: RunFolder, state: TrainingState) -> None:
    """Writes the epochs that a checkpoint knows: the folder may be a new one."""
    folder.begin_training()
    if state.history:
        save_history(folder.history, state.history)


def _train(loaded: LoadedConfig, folder: RunFolder, job: _Training) -> TrainedModel:
    """Trains one model, and refits it on all rows if the config says so.

    Args:
        loaded: The config of this model.
        folder: Folder of its checkpoints, history and events: the run folder, or that of a member.
        job: The other inputs.
    """
    config, plan = loaded.config, job.encoding.plan
    compiled = compile_model(config, job.context.run, plan, trains=True)
    model = _choose(loaded, folder, compiled, job)
    if not config.train.refit:
        return model
    # Memory holds the embedding rows of one training at a time.
    model.release_rows()
    return _refit(loaded, folder, compiled, model.state, job)


def _choose(
    loaded: LoadedConfig, folder: RunFolder, compiled: CompiledModel, job: _Training
) -> TrainedModel:
    """Trains a model on the training rows; returns the best epoch by the validation rows."""
    config, run, encoding = loaded.config, job.context.run, job.encoding
    progress, times = job.context.progress, job.context.times
    with contextlib.ExitStack() as stack:
        parameters = initial_parameters(config, run, encoding.plan, encoding.counts, compiled)
        times.reach("model")
        readers = {
            split: stack.enter_context(EncodedReader(encoding.folders[split]))
            for split in ("train", "valid")
        }

        def log_start_up() -> None:
            if FIRST_STEP in times.start_up:
                # A model of an ensemble; the first one has logged it.
                return
            times.reach(FIRST_STEP)
            progress.log(start_up_sentence(times.start_up))

        trainer = Trainer(
            config=config.train,
            compiled=compiled,
            embeddings=parameters.rows,
            dense=parameters.dense,
            train=readers["train"],
            valid=readers["valid"],
            files=TrainerFiles(folder.checkpoint_storage, folder.history, folder.events),
            progress=progress,
            after_first_step=log_start_up,
        )
        checkpoint = trainer.checkpoints.load_newest(progress.log) if job.context.resume else None
        if checkpoint is not None:
            trainer.restore(checkpoint)
            require_same_rows(trainer.state, encoding.fingerprint, run)
            trainer.checkpoints.go_on_from(checkpoint)
            _restore_history(folder, trainer.state)
            progress.log(f"Resuming after step {checkpoint.step:,}")
            if newest_number(folder.checkpoint_storage) > checkpoint.number:
                progress.log(
                    "Newer checkpoints are damaged, or were taken while batches were on their way "
                    "to several servers"
                )
        else:
            _begin(loaded, trainer, parameters, job)
        if folder in (run, run.member(0)):
            job.claim()
        folder.begin_training()
        trainer.state.rows_fingerprint = encoding.fingerprint
        trainer.state.plan_fingerprint = encoding.plan.fingerprint()
        state = trainer.fit()
        progress.log(f"Training ended: {state.finished}")
        if encoding.plan.fields:
            progress.log(describe_memory(parameters.rows))
        if job.context.profile:
            _log_profile(trainer.profile(num_threads(config.runtime)), folder, progress)
    return TrainedModel.of(encoding.plan, compiled, parameters.rows, parameters.dense, state)


def _refit(
    loaded: LoadedConfig,
    folder: RunFolder,
    compiled: CompiledModel,
    chosen: TrainingState,
    job: _Training,
) -> TrainedModel:
    """Trains a model anew on training and validation rows, for as many epochs as were best.

    Args:
        loaded: The config of this model.
        folder: Folder of the training that found the best epoch.
        compiled: The dense part.
        chosen: State of that training.
        job: The other inputs.
    """
    config, encoding = loaded.config, job.encoding
    run, progress = job.context.run, job.context.progress
    epochs = best_epoch(chosen.to_json())
    folders = [encoding.folders[split] for split in ("train", "valid")]
    with EncodedReader(*folders) as rows:
        counts = _counts_of_both(encoding, num_threads(config.runtime))
        parameters = initial_parameters(config, run, encoding.plan, counts, compiled)
        files = folder.refit
        trainer = Trainer(
            config=config.train.model_copy(update={"epochs": epochs}),
            compiled=compiled,
            embeddings=parameters.rows,
            dense=parameters.dense,
            train=rows,
            valid=None,
            judged=chosen.history,
            files=TrainerFiles(files.checkpoint_storage, files.history, files.events),
            progress=progress,
        )
        checkpoint = None
        if job.context.resume:
            checkpoint = find_refit(folder, chosen.to_json(), progress, is_whole=False)
        if checkpoint is not None:
            trainer.restore(checkpoint)
            trainer.checkpoints.go_on_from(checkpoint)
            progress.log(
                f"Resuming the training with validation rows after step {checkpoint.step:,}"
            )
        else:
            discard_refit(folder)
            progress.log(
                f"Epoch {epochs} was the best: training from the start with the validation rows, "
                f"{rows.meta.num_rows:,} in all, for as many epochs"
            )
            _begin(loaded, trainer, parameters, job)
        trainer.state.rows_fingerprint = encoding.fingerprint
        trainer.state.plan_fingerprint = encoding.plan.fingerprint()
        state = trainer.fit()
    state = replace(chosen, refit=state.refit)
    return TrainedModel.of(encoding.plan, compiled, parameters.rows, parameters.dense, state)


def _begin(loaded: LoadedConfig, trainer: Trainer, parameters: Parameters, job: _Training) -> None:
    """Copies the parameters of the earlier run, if training begins from one."""
    if job.warm_start is None:
        return
    fill_from_earlier(
        parameters,
        job.encoding.plan,
        job.warm_start,
        threads=num_threads(loaded.config.runtime),
        memory_limit=memory_limit_of(loaded.config, job.context.run.path),
        progress=job.context.progress,
    )
    trainer.state.earlier_steps = job.warm_start.record.all_steps
    job.context.progress.log(f"Training begins from {job.warm_start.record.describe()}")


def _counts_of_both(encoding: Encoding, threads: int) -> list[IdCounts]:
    """Counts each id of each table in training and validation rows together."""
    both = new_counter(encoding.plan, threads)
    both.add_counted(encoding.counts)
    with EncodedReader(encoding.folders["valid"]) as rows:
        for batch in rows.read_in_order(_ROWS_COUNTED):
            both.add(batch.ids_BF)
    return both.per_table()


def _log_profile(profile: TrainingProfile, run: RunFolder, progress: Progress) -> None:
    """Logs and saves the profile of what was trained now; an earlier one stays if nothing was."""
    if not profile.num_steps:
        progress.log("Nothing was left to train, so there is nothing to profile")
        return
    save_profile(run.training_profile, profile)
    for line in profile_lines(profile):
        progress.log(line)
