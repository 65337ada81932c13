"""Records and members of a job of several processes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ctr_pipeline.distributed.coordination.job.status import MemberStatus
from ctr_pipeline.reporting.data import ReportData
from ctr_pipeline.reporting.formats import bytes_text, count_text, duration_text
from ctr_pipeline.reporting.section import PageSection

REPORT_POSITION = 110
LIVE_POSITION = 10

_MOST_MEMBERS = 64


@dataclass(frozen=True)
class MemberRow:
    """A line of the table of members; texts are empty where nothing is known.

    Attributes:
        why: What it waits for, or how it ended the last time.
    """

    name: str
    state: str
    restarts: str
    why: str
    processor: str = ""
    memory: str = ""
    work: str = ""
    traffic: str = ""


def section(data: ReportData) -> PageSection | None:
    """None if one process did it all."""
    if data.job is None:
        return None
    values = {
        "records": data.job.records,
        "num_disruptions": len(data.job.disruptions),
        **member_rows(data.job.members),
    }
    return PageSection("job", "Job", "job.html.j2", values)


def member_rows(members: Sequence[MemberStatus]) -> dict[str, Any]:
    """What `members_table.html.j2` shows."""
    members = sorted(members, key=_by_interest)
    return {
        "members": [_row(member) for member in members[:_MOST_MEMBERS]],
        "num_more": max(0, len(members) - _MOST_MEMBERS),
    }


def _by_interest(member: MemberStatus) -> tuple[bool, bool, bool]:
    """The master and servers first; of many workers, those in trouble, and last those that left."""
    if member.role != "worker":
        return False, False, False
    is_fine = member.state in {"running", "standby", "finished", "left"}
    return True, is_fine, member.state == "left"


def _row(member: MemberStatus) -> MemberRow:
    row = MemberRow(
        name=member.name,
        state=member.state,
        restarts=count_text(member.restarts),
        why=member.waits_for or ("" if member.last_end is None else member.last_end.why),
    )
    stats = member.stats
    # Every process holds some memory: without it there are no figures yet.
    if stats is None or not stats.rss_bytes:
        return row
    work = ""
    if member.role == "ps":
        work = f"{count_text(stats.rows_held)} rows"
    elif stats.samples_per_second:
        work = f"{count_text(stats.samples_per_second)} records/s"
    moved = stats.bytes_received + stats.bytes_sent
    return replace(
        row,
        processor=duration_text(stats.cpu_seconds),
        memory=bytes_text(stats.rss_bytes),
        work=work,
        traffic=bytes_text(moved) if moved else "",
    )
