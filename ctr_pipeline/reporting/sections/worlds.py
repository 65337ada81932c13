"""Replicas that trained together: how many there were, what each change cost, what happened."""

from ctr_pipeline.reporting.data import ReportData
from ctr_pipeline.reporting.section import PageSection
from ctr_pipeline.reporting.sections.course import event_time
from ctr_pipeline.reporting.sections.job import member_rows

REPORT_POSITION = 116
LIVE_POSITION = 15

_WORLDS_SHOWN = 100
_EVENTS_SHOWN = 40


def section(data: ReportData) -> PageSection | None:
    """None if no replicas trained."""
    if not data.worlds:
        return None
    events = data.replica_events[-_EVENTS_SHOWN:]
    values = {
        **member_rows(data.replicas),
        "events": [(event_time(one.time), one.sentence) for one in reversed(events)],
        "worlds": list(reversed(data.worlds[-_WORLDS_SHOWN:])),
        "num_left_out": max(0, len(data.worlds) - _WORLDS_SHOWN),
        "newest": data.worlds[-1],
        "num_changes": len(data.worlds) - 1,
        "seconds": sum(one.seconds for one in data.worlds[1:]),
        "num_repeated": sum(one.steps_repeated for one in data.worlds),
    }
    return PageSection("worlds", "Replicas", "worlds.html.j2", values)
