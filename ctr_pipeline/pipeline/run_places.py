"""What lies where in the folder of a run."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from ctr_pipeline.config.resolved import RESOLVED_CONFIG
from ctr_pipeline.errors import RunFolderError
from ctr_pipeline.pipeline.stored_run import StoredRun
from ctr_pipeline.storage.opening import open_storage
from ctr_pipeline.storage.protocol import Storage


@dataclass(frozen=True)
class RunPlaces:
    """What lies where in the folder of one run.

    Attributes:
        checkpoints_at: Address of its checkpoints; None: they lie in the folder.
        stored: Where the run is kept of which the folder is a working copy; None: only there.
    """

    path: Path
    checkpoints_at: str | None = None
    stored: StoredRun | None = None

    @property
    def place(self) -> str:
        """The run as errors and commands name it."""
        return str(self.path) if self.stored is None else self.stored.address

    @property
    def config(self) -> Path:
        """The config with all defaults."""
        return self.path / RESOLVED_CONFIG

    @property
    def ingested(self) -> Path:
        """Parsed rows, by split."""
        return self.path / "cache" / "ingested"

    @property
    def encoded(self) -> Path:
        """Encoded rows, by split."""
        return self.path / "cache" / "encoded"

    @property
    def preparing(self) -> Path:
        """Where workers that prepare rows find who gives them tasks, and write their logs."""
        return self.path / "cache" / "preparing"

    @property
    def reading(self) -> Path:
        """Folder of the units of reading, and of what workers have read."""
        return self.path / "cache" / "reading"

    @property
    def encoding(self) -> Path:
        """Folder of the units of encoding, while workers do them."""
        return self.path / "cache" / "encoding"

    @property
    def dividing(self) -> Path:
        """Folder of the unit that divides the rows among the splits, while a worker does it."""
        return self.path / "cache" / "dividing"

    @property
    def analyzing(self) -> Path:
        """Folder of the unit that computes statistics and plans transforms."""
        return self.path / "cache" / "analyzing"

    @property
    def analysis(self) -> Path:
        """What a worker found beside statistics and transforms, and by what it found it."""
        return self.path / "cache" / "analysis.json"

    @property
    def shared_work(self) -> tuple[Path, ...]:
        """Where it lies which tasks workers have done, before training."""
        return self.reading, self.dividing, self.analyzing, self.encoding

    @property
    def finishing(self) -> Path:
        """Folder of the unit that evaluates, exports and reports, while a worker does it."""
        return self.path / "cache" / "finishing"

    @property
    def profile(self) -> Path:
        """Statistics that automatic decisions rest on."""
        return self.path / "cache" / "profile"

    @property
    def features(self) -> Path:
        """What became of each column."""
        return self.path / "features.json"

    @property
    def statistics(self) -> Path:
        """Statistics of the training rows."""
        return self.path / "statistics.json"

    @property
    def preprocessing(self) -> Path:
        """Fitted transforms."""
        return self.path / "preprocessing.json"

    @property
    def warm_start(self) -> Path:
        """What the run took over from an earlier one, if it began from one."""
        return self.path / "warm_start"

    @property
    def checkpoints(self) -> Path:
        """Checkpoints of training; an empty folder where they lie at an address."""
        return self.path / "checkpoints"

    @property
    def checkpoints_address(self) -> str:
        """Where they lie: a folder from the root, or an address."""
        return self.checkpoints_at or str(self.checkpoints.resolve())

    @property
    def checkpoint_storage(self) -> Storage:
        """What keeps them."""
        return open_storage(self.checkpoints_at or str(self.checkpoints))

    @property
    def refit(self) -> Self:
        """The folder of the training on training and validation rows: checkpoints, events."""
        return self._part("refit")

    @property
    def members(self) -> Path:
        """A folder for each model of an ensemble."""
        return self.path / "members"

    def member(self, number: int) -> Self:
        """The folder of one model of an ensemble, counted from 0: checkpoints, history, events."""
        return self._part(f"members/{number}")

    def _part(self, name: str) -> Self:
        at = self.checkpoints_at
        place = None if at is None else f"{at.rstrip('/')}/{name}"
        return replace(self, path=self.path / name, checkpoints_at=place, stored=None)

    def trained_folders(self) -> list[Self]:
        """Folders with checkpoints: this one, or those of an ensemble's models, in their order."""
        numbers = sorted(int(one.name) for one in self.members.glob("[0-9]*") if one.is_dir())
        found = [self, *(self.member(number) for number in numbers)]
        return [folder for folder in found if folder.checkpoints.is_dir()]

    @property
    def history(self) -> Path:
        """One line an epoch."""
        return self.path / "history.csv"

    @property
    def training_profile(self) -> Path:
        """Where the time of training went, if that was watched."""
        return self.path / "profile.json"

    @property
    def events(self) -> Path:
        """TensorBoard events."""
        return self.path / "tensorboard"

    @property
    def metrics(self) -> Path:
        """Metrics and timings."""
        return self.path / "metrics.json"

    @property
    def predictions(self) -> Path:
        """Predictions of the test rows."""
        return self.path / "predictions.parquet"

    @property
    def evaluations(self) -> Path:
        """Metrics and predictions of cuts that were evaluated while the run trained."""
        return self.path / "evaluations"

    @property
    def export(self) -> Path:
        """Servable models, a folder a version."""
        return self.path / "export"

    @property
    def report(self) -> Path:
        """The page for people."""
        return self.path / "report.html"

    @property
    def report_facts(self) -> Path:
        """What that page shows, but for the statistics."""
        return self.path / "report.json"

    @property
    def job(self) -> Path:
        """What the members of a job in several processes agree on."""
        return self.path / "job"

    @property
    def replicas(self) -> Path:
        """What workers that each hold all parameters agree on."""
        return self.path / "replicas"

    @property
    def rendezvous(self) -> Path:
        """The address of the rendezvous of replicas, as the process that serves it announced."""
        return self.replicas / "rendezvous"

    @property
    def row_servers(self) -> Path:
        """Addresses of servers of rows, by index."""
        return self.replicas / "servers"

    @property
    def logs(self) -> Path:
        """What those members wrote."""
        return self.path / "logs"

    @property
    def scores(self) -> Path:
        """Logits of rows that those members scored."""
        return self.path / "scores"

    @property
    def scoring(self) -> Path:
        """Jobs that score with a checkpoint, a folder each."""
        return self.path / "scoring"

    @property
    def sessions(self) -> Path:
        """The commands that worked on the run, and how long on what."""
        return self.path / "sessions.json"

    @property
    def log(self) -> Path:
        """What happened, with times."""
        return self.path / "run.log"

    def paths(self) -> dict[str, Path | str]:
        """What a user looks for, where it exists; first the address of a run that has one."""
        wanted = {
            "report": self.report,
            "export": self.export,
            "metrics": self.metrics,
            "profile": self.training_profile,
            "predictions": self.predictions,
            "statistics": self.statistics,
            "config": self.config,
            "log": self.log,
        }
        address = {} if self.stored is None else {"run": self.stored.address}
        return {**address, **{name: path for name, path in wanted.items() if path.exists()}}


