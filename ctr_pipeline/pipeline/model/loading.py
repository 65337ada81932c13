"""Opens a trained model from its checkpoints."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.config.models import Config
from ctr_pipeline.errors import CheckpointError
from ctr_pipeline.pipeline.model.dense_model import compile_model
from ctr_pipeline.pipeline.model.embedding_rows import ReadableRows
from ctr_pipeline.pipeline.model.ensemble import EnsembleRows, TrainedMember, member_configs
from ctr_pipeline.pipeline.model.trained_model import (
    TrainedModel,
    initial_parameters,
    require_same_plan,
    require_same_rows,
    sorting_folder,
)
from ctr_pipeline.pipeline.refit import load_refit
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.preprocessing.plan import load_plan
from ctr_pipeline.progress import Progress
from ctr_pipeline.training.checkpoint import Checkpoint, Checkpoints
from ctr_pipeline.training.ensemble import EnsembleDense, EnsembleNetwork, EnsembleScorer
from ctr_pipeline.training.history import judged_history
from ctr_pipeline.training.parameters import load_dense, load_rows, open_rows
from ctr_pipeline.training.stopping import decide_stop
from ctr_pipeline.training.trainer import TrainingState


def open_trained(
    loaded: LoadedConfig, run: RunFolder, progress: Progress, *, on_disk: ExitStack | None = None
) -> TrainedModel:
    """Opens the model of a training's best epoch; of the newest whole checkpoint if it is damaged.

    Args:
        loaded: The config.
        run: The run folder.
        progress: Logs each checkpoint that is damaged.
        on_disk: Leaves the embedding rows on disk, sorted in the run folder until the stack closes,
            so that memory does not depend on their number. None loads the rows, those of all models
            of an ensemble.

    Raises:
        CheckpointError: Nothing was trained here, or training has not finished an epoch.
        RunFolderError: The disk has no room for the sorted rows.
    """
    configs = member_configs(loaded.config)
    folders = [run.member(number) for number in range(len(configs))] or [run]
    if not loaded.config.train.refit and any(one.refit.path.exists() for one in folders):
        progress.log("train.refit is false: using the model that has not seen the validation rows")
    models = [
        _open(config, run, folder, progress, on_disk)
        for folder, config in zip(folders, configs or [loaded.config], strict=True)
    ]
    return _join(models, configs, run) if configs else models[0]


def _open(
    config: Config,
    run: RunFolder,
    folder: RunFolder,
    progress: Progress,
    on_disk: ExitStack | None,
) -> TrainedModel:
    """Opens one model: its best epoch, or the end of its refit.

    Args:
        config: The model's config.
        run: The run folder.
        folder: Where the model's checkpoints are: the run folder, or that of an ensemble's member.
        progress: As for `open_trained`.
        on_disk: As for `open_trained`.
    """
    checkpoint, state = find_trained(config, run, folder, progress)
    plan = load_plan(run.preprocessing)
    require_same_plan(state, plan, run)
    compiled = compile_model(config, run, plan, trains=False)
    parameters = initial_parameters(config, run, plan, None, compiled)
    rows: ReadableRows = parameters.rows
    if on_disk is None:
        load_rows(checkpoint, parameters.rows)
    else:
        rows = open_rows(checkpoint, parameters.rows, sorting_folder(run))
        on_disk.callback(rows.release)
    load_dense(checkpoint, parameters.dense)
    return TrainedModel.of(plan, compiled, rows, parameters.dense, state)


def find_trained(
    config: Config, run: RunFolder, folder: RunFolder, progress: Progress
) -> tuple[Checkpoint, TrainingState]:
    """The checkpoint of the best epoch until now, or the newest whole one if that is damaged.

    Training may still go on.

    Args:
        config: The model's config.
        run: The run folder.
        folder: Where the model's checkpoints are: the run folder, or that of an ensemble's member.
        progress: Logs each checkpoint that is damaged.

    Returns:
        The checkpoint, and how training went.

    Raises:
        CheckpointError: Nothing was trained here, or training has not finished an epoch.
    """
    checkpoints = Checkpoints(folder.checkpoint_storage)
    newest = checkpoints.load_newest(progress.log)
    state = None if newest is None else _judged(newest, config, folder)
    if newest is None or state is None or state.best_step is None:
        raise _not_trained(run, folder)
    if config.train.refit:
        refitted = load_refit(folder, newest.state, progress)
        return refitted, replace(state, refit=TrainingState.from_json(refitted.state).refit)
    best = next(record for record in state.history if record.step == state.best_step)
    try:
        return checkpoints.load_epoch(best.epoch, newest=newest), state
    except CheckpointError as error:
        progress.log(f"The newest checkpoint is used instead of the best: {error}")
        return newest, state


def _judged(newest: Checkpoint, config: Config, folder: RunFolder) -> TrainingState:
    """How training went until a checkpoint, with an epoch that was validated after it."""
    state = TrainingState.from_json(newest.state)
    history = judged_history(newest.state, folder.history)
    if len(history) == len(state.history):
        return state
    decision = decide_stop(history, config.train.early_stopping, config.train.epochs)
    return replace(
        state,
        history=history,
        best_step=history[decision.best_epoch].step,
        finished=decision.reason,
    )


def _not_trained(run: RunFolder, folder: RunFolder) -> CheckpointError:
    if folder != run and run.trained_folders():
        remedy = "Run 'ctrpipe run' with --resume to train the rest of the ensemble"
    elif (run.job / "spec.json").exists():
        remedy = (
            "Wait for its first epoch if it trains now; if not, run 'ctrpipe train' (or 'ctrpipe "
            "run') with --resume"
        )
    elif run.has_results():
        remedy = "Run 'ctrpipe run' with this config and --resume to train it"
    else:
        remedy = "Run 'ctrpipe train' (or 'ctrpipe run') with this config first"
    return CheckpointError("holds no trained model", place=str(folder.path), remedy=remedy)


def _join(
    models: Sequence[TrainedModel], configs: Sequence[Config], run: RunFolder
) -> TrainedModel:
    """Joins the models of an ensemble.

    Raises:
        CheckpointError: They were trained on different rows.
    """
    first, state = models[0], models[0].state
    for other in models[1:]:
        require_same_rows(other.state, state.rows_fingerprint, run)
    return TrainedModel(
        plan=first.plan,
        compiled=EnsembleNetwork(
            tuple(model.compiled for model in models), configs[0].model.embedding_dim
        ),
        rows=EnsembleRows([model.rows for model in models]),
        dense=EnsembleDense.of([model.dense for model in models]),
        scorer=EnsembleScorer([model.scorer for model in models], configs[0].train.batch_size),
        state=state,
        members=tuple(
            TrainedMember(config.model.name, config.train.seed, model.state)
            for config, model in zip(configs, models, strict=True)
        ),
    )
