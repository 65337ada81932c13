"""What the first of several replicas tells of its progress: `replicas/progress.json`."""

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ctr_pipeline import durable
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.training.history import EpochRecord, WorldRecord

if TYPE_CHECKING:
    from ctr_pipeline.training.trainer import TrainingState

_FILE = "progress.json"


@dataclass(frozen=True)
class ReplicaProgress:
    """How far a training by replicas is.

    Attributes:
        step: Steps done.
        epoch: From 0; the number of epochs after the last one.
        rows: Rows of this epoch so far.
        worlds: In their order; the last one trains.
        history: Finished epochs.
    """

    step: int
    epoch: int
    rows: int
    worlds: tuple[WorldRecord, ...]
    history: tuple[EpochRecord, ...]


def save_progress(run: RunFolder, state: "TrainingState") -> None:
    """Tells of a state; replaces what was told before as a whole."""
    told = {
        "step": state.step,
        "epoch": state.position.epoch,
        "rows": state.epoch_rows,
        "worlds": [asdict(world) for world in state.worlds],
        "history": [asdict(record) for record in state.history],
    }
    durable.write_text(run.replicas / _FILE, json.dumps(told) + "\n")


def load_progress(run: RunFolder) -> ReplicaProgress | None:
    """What was told last; None if nothing was."""
    try:
        told: dict[str, Any] = json.loads((run.replicas / _FILE).read_text("utf-8"))
    except OSError:
        return None
    told["worlds"] = tuple(WorldRecord(**world) for world in told["worlds"])
    told["history"] = tuple(EpochRecord(**record) for record in told["history"])
    return ReplicaProgress(**told)


def discard_progress(run: RunFolder) -> None:
    """Forgets what an earlier start told."""
    (run.replicas / _FILE).unlink(missing_ok=True)
