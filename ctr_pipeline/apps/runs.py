"""The state of a run by its folder, and the list of the runs below a folder."""

import shlex
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from ctr_pipeline.config import load_config
from ctr_pipeline.config.key_paths import value_at
from ctr_pipeline.config.models import working_copy
from ctr_pipeline.config.resolved import RESOLVED_CONFIG, RUN_LOCK
from ctr_pipeline.config.yaml_source import parse_yaml
from ctr_pipeline.distributed.master.ledger.unit_file import UnitsDone, read_units_done
from ctr_pipeline.errors import CheckpointError, CtrPipelineError, RunFolderError
from ctr_pipeline.pipeline.job.replica_progress import (
    ReplicaMembers,
    load_members_told,
    load_metrics_address,
    load_progress,
)
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.pipeline.run_places import load_metrics
from ctr_pipeline.pipeline.sessions import FINISHED, RunSession, decide_alive, load_sessions
from ctr_pipeline.pipeline.stored_run import StoredRun, find_stored_runs
from ctr_pipeline.storage.opening import address_of
from ctr_pipeline.training.history import EpochRecord, WorldRecord, load_history

_AT_AN_END = frozenset({"finished", "trained", "prepared", "not trained"})
_DEPTH = 4
"""Folders below the one that is named, at most: a tree of data is not walked through."""


@dataclass(frozen=True)
class ListedRun:
    """One run of a list, as its folder describes it.

    Attributes:
        folder: Its path, or the address that it is kept at.
        name: Name of the config; None before training.
        model: Name of the architecture; None before training.
        num_training_rows: Training rows; None before the run is finished, as the next two.
        auc: AUC of the test rows, or of the validation rows if there are none.
        logloss: Logloss of the same rows.
        training_seconds: Seconds of training over all sessions.
        state: Result of `format_state`, or `damaged`.
        when: When it ended, or last wrote something.
    """

    folder: Path | str
    name: str | None
    model: str | None
    num_training_rows: int | None
    auc: float | None
    logloss: float | None
    training_seconds: float | None
    state: str
    when: datetime | None


def decide_state(sessions: Sequence[RunSession], *, alive: bool | None, is_finished: bool) -> str:
    """Decides the state of a run.

    Args:
        sessions: Its sessions, in the order of time.
        alive: Whether the process of the last session still runs; None if unknown.
        is_finished: Whether the folder has metrics.

    Returns:
        `finished`, `trained`, `prepared`, `running`, `stopped`, `failed`, `killed`, or `silent` if
        that is unknown; `not trained` without a session.
    """
    if not sessions:
        return "finished" if is_finished else "not trained"
    last = sessions[-1]
    if last.ended == FINISHED:
        done = {"run": "finished", "train": "trained", "prepare": "prepared"}
        return "finished" if is_finished else done.get(last.command, "trained")
    return last.ended or {True: "running", False: "killed", None: "silent"}[alive]


def format_state(state: str, sessions: Sequence[RunSession]) -> str:
    """The state, with the stage of a run that has not finished."""
    stage = sessions[-1].stage if sessions else ""
    return f"{state}: {stage}" if stage and state not in _AT_AN_END else state


@dataclass(frozen=True)
class RunStatus:
    """The state of one run, and what its process does or did last.

    Attributes:
        folder: Its path.
        stored_at: The address that it is kept at; None: only the folder.
        files: Addresses of the files that are kept there, by name; empty while a process of this
            machine works on it.
        name: Name of the config; None before training.
        state: Result of `decide_state`.
        alive: Whether the process of the last session still runs; None if unknown.
        sessions: All sessions, in the order of time.
        epochs: The greatest number of epochs; None before training.
        history: Epochs so far; of an ensemble, those of its first model.
        resume: The command that resumes it; None if there is nothing to resume.
        prepared: How far workers are with reading or encoding rows; None if none do.
        worlds: The workers that trained together, with runtime.strategy: allreduce; the last is
            the newest.
        metrics_address: `host:port` of their Prometheus metrics while they train; empty otherwise.
        replicas: Their processes while they train, and those of servers of embedding rows; and the
            last events.
    """

    folder: Path
    stored_at: str | None
    files: Mapping[str, str]
    name: str | None
    state: str
    alive: bool | None
    sessions: tuple[RunSession, ...]
    epochs: int | None
    history: tuple[EpochRecord, ...]
    resume: str | None
    prepared: UnitsDone | None = None
    worlds: tuple[WorldRecord, ...] = ()
    metrics_address: str = ""
    replicas: ReplicaMembers = field(default_factory=ReplicaMembers)

    @property
    def last(self) -> RunSession | None:
        """The last session; None without one."""
        return self.sessions[-1] if self.sessions else None


