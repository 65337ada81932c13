"""The training on training and validation rows together: which one belongs to a best epoch."""

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
    """The epoch that the validation rows like best, from 1, of a training that has one."""
    steps = {record["step"]: record["epoch"] for record in chosen["history"]}
    return int(steps[chosen["best_step"]]) + 1


def find_refit(
    folder: RunFolder, chosen: Mapping[str, Any], progress: Progress, *, is_whole: bool
) -> Checkpoint | None:
    """The newest checkpoint of the training that the best epoch asks for.

    Args:
        folder: The folder of the training before: the run folder, or a member's.
        chosen: The state of that training, in a checkpoint that knows of a best epoch.
        progress: Told of damaged checkpoints, which are passed over.
        is_whole: Whether it must have come to its end.

    Returns:
        None if there is none, or it is of other rows, of another best epoch, or damaged: it can
        be trained again.
    """
    try:
        checkpoint = Checkpoints(folder.refit.checkpoint_storage).load_newest(progress.log)
    except CheckpointError:
        # Every one was said to be passed over.
        return None
    if checkpoint is None:
        return None
    state = checkpoint.state
    belongs = state["refit"]["epochs"] == best_epoch(chosen) and all(
        state[key] == chosen[key] for key in ("rows_fingerprint", "plan_fingerprint")
    )
    return checkpoint if belongs and (state["best_step"] is not None or not is_whole) else None


def load_refit(folder: RunFolder, chosen: Mapping[str, Any], progress: Progress) -> Checkpoint:
    """The end of the training that the best epoch asks for.

    Raises:
        CheckpointError: It has not come to its end.
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
    """Makes an empty folder for a new one; a kill meanwhile leaves the old one whole or gone."""
    path = folder.refit.path
    aside = path.with_name(f".{path.name}.tmp")
    with durable.os_errors_explained(path):
        shutil.rmtree(aside, ignore_errors=True)
        if path.exists():
            path.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
        path.mkdir(parents=True)
