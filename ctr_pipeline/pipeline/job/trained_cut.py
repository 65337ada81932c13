"""Cuts of a job that ran in several processes, to score with in several processes."""

from dataclasses import dataclass

from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.distributed.master.manifests import CutManifest, Cuts
from ctr_pipeline.distributed.rpc.spec_file import load_spec
from ctr_pipeline.embeddings.cut_storage import CutStorage
from ctr_pipeline.errors import CheckpointError
from ctr_pipeline.pipeline.model.loading import find_trained
from ctr_pipeline.pipeline.model.trained_model import require_same_plan
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.preprocessing.plan import PreprocessingPlan, load_plan
from ctr_pipeline.progress import Progress
from ctr_pipeline.training.history import EpochRecord
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
    """As `find_trained`, of a run with a job.

    Raises:
        CheckpointError: As there.
    """
    checkpoint, state = find_trained(loaded.config, run, run, progress)
    plan = load_plan(run.preprocessing)
    require_same_plan(state, plan, run)
    return TrainedCut(cuts_of(run).load(checkpoint.number), state, plan)


def cuts_of(run: RunFolder) -> Cuts:
    """The cuts of a run's job, with what was trained before there was one."""
    return Cuts(CutStorage(run.checkpoint_storage), spec=load_spec(run.job))


def find_newest_cut(run: RunFolder, progress: Progress) -> TrainedCut:
    """The newest whole cut of a job that trains; it may be one of the middle of an epoch.

    Raises:
        CheckpointError: There is none, or it is of another model than the folder's.
    """
    cuts = cuts_of(run)
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