def read_run_status(run: RunFolder) -> RunStatus:
    """Reads the state of a run from its folder.

    Raises:
        CtrPipelineError: It is no run folder, or a file in it is damaged.
    """
    if not any((run.path / name).exists() for name in (RUN_LOCK, RESOLVED_CONFIG, "job")):
        raise RunFolderError(
            "is not a run folder",
            place=str(run.path),
            remedy="Name the 'output' of a config; 'ctrpipe runs FOLDER' lists runs",
        )
    config = load_config(run.config).config if run.config.is_file() else None
    sessions = load_sessions(run.sessions)
    alive = _is_alive(run, sessions)
    state = decide_state(sessions, alive=alive, is_finished=run.metrics.exists())
    trained = run.trained_folders()
    resume = None
    if state in {"stopped", "failed", "killed", "silent"}:
        named = "CONFIG" if config is None else run.place
        resume = _resume_command(sessions[-1].command, named)
    replicas, told = load_progress(run), load_members_told(run)
    return RunStatus(
        folder=run.path,
        stored_at=None if run.stored is None else run.stored.address,
        files={} if run.stored is None or alive else run.stored.places(),
        name=None if config is None else config.name,
        state=state,
        alive=alive,
        sessions=sessions,
        epochs=None if config is None else config.train.epochs,
        history=tuple(load_history(trained[0].history)) if trained else (),
        resume=resume,
        prepared=next(filter(None, map(read_units_done, run.shared_work)), None),
        worlds=() if replicas is None else replicas.worlds,
        metrics_address=load_metrics_address(run) if alive else "",
        # They end with the process that started them.
        replicas=told if alive else replace(told, members=()),
    )


def _resume_command(command: str, config: str) -> str:
    is_prepared = command == "prepare"
    verb, options = ("train", ["--prepare-only"]) if is_prepared else (command, [])
    return shlex.join(["ctrpipe", verb, config, *options, "--resume"])


def _is_alive(run: RunFolder, sessions: Sequence[RunSession]) -> bool | None:
    if not sessions:
        return False
    return decide_alive(
        sessions[-1],
        lock_holder=run.user_process(),
        host=socket.gethostname(),
        now=datetime.now(UTC),
    )


def list_runs(folder: Path) -> list[ListedRun]:
    """The runs in a folder or at an address, and below it, the newest first.

    Raises:
        RunFolderError: There is no such folder.
        StorageError: The storage of the address cannot be used.
    """
    address = address_of(folder)
    if address is not None:
        runs = [_listed_stored(one) for one in find_stored_runs(address)]
    elif folder.is_dir():
        runs = [_listed(RunFolder(path)) for path in _find(folder, _DEPTH)]
    else:
        raise RunFolderError(
            "there is no such folder", place=str(folder), remedy="Name one that holds run folders"
        )
    oldest = datetime.min.replace(tzinfo=UTC)
    return sorted(runs, key=lambda run: (run.when or oldest, str(run.folder)), reverse=True)


def _find(folder: Path, depth: int) -> Iterator[Path]:
    """Finds run folders; those inside of another (trials, models of an ensemble) are part of it."""
    if (folder / RUN_LOCK).exists() or (folder / RESOLVED_CONFIG).exists():
        yield folder
        return
    if depth == 0:
        return
    try:
        inside = sorted(folder.iterdir())
    except PermissionError:
        return
    for path in inside:
        if path.is_dir() and not path.is_symlink() and not path.name.startswith("."):
            yield from _find(path, depth - 1)


def _listed_stored(address: str) -> ListedRun:
    """Reads no more of a run than the files that a line needs."""
    with tempfile.TemporaryDirectory(prefix="ctrpipe-runs-") as made:
        run = RunFolder(Path(made))
        names = (run.config.name, run.metrics.name, run.sessions.name)
        try:
            StoredRun(address, run.path).copy(names)
        except CheckpointError:
            return ListedRun(address, *(None,) * 6, "damaged", None)
        return replace(_listed(run, RunFolder(working_copy(address, None))), folder=address)


def _listed(run: RunFolder, working: RunFolder | None = None) -> ListedRun:
    """Describes a run.

    Args:
        run: Where its files are.
        working: The folder that a process which works on it locks; None: the same.
    """
    try:
        config, metrics = _read_config(run), load_metrics(run)
        sessions = load_sessions(run.sessions)
    except (CtrPipelineError, OSError, ValueError, yaml.YAMLError, RecursionError):
        return ListedRun(run.path, *(None,) * 6, "damaged", None)
    alive = _is_alive(working or run, sessions)
    state = decide_state(sessions, alive=alive, is_finished=run.metrics.exists())
    measured = metrics.get("test") or metrics.get("valid") or {}
    seconds = value_at(metrics, ("timings_seconds", "training"))
    if seconds is None:
        seconds = sum(one.seconds.get("training", 0.0) for one in sessions) or None
    when = sessions[-1].seen if sessions else _changed(run)
    return ListedRun(
        folder=run.path,
        name=value_at(config, ("name",)),
        model=value_at(config, ("model", "name")),
        num_training_rows=value_at(metrics, ("num_rows", "train")),
        auc=measured.get("auc"),
        logloss=measured.get("logloss"),
        training_seconds=seconds,
        state=format_state(state, sessions),
        when=when,
    )


def _read_config(run: RunFolder) -> dict[str, Any]:
    if not run.config.exists():
        return {}
    values, _ = parse_yaml(run.config.read_text(encoding="utf-8"), str(run.config))
    if not isinstance(values, dict):
        raise ValueError("a config is a mapping")
    return values


def _changed(run: RunFolder) -> datetime | None:
    """When the run's log was last written."""
    try:
        return datetime.fromtimestamp(run.log.stat().st_mtime, UTC)
    except OSError:
        return None
