"""Encoded rows → trained parameters."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.dataset.encoded import EncodedReader
from ctr_pipeline.embeddings.dense import DenseParameters
from ctr_pipeline.embeddings.store import EmbeddingStore
from ctr_pipeline.errors import CheckpointError
from ctr_pipeline.pipeline.dense_model import compile_model
from ctr_pipeline.pipeline.encoding_stage import Encoding, plan_fingerprint
from ctr_pipeline.pipeline.resources import num_threads, thread_shares
from ctr_pipeline.pipeline.rows import (
    TrainedRows,
    build_store,
    describe_memory,
    lookup_of,
    optimizer_spec,
)
from ctr_pipeline.pipeline.score_files import ScoreFiles
from ctr_pipeline.pipeline.timing import FIRST_STEP, StageTimes, start_up_sentence
from ctr_pipeline.pipeline.workspace import RunFolder, require_mode
from ctr_pipeline.preprocessing.fitted import PreprocessingPlan, load_plan
from ctr_pipeline.progress import Progress
from ctr_pipeline.training.checkpoint import CheckpointFolder
from ctr_pipeline.training.compiled import CompiledModel
from ctr_pipeline.training.lookup import DenseValues, SavedRows
from ctr_pipeline.training.parameters import load_parameters
from ctr_pipeline.training.profile import (
    TrainingProfile,
    TrainingProfiler,
    profile_lines,
    save_profile,
)
from ctr_pipeline.training.scoring import Scorer
from ctr_pipeline.training.trainer import Trainer, TrainerFiles, TrainingState


@dataclass(frozen=True)
class TrainedModel:
    """A model with its parameters, ready to score and to export.

    Attributes:
        plan: Fitted transforms.
        compiled: The dense part.
        rows: Embedding rows; None without fields.
        dense: Dense parameters.
        scorer: Ids and numbers → logits.
        state: How training went.
        scores: Logits of the splits, where they are known already.
        runtime: How members of a job fared, for `metrics.json`.
    """

    plan: PreprocessingPlan
    compiled: CompiledModel
    rows: TrainedRows | None
    dense: DenseValues
    scorer: Scorer
    state: TrainingState
    scores: ScoreFiles | None = None
    runtime: dict[str, Any] | None = None


@dataclass(frozen=True)
class LocalModel:
    """A model whose parameters live in this process.

    Attributes:
        plan: Fitted transforms.
        compiled: The dense part.
        store: Embedding rows; None without fields.
        dense: Dense parameters.
        lookup: The rows as trainer and scorer see them.
    """

    plan: PreprocessingPlan
    compiled: CompiledModel
    store: EmbeddingStore | None
    dense: DenseParameters
    lookup: SavedRows

    def trained(self, state: TrainingState) -> TrainedModel:
        """The model after training."""
        scorer = Scorer(self.compiled, self.lookup, self.dense)
        return TrainedModel(self.plan, self.compiled, self.store, self.dense, scorer, state)


def run_training(
    loaded: LoadedConfig,
    run: RunFolder,
    encoding: Encoding,
    *,
    resume: bool,
    profile: bool = False,
    progress: Progress,
    times: StageTimes,
) -> TrainedModel:
    """Trains from the start, or goes on from the newest whole checkpoint.

    Args:
        loaded: The config.
        run: The run folder.
        encoding: The rows.
        resume: Go on from a checkpoint if there is one.
        profile: See where the time goes, say it and keep it for the report.
        progress: Who is told.
        times: Of stages.
    """
    config = loaded.config
    with times.stage("training"), contextlib.ExitStack() as stack:
        if resume:
            require_mode(run, processes=False)
        model = assemble_local(loaded, run, encoding.plan, encoding.counts)
        times.reach("model")
        readers = {
            split: stack.enter_context(EncodedReader(encoding.folders[split]))
            for split in ("train", "valid")
        }

        def tell_start_up() -> None:
            times.reach(FIRST_STEP)
            progress.say(start_up_sentence(times.start_up))

        profiler = _profiler_of(model, num_threads(config.runtime)) if profile else None
        trainer = Trainer(
            config=config.train,
            compiled=model.compiled,
            embeddings=model.lookup,
            dense=model.dense,
            train=readers["train"],
            valid=readers["valid"],
            files=TrainerFiles(run.checkpoints, run.history, run.events),
            progress=progress,
            profiler=profiler,
            after_first_step=tell_start_up,
        )
        checkpoint = trainer.checkpoints.load_newest(progress.say) if resume else None
        if checkpoint is not None:
            trainer.restore(checkpoint)
            require_same_rows(trainer.state, encoding.fingerprint, run)
            trainer.checkpoints.discard_after(checkpoint.step)
            progress.say(f"Resuming after step {checkpoint.step:,}")
        elif not resume:
            run.discard_results()
        run.keep_config(loaded)
        trainer.state.rows_fingerprint = encoding.fingerprint
        trainer.state.plan_fingerprint = plan_fingerprint(encoding.plan)
        state = trainer.fit()
        progress.say(f"Training ended: {state.finished}")
        if model.store is not None:
            progress.say(describe_memory(model.store))
        if profiler is not None:
            _tell_profile(profiler.profile(), run, progress)
    return model.trained(state)


def _tell_profile(profile: TrainingProfile, run: RunFolder, progress: Progress) -> None:
    """Says where time went and keeps it; where all was trained before, so is what was seen then."""
    if not profile.num_steps:
        progress.say("Nothing was left to train, so there is nothing to profile")
        return
    save_profile(run.training_profile, profile)
    for line in profile_lines(profile):
        progress.say(line)


def _profiler_of(model: LocalModel, cores: int) -> TrainingProfiler:
    store = model.store
    return TrainingProfiler(
        cores=cores,
        lock_waits=(lambda: 0.0) if store is None else store.rows.lock_wait_seconds,
    )


def open_trained(loaded: LoadedConfig, run: RunFolder, progress: Progress) -> TrainedModel:
    """Loads the best epoch of a training; the newest whole checkpoint if that one is damaged.

    Which checkpoints were passed over is said.

    Raises:
        CheckpointError: Nothing was trained here, or training has not finished an epoch.
    """
    if (run.job / "spec.json").exists():
        # With the words of members of a job, which others need not load.
        from ctr_pipeline.pipeline.job_model import open_job_model

        return open_job_model(loaded, run, progress)
    checkpoints = CheckpointFolder(run.checkpoints)
    checkpoint = checkpoints.load_newest(progress.say)
    if checkpoint is None or checkpoint.state["best_step"] is None:
        raise CheckpointError(
            "holds no trained model",
            place=str(run.path),
            remedy="Run 'ctrpipe train' (or 'ctrpipe run') with this config first",
        )
    state = TrainingState.from_json(checkpoint.state)
    if checkpoint.step != state.best_step and state.best_step is not None:
        try:
            checkpoint = checkpoints.load(state.best_step)
        except CheckpointError as error:
            progress.say(f"The newest checkpoint is used instead of the best: {error}")
    plan = load_plan(run.preprocessing)
    require_same_plan(state, plan, run)
    model = assemble_local(loaded, run, plan, None)
    load_parameters(checkpoint, model.lookup, model.dense)
    return model.trained(state)


def require_same_plan(state: TrainingState, plan: PreprocessingPlan, run: RunFolder) -> None:
    """Refuses parameters that were trained with other transforms.

    Raises:
        CheckpointError: They were.
    """
    if state.plan_fingerprint != plan_fingerprint(plan):
        raise CheckpointError(
            "was trained with other transforms than those that lie beside it now",
            place=str(run.path),
            remedy="Run 'ctrpipe run' with --overwrite: data or config changed since then",
        )


def require_same_rows(state: TrainingState, fingerprint: str, run: RunFolder) -> None:
    """Refuses parameters that were trained on other rows or with other transforms.

    Raises:
        CheckpointError: The data changed since.
    """
    if state.rows_fingerprint != fingerprint:
        raise CheckpointError(
            "the data changed since the model was trained",
            place=str(run.path),
            remedy="Run 'ctrpipe run' with --overwrite to train on it from the start",
        )


def assemble_local(
    loaded: LoadedConfig,
    run: RunFolder,
    plan: PreprocessingPlan,
    counts: Sequence[NDArray[np.int64]] | None,
) -> LocalModel:
    """The model of a config with initial parameters.

    Args:
        loaded: The config.
        run: The run folder.
        plan: Fitted transforms.
        counts: Occurrences of each id in the training rows; None where nothing is trained.
    """
    config = loaded.config
    shares = thread_shares(config.runtime)
    compiled = compile_model(
        config, run, plan, threads=shares.tensorflow, trains=counts is not None
    )
    store = build_store(plan, counts, model=config.model, train=config.train, threads=shares.rows)
    dense = DenseParameters(compiled.initial_parameters(), optimizer_spec(config.train.optimizer))
    return LocalModel(plan, compiled, store, dense, lookup_of(store, config.model))
