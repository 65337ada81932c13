"""Encoded rows → trained parameters."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.dataset.encoded import EncodedReader
from ctr_pipeline.embeddings.dense import DenseParameters
from ctr_pipeline.embeddings.store import EmbeddingStore
from ctr_pipeline.errors import CheckpointError
from ctr_pipeline.pipeline.dense_model import compile_model
from ctr_pipeline.pipeline.encoding_stage import Encoding, plan_fingerprint
from ctr_pipeline.pipeline.resources import num_threads
from ctr_pipeline.pipeline.rows import build_store, lookup_of, optimizer_spec
from ctr_pipeline.pipeline.timing import StageTimes
from ctr_pipeline.pipeline.workspace import RunFolder
from ctr_pipeline.preprocessing.fitted import PreprocessingPlan, load_plan
from ctr_pipeline.progress import Progress
from ctr_pipeline.training.checkpoint import CheckpointFolder
from ctr_pipeline.training.compiled import CompiledModel
from ctr_pipeline.training.parameters import load_parameters
from ctr_pipeline.training.scoring import Scorer
from ctr_pipeline.training.trainer import Trainer, TrainerFiles, TrainingState


@dataclass(frozen=True)
class TrainedModel:
    """A model with its parameters, ready to score and to export.

    Attributes:
        plan: Fitted transforms.
        compiled: The dense part.
        store: Embedding rows; None without fields.
        dense: Dense parameters.
        scorer: Ids and numbers → logits.
        state: How training went.
    """

    plan: PreprocessingPlan
    compiled: CompiledModel
    store: EmbeddingStore | None
    dense: DenseParameters
    scorer: Scorer
    state: TrainingState


def run_training(
    loaded: LoadedConfig,
    run: RunFolder,
    encoding: Encoding,
    *,
    resume: bool,
    progress: Progress,
    times: StageTimes,
) -> TrainedModel:
    """Trains from the start, or goes on from the newest whole checkpoint."""
    config = loaded.config
    with times.stage("training"), contextlib.ExitStack() as stack:
        model = _assemble(loaded, run, encoding.plan, encoding.counts)
        readers = {
            split: stack.enter_context(EncodedReader(encoding.folders[split]))
            for split in ("train", "valid")
        }
        trainer = Trainer(
            config=config.train,
            compiled=model.compiled,
            embeddings=lookup_of(model.store, config.model),
            dense=model.dense,
            train=readers["train"],
            valid=readers["valid"],
            files=TrainerFiles(run.checkpoints, run.history, run.events),
            progress=progress,
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
    return TrainedModel(model.plan, model.compiled, model.store, model.dense, model.scorer, state)


def open_trained(loaded: LoadedConfig, run: RunFolder, progress: Progress) -> TrainedModel:
    """Loads the best epoch of a training; the newest whole checkpoint if that one is damaged.

    Which checkpoints were passed over is said.

    Raises:
        CheckpointError: Nothing was trained here, or training has not finished an epoch.
    """
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
    if state.plan_fingerprint != plan_fingerprint(plan):
        raise CheckpointError(
            "was trained with other transforms than those that lie beside it now",
            place=str(run.path),
            remedy="Run 'ctrpipe run' with --overwrite: data or config changed since then",
        )
    model = _assemble(loaded, run, plan, None)
    load_parameters(checkpoint, lookup_of(model.store, loaded.config.model), model.dense)
    return TrainedModel(plan, model.compiled, model.store, model.dense, model.scorer, state)


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


def _assemble(
    loaded: LoadedConfig,
    run: RunFolder,
    plan: PreprocessingPlan,
    counts: Sequence[NDArray[np.int64]] | None,
) -> TrainedModel:
    config = loaded.config
    threads = num_threads(config.runtime)
    compiled = compile_model(config, run, plan, threads=threads)
    store = build_store(plan, counts, model=config.model, train=config.train, threads=threads)
    dense = DenseParameters(compiled.initial_parameters(), optimizer_spec(config.train.optimizer))
    scorer = Scorer(compiled, lookup_of(store, config.model), dense)
    return TrainedModel(plan, compiled, store, dense, scorer, TrainingState())
