"""The model of a job that ran in several processes, loaded from its best cut."""

from contextlib import ExitStack
from dataclasses import dataclass

from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.distributed.master.manifests import (
    CutManifest,
    Cuts,
)
from ctr_pipeline.distributed.rpc.spec_file import load_spec
from ctr_pipeline.embeddings.cut_storage import CutStorage
from ctr_pipeline.errors import CheckpointError
from ctr_pipeline.pipeline.job.cut_files import find_cuts, last_of_epoch, open_cut, restore_cut
from ctr_pipeline.pipeline.model.dense_model import compile_model
from ctr_pipeline.pipeline.model.embedding_rows import ReadableRows
from ctr_pipeline.pipeline.model.trained_model import (
    TrainedModel,
    initial_parameters,
    require_same_plan,
    sorting_folder,
)
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.preprocessing.plan import PreprocessingPlan, load_plan
from ctr_pipeline.progress import Progress
from ctr_pipeline.training.compiled import CompiledModel
from ctr_pipeline.training.history import EpochRecord, load_history
from ctr_pipeline.training.stopping import decide_stop
from ctr_pipeline.training.trainer import TrainingState


@dataclass(frozen=True)
class TrainedCut:
    """A cut of a job, to score with.

    Attributes:
        state: How training went until then, or until now.
        plan: Fitted transforms.
    """

    manifest: CutManifest
    state: TrainingState
    plan: PreprocessingPlan


def find_trained_cut(loaded: LoadedConfig, run: RunFolder, progress: Progress) -> TrainedCut:
    """The cut of the best epoch until now, or the newest whole one if that is damaged.

    The job may still train.

    Raises:
        CheckpointError: Nothing was trained here, or training has not finished an epoch.
    """
    spec = load_spec(run.job)
    history = load_history(run.history)
    if not history:
        raise CheckpointError(
            "holds no trained model: no epoch is done",
            place=str(run.path),
            remedy="Wait for its first epoch if it trains now; if not, run 'ctrpipe train' (or "
            "'ctrpipe run') with --resume",
        )
    decision = decide_stop(history, loaded.config.train.early_stopping, loaded.config.train.epochs)
    best = next(record for record in history if record.epoch == decision.best_epoch)
    manifest = _find_cut(CutStorage(run.checkpoint_storage), best, progress)
    state = TrainingState(
        step=manifest.facts.step,
        history=history,
        best_step=best.step,
        finished=decision.reason,
        rows_fingerprint=spec.rows_fingerprint,
        plan_fingerprint=spec.plan_fingerprint,
    )
    plan = load_plan(run.preprocessing)
    require_same_plan(state, plan, run)
    return TrainedCut(manifest, state, plan)


def find_newest_cut(run: RunFolder, progress: Progress) -> TrainedCut:
    """The newest whole cut of a job that trains; it may be one of the middle of an epoch.

    Raises:
        CheckpointError: There is none, or it is of another model than the folder's.
    """
    cuts = Cuts(CutStorage(run.checkpoint_storage), load_spec(run.job).job)
    for number in cuts.numbers():
        try:
            manifest = cuts.load(number)
            cuts.check_files(manifest, read=True)
        except CheckpointError as error:
            # Training deletes old ones meanwhile, and that is no damage.
            if number in cuts.numbers():
                progress.log(f"Skipping a checkpoint: number {number}: {error}")
            continue
        facts = manifest.facts
        state = TrainingState(
            step=facts.step,
            history=[EpochRecord(**record) for record in manifest.history],
            rows_fingerprint=facts.rows_fingerprint,
            plan_fingerprint=facts.plan_fingerprint,
        )
        plan = load_plan(run.preprocessing)
        require_same_plan(state, plan, run)
        return TrainedCut(manifest, state, plan)
    raise CheckpointError(
        "no checkpoint is whole",
        place=run.checkpoints_address,
        remedy="Wait for the next one, if the model still trains",
    )


def open_trained_cut(
    loaded: LoadedConfig,
    run: RunFolder,
    progress: Progress,
    *,
    on_disk: ExitStack | None,
    compiled: CompiledModel | None = None,
) -> TrainedModel:
    """Opens the model of the best epoch.

    Args:
        loaded: The config.
        run: The run folder.
        progress: Logs each cut that is damaged.
        on_disk: As for `open_trained`.
        compiled: The dense part; None compiles it.

    Raises:
        CheckpointError: As `find_trained_cut`.
        RunFolderError: The disk has no room for the sorted rows.
    """
    cut, config = find_trained_cut(loaded, run, progress), loaded.config
    if compiled is None:
        compiled = compile_model(config, run, cut.plan, trains=False)
    parameters = initial_parameters(config, run, cut.plan, None, compiled)
    rows: ReadableRows = parameters.rows
    if on_disk is None:
        restore_cut(parameters, CutStorage(run.checkpoint_storage), cut.manifest)
    else:
        rows = open_cut(
            parameters, CutStorage(run.checkpoint_storage), cut.manifest, sorting_folder(run)
        )
        on_disk.callback(rows.release)
    return TrainedModel.of(cut.plan, compiled, rows, parameters.dense, cut.state)


def _find_cut(storage: CutStorage, best: EpochRecord, progress: Progress) -> CutManifest:
    """The last cut of the best epoch, or else the newest one that is whole."""
    found = find_cuts(Cuts(storage, None), progress)
    if not found:
        raise CheckpointError(
            "no checkpoint is whole",
            place=storage.address,
            remedy="Run 'ctrpipe run' with --overwrite to train from the start",
        )
    of_best = last_of_epoch(found, best.epoch)
    if of_best is None:
        progress.log("The newest checkpoint is used instead of the best, which is not whole")
        return found[0]
    return of_best
