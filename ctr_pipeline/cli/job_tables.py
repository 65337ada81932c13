"""Shows a job of several processes on a terminal."""

import datetime
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ctr_pipeline.cli.markup import escape
from ctr_pipeline.cli.progress_lines import format_amount, format_seconds
from ctr_pipeline.cli.run_views import add_session_rows
from ctr_pipeline.cli.tables import facts_table
from ctr_pipeline.pipeline.job.progress_view import describe_event

if TYPE_CHECKING:
    from ctr_pipeline.apps.runs import RunStatus
    from ctr_pipeline.distributed.master.status import JobEvent, JobView, MemberView

_PIPE_WIDTH = 160
_NUM_EVENTS = 8
_UNKNOWN = "–"
_OVER = frozenset({"finished", "stopped", "failed"})
_GOOD = frozenset({"running", "standby", "finished", "training"})
_BAD = frozenset({"silent", "ended", "backing off", "failed"})


def print_status(view: "JobView", run: "RunStatus") -> None:
    """Prints progress, members and the last events."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    console.print(_render_job(view, run, time.time()))
    if view.traceback:
        console.print(f"\n[red]Last output of the failed member[/]\n{escape(view.traceback)}")


def _render_job(view: "JobView", run: "RunStatus", now: float) -> RenderableType:
    parts: list[RenderableType] = [_render_facts(view, run), Text(), _render_members(view.members)]
    events = view.events[-_NUM_EVENTS:]
    if events:
        parts += [Text(), _render_events(events, now)]
    return Group(*parts)


def _format_place(view: "JobView") -> str:
    place = f"{view.state}, epoch {view.epoch + 1} of {view.epochs}"
    if view.tasks_total and view.state not in _OVER:
        place += f", task {view.tasks_done:,} of {view.tasks_total:,}"
    return place


def _render_facts(view: "JobView", run: "RunStatus") -> Table:
    table = facts_table(view.job)
    state = Text(_format_place(view), style=_style_of(view.state))
    if not view.answering and view.state not in _OVER:
        launcher = run.last
        if launcher is not None and launcher.ended is None and run.alive is False:
            gone = f"  (the launcher, process {launcher.process}, is gone: nothing trains)"
            state.append(gone, style="red")
        else:
            state.append("  (no master answers; from its ledger)", style="yellow")
    table.add_row("state", state)
    add_session_rows(table, run, why=view.reason)
    records = view.records
    table.add_row(
        "records",
        f"{records.trained:,} of {records.total:,} trained, {records.repeated:,} repeated, "
        f"{records.dropped:,} dropped",
    )
    table.add_row("step", f"{view.step:,}")
    if view.answering:
        table.add_row("speed", f"{view.samples_per_second:,.0f} rows/s")
    quality = [] if view.train_logloss is None else [f"training loss {view.train_logloss:.4f}"]
    if view.auc is not None:
        quality.append(f"validation AUC {view.auc:.4f}")
    if view.best_epoch is not None:
        quality.append(f"best epoch {view.best_epoch + 1}")
    if quality:
        table.add_row("model", ", ".join(quality))
    table.add_row("checkpoint", _format_checkpoint(view))
    if view.refused_reports:
        table.add_row("refused", f"{view.refused_reports:,} late reports, not counted")
    if view.master_errors.count:
        errors = view.master_errors
        table.add_row("master errors", escape(f"{errors.count:,}; the last in {errors.last}"))
    for name in view.dropped_tasks:
        table.add_row("dropped", escape(name))
    for split in view.final_metrics:
        auc = "" if split.auc is None else f", AUC {split.auc:.4f}"
        table.add_row(split.split, f"{split.num_rows:,} rows, logloss {split.logloss:.4f}{auc}")
    return table


def _format_checkpoint(view: "JobView") -> str:
    found = view.checkpoint
    if found is None:
        return "none yet"
    age = f", {format_seconds(found.age_seconds)} ago" if view.answering else ""
    best = f"; the best is {found.best}" if found.best else ""
    return f"{found.number} at step {found.step:,}{age}{best}"


def _render_members(members: "Sequence[MemberView]") -> Table:
    table = Table(title="Members", title_justify="left")
    table.add_column("member", style="cyan", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("address", no_wrap=True)
    for name in ("pid", "restarts", "seen", "memory", "rows/s", "rows held"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("last end", overflow="fold")
    for member in members:
        seen = member.last_seen_seconds
        memory, speed, rows = _format_figures(member)
        table.add_row(
            member.name,
            Text(member.state, style=_style_of(member.state)),
            escape(member.address),
            str(member.pid) if member.pid else "",
            f"{member.restarts:,}",
            _UNKNOWN if seen is None else f"{format_seconds(seen)} ago",
            memory,
            speed,
            rows,
            escape(member.last_end),
        )
    return table


def _format_figures(member: "MemberView") -> tuple[str, str, str]:
    """Memory, speed and rows held; a dash where unknown, nothing where it does not apply."""
    stats, is_worker, is_server = member.stats, member.role == "worker", member.role == "ps"
    if stats is None or not stats.rss_bytes:
        # No figures yet: every process holds some memory.
        return _UNKNOWN, _UNKNOWN if is_worker else "", _UNKNOWN if is_server else ""
    return (
        format_amount(stats.rss_bytes, "bytes"),
        f"{stats.samples_per_second:,.0f}" if is_worker else "",
        f"{stats.rows_held:,}" if is_server else "",
    )


def _render_events(events: "Sequence[JobEvent]", now: float) -> Table:
    table = facts_table("Last events", style="dim")
    for event in events:
        table.add_row(_format_time(event.time, now), escape(describe_event(event)))
    return table


def _format_time(when: float, now: float) -> str:
    """The time of day; with the date if more than a day ago."""
    local = datetime.datetime.fromtimestamp(when).astimezone()
    return f"{local:%H:%M:%S}" if now - when < 86_400 else f"{local:%Y-%m-%d %H:%M:%S}"


def _style_of(state: str) -> str:
    if state in _GOOD:
        return "green"
    return "red" if state in _BAD else "yellow"
