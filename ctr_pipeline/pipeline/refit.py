"""Finds the refit, the training on training and validation rows, that belongs to a best epoch."""

import shutil
from collections.abc import Mapping
from typing import Any

from ctr_pipeline import durable
from ctr_pipeline.errors import CheckpointError
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.progress import Progress
from ctr_pipeline.training.checkpoint import Checkpoint, Checkpoints

# States of trainings are as checkpoints hold them: an earlier run is looked into before TensorFlow
# is loaded, which their class would load along.


def best_epoch(chosen: Mapping[str, Any]) -> int:
    """The best epoch of a training, counted from 1."""
    steps = {record["step"]: record["epoch"] for record in chosen["history"]}
    return int(steps[chosen["best_step"]]) + 1


def find_refit(
    folder: RunFolder, chosen: Mapping[str, Any], progress: Progress, *, is_whole: bool
) -> Checkpoint | None:
    """Finds the newest checkpoint of the refit for a best epoch.

    Args:
        folder: Folder of the training that found it: the run folder, or that of a member.
        chosen: State of that training, with a best epoch.
        progress: Logs damaged checkpoints, which are skipped.
        is_whole: Whether the refit must have finished.

    Returns:
        None if there is none, or it is of other rows, of another best epoch, or damaged: the
        caller trains it again.
    """
    try:
        checkpoint = Checkpoints(folder.refit.checkpoint_storage).load_newest(progress.log)
    except CheckpointError:
        # Each was logged as skipped.
        return None
    if checkpoint is None:
        return None
    state = checkpoint.state
    belongs = state["refit"]["epochs"] == best_epoch(chosen) and all(
        state[key] == chosen[key] for key in ("rows_fingerprint", "plan_fingerprint")
    )
    return checkpoint if belongs and (state["best_step"] is not None or not is_whole) else None


def load_refit(folder: RunFolder, chosen: Mapping[str, Any], progress: Progress) -> Checkpoint:
    """Loads the last checkpoint of the refit for the best epoch.

    Raises:
        CheckpointError: The refit has not finished.
    """
    checkpoint = find_refit(folder, chosen, progress, is_whole=True)
    if checkpoint is None:
        raise CheckpointError(
            "is not trained to its end with the validation rows",
            place=str(folder.path),
            remedy="Run 'ctrpipe run' with --resume, or set train.refit to false",
        )
    return checkpoint


def discard_refit(folder: RunFolder) -> None:
    """Deletes a refit, atomically, and makes an empty folder for the next one."""
    path = folder.refit.path
    aside = path.with_name(f".{path.name}.tmp")
    with durable.os_errors_explained(path):
        shutil.rmtree(aside, ignore_errors=True)
        if path.exists():
            path.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
        path.mkdir(parents=True)
    folder.refit.discard_stored()
