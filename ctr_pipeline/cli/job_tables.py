"""Shows a job of several processes on a terminal."""

import datetime
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ctr_pipeline.cli.markup import escape
from ctr_pipeline.cli.progress_lines import format_amount, format_seconds
from ctr_pipeline.cli.run_views import add_session_rows
from ctr_pipeline.cli.tables import facts_table

if TYPE_CHECKING:
    from ctr_pipeline.apps.runs import RunStatus
    from ctr_pipeline.distributed.coordination.job.status import MemberStatus
    from ctr_pipeline.distributed.coordination.messages import MemberStats
    from ctr_pipeline.distributed.master.status import JobEvent, JobView

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


def print_replicas(run: "RunStatus") -> None:
    """Prints the members of a training by replicas, and the last events; nothing if it has none."""
    told = run.replicas
    parts: list[RenderableType] = []
    if told.members:
        parts += [Text(), _render_members(told.members)]
    if told.events:
        parts += [Text(), _render_events(told.events[-_NUM_EVENTS:], time.time())]
    if parts:
        console = Console(highlight=False)
        if not console.is_terminal:
            console.width = _PIPE_WIDTH
        console.print(Group(*parts))


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


def _render_members(members: "Sequence[MemberStatus]") -> Table:
    table = Table(title="Members", title_justify="left")
    for column in _MEMBER_COLUMNS:
        table.add_column(
            column.name,
            style=column.style,
            justify=column.justify,
            no_wrap=not column.folds,
            overflow="fold" if column.folds else "ellipsis",
        )
    for member in members:
        table.add_row(*(column.cell(member) for column in _MEMBER_COLUMNS))
    return table


@dataclass(frozen=True)
class _Column:
    """A column of the table of members.

    Attributes:
        cell: What a member has in it.
        folds: Its texts are folded where the terminal is too narrow, not cut.
    """

    name: str
    cell: "Callable[[MemberStatus], RenderableType]"
    justify: Literal["left", "right"] = "right"
    style: str = ""
    folds: bool = False


def _format_seen(member: "MemberStatus") -> str:
    seen = member.last_seen_seconds
    return _UNKNOWN if seen is None else f"{format_seconds(seen)} ago"


def _figure(
    role: str, render: "Callable[[MemberStats], str]"
) -> "Callable[[MemberStatus], RenderableType]":
    """A figure of a heartbeat: a dash where unknown, nothing for members of another role."""

    def cell(member: "MemberStatus") -> str:
        if role not in ("", member.role):
            return ""
        # Every process holds some memory: without it there are no figures yet.
        stats = member.stats
        return render(stats) if stats is not None and stats.rss_bytes else _UNKNOWN

    return cell


def _explain(member: "MemberStatus") -> str:
    if member.waits_for:
        return member.waits_for
    return member.last_end.why if member.last_end else ""


_MEMBER_COLUMNS = (
    _Column("member", lambda one: one.name, "left", style="cyan"),
    _Column("state", lambda one: Text(one.state, style=_style_of(one.state)), "left"),
    _Column("address", lambda one: escape(one.address), "left"),
    _Column("pid", lambda one: str(one.pid) if one.pid else ""),
    _Column("restarts", lambda one: f"{one.restarts:,}"),
    _Column("seen", _format_seen),
    _Column("memory", _figure("", lambda stats: format_amount(stats.rss_bytes, "bytes"))),
    _Column("rows/s", _figure("worker", lambda stats: f"{stats.samples_per_second:,.0f}")),
    _Column("rows held", _figure("ps", lambda stats: f"{stats.rows_held:,}")),
    _Column("waits for, or last end", lambda one: escape(_explain(one)), "left", folds=True),
)
"""Columns of the table of members; `ctrpipe status --json` has all fields of `MemberStatus`."""


def _render_events(events: "Sequence[JobEvent]", now: float) -> Table:
    table = facts_table("Last events", style="dim")
    for event in events:
        table.add_row(_format_time(event.time, now), escape(event.sentence))
    return table


def _format_time(when: float, now: float) -> str:
    """The time of day; with the date if more than a day ago."""
    local = datetime.datetime.fromtimestamp(when).astimezone()
    return f"{local:%H:%M:%S}" if now - when < 86_400 else f"{local:%Y-%m-%d %H:%M:%S}"


def _style_of(state: str) -> str:
    if state in _GOOD:
        return "green"
    return "red" if state in _BAD else "yellow"
