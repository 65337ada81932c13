"""Shows runs on a terminal."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from ctr_pipeline.cli.markup import escape
from ctr_pipeline.cli.progress_lines import format_seconds
from ctr_pipeline.cli.tables import facts_table, make_console, print_paths
from ctr_pipeline.storage.opening import address_of

if TYPE_CHECKING:
    from ctr_pipeline.apps.compare import ComparisonResult
    from ctr_pipeline.apps.runs import ListedRun, RunStatus

_COLOURS = {"ahead": "green", "behind": "red", "open": "default"}
_STATES = {"running": "green", "finished": "green", "failed": "red", "killed": "red"}
_KEYS_SHOWN = 40


def print_comparison(result: "ComparisonResult") -> None:
    """Prints test metrics, training times and the keys that differ, one line per run."""
    console = make_console()
    views = result.views
    figures = Table(title="Test rows", title_justify="left")
    figures.add_column("run", style="cyan", overflow="fold")
    figures.add_column("model", no_wrap=True)
    for name in ("AUC", "to the first", "logloss", "to the first", "calibration"):
        figures.add_column(name, justify="right", no_wrap=True)
    for view in views:
        figures.add_row(
            escape(view.name),
            escape(view.model),
            view.auc,
            _coloured(*view.auc_ahead),
            view.logloss,
            _coloured(*view.logloss_ahead),
            escape(view.calibration),
        )
    console.print(figures)
    training = Table(title="Training", title_justify="left")
    training.add_column("run", style="cyan", overflow="fold")
    for name, _ in views[0].facts:
        training.add_column(name[0].lower() + name[1:], justify="right", no_wrap=True)
    for view in views:
        training.add_row(escape(view.name), *(text for _, text in view.facts))
    console.print(training)
    if result.settings:
        keys = Table(title="Keys that differ", title_justify="left")
        for name in ("key", *(view.name for view in views)):
            keys.add_column(escape(name), overflow="fold")
        for key, values in result.settings[:_KEYS_SHOWN]:
            keys.add_row(escape(key), *map(escape, values))
        console.print(keys)
        if len(result.settings) > _KEYS_SHOWN:
            console.print(f"and {len(result.settings) - _KEYS_SHOWN} more keys")
    for text in result.remarks:
        console.print(f"[yellow]{escape(text)}[/]", soft_wrap=True)
    if result.output is not None:
        print_paths(console, {"page": result.output})


def print_run_status(run: "RunStatus") -> None:
    """Prints what a run in one process does now, or how it ended."""
    table = facts_table(escape(run.name or str(run.folder)))
    table.add_row("state", f"[{_STATES.get(run.state, 'yellow')}]{run.state}[/]")
    add_session_rows(table, run)
    if run.history:
        last = run.history[-1]
        table.add_row("epochs", f"{len(run.history)} of {run.epochs} done")
        table.add_row(
            "model",
            f"training loss {last.train_logloss:.4f}, validation logloss "
            f"{last.valid_logloss:.4f}, AUC {last.valid_auc:.4f}",
        )
    if run.worlds:
        newest, repeated = run.worlds[-1], sum(world.steps_repeated for world in run.worlds)
        table.add_row(
            "workers",
            f"{newest.size} in world {newest.version}, since step {newest.step:,}, with "
            f"{newest.step_rows:,} rows a step; the change took "
            f"{newest.seconds:.1f} s; steps repeated so far: {repeated}",
        )
    if run.metrics_address:
        table.add_row("metrics", f"http://{run.metrics_address}/metrics")
    make_console().print(table)


def add_session_rows(table: Table, run: "RunStatus", *, why: str = "") -> None:
    """Adds the command that works on a run, its stage and process, why it ended, how to resume.

    Args:
        why: Why the run ended, if known better than from the session; empty otherwise.
    """
    last, now = run.last, datetime.now(UTC)
    why = why or ("" if last is None else last.reason)
    if why:
        table.add_row("why", escape(why))
    if last is None:
        return
    if last.stage and last.ended != "finished":
        more = ", the last one"
        if run.alive and last.stage_since is not None:
            more = f", since {_format_moment(last.stage_since, now)}"
        table.add_row("stage", f"{last.stage}{more}")
    if run.prepared is not None:
        done, units = run.prepared.num_done, run.prepared.num_units
        table.add_row("rows", f"{done:,} of {units:,} tasks done")
    started = f"'ctrpipe {last.command}', started {_format_moment(last.started, now)}"
    if len(run.sessions) > 1:
        started += f", session {len(run.sessions)}"
    table.add_row("command", started)
    process = f"{last.process} on {escape(last.host)}"
    if last.ended is not None:
        process += f"; it ended {_format_moment(last.seen, now)}"
    elif run.alive is None:
        process += f"; last heard from at {_format_moment(last.seen, now)}"
    elif not run.alive:
        process += f"; it is gone, last heard from at {_format_moment(last.seen, now)}"
    table.add_row("process", process)
    if run.stored_at is not None:
        kept = escape(run.stored_at)
        table.add_row("kept at", f"{kept}; {escape(last.trouble)}" if last.trouble else kept)
    if run.resume is not None:
        table.add_row("resume with", escape(run.resume))


def _format_moment(when: datetime, now: datetime) -> str:
    """The time of day and how long ago; the date instead if more than a day ago."""
    local, seconds = when.astimezone(), max(0.0, (now - when).total_seconds())
    is_recent = seconds < 86_400
    time = f"{local:%H:%M:%S}" if is_recent else f"{local:%Y-%m-%d %H:%M:%S}"
    return f"{time} ({format_seconds(seconds)} ago)" if is_recent else time


def print_runs(runs: "Sequence[ListedRun]", folder: Path) -> None:
    """Prints one line per run."""
    console = make_console()
    if not runs:
        named = address_of(folder) or folder
        console.print(f"There are no runs in {escape(str(named))}", soft_wrap=True)
        return
    table = Table()
    table.add_column("run", style="cyan", overflow="fold")
    table.add_column("model", overflow="fold")
    for name in ("rows", "AUC", "logloss", "training"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("state", overflow="fold")
    table.add_column("when", no_wrap=True)
    for run in runs:
        table.add_row(
            escape(str(run.folder)),
            escape(run.model or ""),
            "" if run.num_training_rows is None else f"{run.num_training_rows:,}",
            "" if run.auc is None else f"{run.auc:.4f}",
            "" if run.logloss is None else f"{run.logloss:.4f}",
            "" if run.training_seconds is None else format_seconds(run.training_seconds),
            escape(run.state),
            "" if run.when is None else f"{run.when.astimezone():%Y-%m-%d %H:%M}",
        )
    console.print(table)


def _coloured(text: str, tone: str) -> str:
    return f"[{_COLOURS[tone]}]{escape(text)}[/]"
