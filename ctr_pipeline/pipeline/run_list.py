"""`ctrpipe runs`: the runs below a folder, and how each of them stands."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from ctr_pipeline.config.key_paths import value_at
from ctr_pipeline.config.resolved import RESOLVED_CONFIG, RUN_LOCK
from ctr_pipeline.config.yaml_source import parse_yaml
from ctr_pipeline.errors import CtrPipelineError, RunFolderError
from ctr_pipeline.pipeline.sessions import FINISHED, Session, load_sessions
from ctr_pipeline.pipeline.workspace import RunFolder

_DEPTH = 4
"""Folders below the one that is named, at most: a tree of data is not walked through."""


@dataclass(frozen=True)
class ListedRun:
    """One run, as far as its folder tells.

    Attributes:
        folder: Its path.
        name: Of the config; None before training.
        model: Kind of the architecture; None before training.
        num_training_rows: None before the run is finished, as the next two.
        auc: Of the test rows, or of the validation rows if there are none.
        logloss: Of the same rows.
        training_seconds: Over all sessions.
        state: What `decide_state` says, or `damaged`.
        when: When it ended, or was last seen.
    """

    folder: Path
    name: str | None
    model: str | None
    num_training_rows: int | None
    auc: float | None
    logloss: float | None
    training_seconds: float | None
    state: str
    when: datetime | None


def decide_state(sessions: Sequence[Session], *, is_used: bool, is_finished: bool) -> str:
    """How a run stands, in words.

    Args:
        sessions: Of the run.
        is_used: Whether a process holds the folder's lock.
        is_finished: Whether the folder has metrics.

    Returns:
        `finished`, `trained`, `prepared`; `running`, `stopped`, `failed` or `killed` with the
        stage; `not trained` where no session is known.
    """
    if not sessions:
        return "finished" if is_finished else "not trained"
    last = sessions[-1]
    if last.ended == FINISHED:
        done = {"run": "finished", "train": "trained", "prepare": "prepared"}
        return "finished" if is_finished else done.get(last.command, "trained")
    word = last.ended or ("running" if is_used else "killed")
    return f"{word}: {last.stage}" if last.stage else word


def list_runs(folder: Path) -> list[ListedRun]:
    """The runs in a folder and below it, the newest first.

    Raises:
        RunFolderError: There is no such folder.
    """
    if not folder.is_dir():
        raise RunFolderError(
            "there is no such folder", place=str(folder), remedy="Name one that holds run folders"
        )
    oldest = datetime.min.replace(tzinfo=UTC)
    runs = [_listed(RunFolder(path)) for path in _find(folder, _DEPTH)]
    return sorted(runs, key=lambda run: (run.when or oldest, str(run.folder)), reverse=True)


def _find(folder: Path, depth: int) -> Iterator[Path]:
    """Run folders; what lies in one of them (trials, models of an ensemble) is part of it."""
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


def _listed(run: RunFolder) -> ListedRun:
    try:
        config, metrics = _read_config(run), _read_metrics(run)
        sessions = load_sessions(run.sessions)
    except (CtrPipelineError, OSError, ValueError, yaml.YAMLError, RecursionError):
        return ListedRun(run.path, *(None,) * 6, "damaged", None)
    is_used = run.user_process() is not None
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
        state=decide_state(sessions, is_used=is_used, is_finished=run.metrics.exists()),
        when=when,
    )


def _read_config(run: RunFolder) -> dict[str, Any]:
    if not run.config.exists():
        return {}
    values, _ = parse_yaml(run.config.read_text(encoding="utf-8"), str(run.config))
    if not isinstance(values, dict):
        raise ValueError("a config is a mapping")
    return values


def _read_metrics(run: RunFolder) -> dict[str, Any]:
    if not run.metrics.exists():
        return {}
    values = json.loads(run.metrics.read_text(encoding="utf-8"))
    if not isinstance(values, dict):
        raise ValueError("metrics are a mapping")
    return values


def _changed(run: RunFolder) -> datetime | None:
    """When its log was written last."""
    try:
        return datetime.fromtimestamp(run.log.stat().st_mtime, UTC)
    except OSError:
        return None
