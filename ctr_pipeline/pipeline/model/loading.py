"""Checkpoints → a trained model."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.config.models import Config
from ctr_pipeline.embeddings.stored_rows import StoredRows, open_row_file
from ctr_pipeline.errors import CheckpointError
from ctr_pipeline.pipeline.model.ensemble import EnsembleRows, TrainedMember, member_configs
from ctr_pipeline.pipeline.model.trained_model import (
    LocalModel,
    OpenedModel,
    TrainedModel,
    assemble_local,
    require_same_plan,
    require_same_rows,
)
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.pipeline.stages.refit import load_refit
from ctr_pipeline.preprocessing.plan import load_plan
from ctr_pipeline.progress import Progress
from ctr_pipeline.training.checkpoint import Checkpoint, Checkpoints
from ctr_pipeline.training.ensemble import EnsembleDense, EnsembleNetwork, EnsembleScorer
from ctr_pipeline.training.parameters import load_dense, load_parameters, open_rows
from ctr_pipeline.training.trainer import TrainingState


def open_trained(loaded: LoadedConfig, run: RunFolder, progress: Progress) -> TrainedModel:
    """Loads the best epoch of a training; the newest whole checkpoint if that one is damaged.

    Which checkpoints were passed over is said. All models of an ensemble are in memory then.

    Raises:
        CheckpointError: Nothing was trained here, or training has not finished an epoch.
    """
    if (run.job / "spec.json").exists():
        # With the words of members of a job, which others need not load.
        from ctr_pipeline.pipeline.job.trained_cut import open_job_model

        return open_job_model(loaded, run, progress)
    return _open_all(loaded, run, progress, _load)


@contextlib.contextmanager
def streamed_trained(
    loaded: LoadedConfig, run: RunFolder, progress: Progress
) -> Iterator[TrainedModel]:
    """As `open_trained`, but the rows stay on the disk: memory does not depend on their number.

    Raises:
        CheckpointError: Nothing was trained here, or training has not finished an epoch.
        RunFolderError: The disk has no room for the rows once more, sorted.
    """
    workspace = run.path / "cache"
    workspace.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:

        def stream(model: LocalModel, checkpoint: Checkpoint) -> StoredRows | None:
            load_dense(checkpoint, model.dense)
            if model.store is None:
                return None
            rows = open_row_file(model.store, lambda: open_rows(checkpoint), workspace)
            stack.callback(rows.release)
            return rows

        if (run.job / "spec.json").exists():
            from ctr_pipeline.pipeline.job.trained_cut import stream_job_model

            yield stream_job_model(loaded, run, progress, stack)
        else:
            yield _open_all(loaded, run, progress, stream)


_ReadRows = Callable[[LocalModel, Checkpoint], StoredRows | None]
"""Gives a model the dense parameters of a checkpoint, and its rows, or leaves them on the disk."""


def _load(model: LocalModel, checkpoint: Checkpoint) -> None:
    load_parameters(checkpoint, model.lookup, model.dense)


def _open_all(
    loaded: LoadedConfig, run: RunFolder, progress: Progress, read: _ReadRows
) -> TrainedModel:
    """The model of a config, or those of its ensemble as one."""
    configs = member_configs(loaded.config)
    folders = [run.member(number) for number in range(len(configs))] or [run]
    if not loaded.config.train.refit and any(one.refit.checkpoints.exists() for one in folders):
        progress.log("train.refit is false: using the model that has not seen the validation rows")
    if not configs:
        return _open(loaded, run, run, progress, read).trained()
    opened = [
        _open(replace(loaded, config=config), run, folder, progress, read)
        for folder, config in zip(folders, configs, strict=True)
    ]
    return _join(opened, configs, run)


def _open(
    loaded: LoadedConfig, run: RunFolder, folder: RunFolder, progress: Progress, read: _ReadRows
) -> OpenedModel:
    """One model with the parameters of its best epoch, or of its training with validation rows."""
    checkpoints = Checkpoints(folder.checkpoint_storage)
    checkpoint = checkpoints.load_newest(progress.log)
    if checkpoint is None or checkpoint.state["best_step"] is None:
        is_member = folder != run and bool(run.trained_folders())
        raise CheckpointError(
            "holds no trained model",
            place=str(folder.path),
            remedy="Run 'ctrpipe run' with --resume to train the rest of the ensemble"
            if is_member
            else "Run 'ctrpipe train' (or 'ctrpipe run') with this config first",
        )
    state = TrainingState.from_json(checkpoint.state)
    if loaded.config.train.refit:
        checkpoint = load_refit(folder, checkpoint.state, progress)
        state = replace(state, refit=TrainingState.from_json(checkpoint.state).refit)
    elif checkpoint.step != state.best_step and state.best_step is not None:
        try:
            checkpoint = checkpoints.load(state.best_step)
        except CheckpointError as error:
            progress.log(f"The newest checkpoint is used instead of the best: {error}")
    plan = load_plan(run.preprocessing)
    require_same_plan(state, plan, run)
    model = assemble_local(loaded, run, plan, None)
    rows = read(model, checkpoint)
    return model.opened(state) if rows is None else model.opened_with(rows, state)


def _join(
    models: Sequence[OpenedModel],
    configs: Sequence[Config],
    run: RunFolder,
) -> TrainedModel:
    """The models of an ensemble as one.

    Raises:
        CheckpointError: They were trained on different rows.
    """
    first, state = models[0], models[0].state
    for other in models[1:]:
        require_same_rows(other.state, state.rows_fingerprint, run)
    rows = [model.rows for model in models if model.rows is not None]
    dim = configs[0].model.embedding_dim
    return TrainedModel(
        plan=first.plan,
        compiled=EnsembleNetwork(tuple(model.compiled for model in models), dim),
        rows=EnsembleRows(rows, first.row_width) if rows else None,
        dense=EnsembleDense.of([model.dense for model in models]),
        scorer=EnsembleScorer([model.scorer for model in models], configs[0].train.batch_size),
        state=state,
        row_width=len(models) * first.row_width,
        members=tuple(
            TrainedMember(config.model.name, config.train.seed, model.state)
            for config, model in zip(configs, models, strict=True)
        ),
    )
