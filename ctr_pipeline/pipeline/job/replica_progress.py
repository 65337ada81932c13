"""What a training by replicas tells while it goes on, as files in `replicas/`.

The first replica tells of its progress, `progress.json`; whoever started the replicas of their
processes, `members.json`.
"""

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ctr_pipeline import durable
from ctr_pipeline.distributed.coordination.codec import MalformedMessage, decode, encode
from ctr_pipeline.distributed.coordination.job.status import MemberStatus
from ctr_pipeline.distributed.coordination.news import JobNews, NewsLine
from ctr_pipeline.distributed.master.status import JobEvent
from ctr_pipeline.errors import CtrPipelineError, RunFolderError
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.training.history import EpochRecord, WorldRecord

if TYPE_CHECKING:
    from ctr_pipeline.training.trainer import TrainingState

_LOGGER = logging.getLogger(__name__)
_FILE = "progress.json"
_MEMBERS = "members.json"
_METRICS = "metrics-address"


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


@dataclass(frozen=True)
class ReplicaMembers:
    """The processes of a training by replicas, and what happened to them.

    Attributes:
        members: Workers, and servers of embedding rows; empty where nobody has told of them.
        events: The last ones.
    """

    members: tuple[MemberStatus, ...] = ()
    events: tuple[JobEvent, ...] = ()


def describe_world(world: WorldRecord) -> str:
    """One sentence about a world that has formed."""
    several = "s" if world.size > 1 else ""
    steps = "step is" if world.steps_repeated == 1 else "steps are"
    again = f" ({world.steps_repeated:,} {steps} repeated)" if world.steps_repeated else ""
    return (
        f"World {world.version}: {world.size} worker{several} from step {world.step:,} with "
        f"{world.step_rows:,} rows a step, after {world.seconds:.1f} s{again}"
    )


def collect_news(
    told: ReplicaProgress, *, epochs: int, num_rows: int, lines: tuple[NewsLine, ...]
) -> JobNews:
    """What the launcher shows of a training.

    Args:
        epochs: To train at most.
        num_rows: Rows of an epoch.
        lines: What has happened since the last news.
    """
    last = told.history[-1] if told.history else None
    return JobNews(
        phase="training" if told.epoch < epochs else "trained",
        fraction=min(1.0, (told.epoch * num_rows + told.rows) / (epochs * num_rows)),
        num_workers=told.worlds[-1].size if told.worlds else 0,
        # Of the last epoch: before its end, nothing is known.
        samples_per_second=last.num_rows / last.seconds if last and last.seconds else 0.0,
        auc=last.valid_auc if last else None,
        checkpoint_at=None,
        lines=lines,
    )


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


def save_members(run: RunFolder, told: ReplicaMembers) -> None:
    """Tells of the members; replaces what was told before as a whole."""
    try:
        durable.write_text(run.replicas / _MEMBERS, encode(told).decode())
    except CtrPipelineError as error:
        # Nothing but a view rests on it.
        _LOGGER.warning("What the members do cannot be told: %s", error)


def load_members_told(run: RunFolder) -> ReplicaMembers:
    """What was told of the members last.

    Raises:
        RunFolderError: The file is damaged.
    """
    path = run.replicas / _MEMBERS
    try:
        return decode(ReplicaMembers, path.read_bytes())
    except OSError:
        return ReplicaMembers()
    except MalformedMessage as error:
        raise RunFolderError(
            f"is damaged ({error})", place=str(path), remedy="Remove it: it is written anew"
        ) from error


class ReplicaCollector(Collector):
    """Reads the progress of a training by replicas when Prometheus asks."""

    def __init__(self, told: Callable[[], ReplicaProgress | None]) -> None:
        self._told = told

    def collect(self) -> Iterator[Metric]:
        """All metrics; none before the first step."""
        told = self._told()
        if told is None or not told.worlds:
            return
        newest, changes = told.worlds[-1], told.worlds[1:]
        yield GaugeMetricFamily("ctrpipe_step", "Steps done.", told.step)
        yield GaugeMetricFamily("ctrpipe_epoch", "Epoch that is trained, from 1.", told.epoch + 1)
        yield GaugeMetricFamily(
            "ctrpipe_world_version", "Version of the world that trains now.", newest.version
        )
        yield GaugeMetricFamily("ctrpipe_world_size", "Replicas that train now.", newest.size)
        yield CounterMetricFamily(
            "ctrpipe_world_changes",
            "Changes of the replicas that train together.",
            value=len(changes),
        )
        yield CounterMetricFamily(
            "ctrpipe_world_change_seconds",
            "Time from when replicas stopped training until the next world could.",
            value=sum(world.seconds for world in changes),
        )
        yield CounterMetricFamily(
            "ctrpipe_world_steps_repeated",
            "Steps computed and not applied, or lost with a server of embedding rows.",
            value=sum(world.steps_repeated for world in told.worlds),
        )
        if told.history:
            last = told.history[-1]
            yield GaugeMetricFamily(
                "ctrpipe_train_logloss", "Training logloss of the last epoch.", last.train_logloss
            )
            yield GaugeMetricFamily(
                "ctrpipe_valid_auc", "AUC of the last validation.", last.valid_auc
            )


def save_metrics_address(run: RunFolder, address: str) -> None:
    """Announces `host:port` of the metrics of a training by replicas."""
    durable.write_text(run.replicas / _METRICS, address)


def load_metrics_address(run: RunFolder) -> str:
    """Where these metrics are or were served; empty if they never were."""
    try:
        return (run.replicas / _METRICS).read_text("utf-8")
    except OSError:
        return ""


def discard_progress(run: RunFolder) -> None:
    """Forgets what an earlier start told."""
    for name in (_FILE, _MEMBERS):
        (run.replicas / name).unlink(missing_ok=True)