def find_rendezvous(run: RunPlaces) -> str:
    """Where the rendezvous is served, as the process that serves it announced.

    Raises:
        RunFolderError: None did.
    """
    try:
        return run.rendezvous.read_text("utf-8")
    except OSError as error:
        raise RunFolderError(
            "nobody has started a training with runtime.strategy: allreduce here",
            place=str(run.path),
            remedy="Start it with 'ctrpipe run', which starts its workers too",
        ) from error


def load_metrics(run: RunPlaces) -> dict[str, Any]:
    """Reads `metrics.json` as it is; empty before the run is finished.

    Raises:
        RunFolderError: It cannot be read, or a run did not write it.
    """
    return read_metrics(run) if run.metrics.exists() else {}


def read_metrics(run: RunPlaces) -> dict[str, Any]:
    """As `load_metrics`, of a run that is finished."""
    try:
        values = json.loads(run.metrics.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise metrics_damaged(run) from error
    if not isinstance(values, dict):
        raise metrics_damaged(run)
    return values


def metrics_damaged(run: RunPlaces) -> RunFolderError:
    """The error of a `metrics.json` that no run wrote."""
    return RunFolderError(
        "is damaged, or is not what a run wrote",
        place=str(run.metrics),
        remedy="'ctrpipe export RUN' makes it again, with the export",
    )
