"""The course of a job: members and speed over time, what failures cost, and what happened."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from markupsafe import Markup

from ctr_pipeline.distributed.master.timeline import JobMoment
from ctr_pipeline.reporting.charts import Series, line_chart
from ctr_pipeline.reporting.data import ReportData
from ctr_pipeline.reporting.formats import count_text
from ctr_pipeline.reporting.section import PageSection

REPORT_POSITION = 112
LIVE_POSITION = 20

_EVENTS_SHOWN = 40
_UNITS = ((7200.0, 3600.0, "hours"), (180.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))


def section(data: ReportData) -> PageSection | None:
    """None if one process did it all, or nothing is known of its course."""
    job = data.job
    if job is None or not (job.timeline or job.events):
        return None
    values = {
        "members_chart": _members_chart(job.timeline),
        "speed_chart": _speed_chart(job.timeline),
        "disruptions": [(event_time(one.time), one) for one in job.disruptions],
        "events": [
            (event_time(one.time), one.sentence) for one in reversed(job.events[-_EVENTS_SHOWN:])
        ],
        "num_events_left_out": max(0, len(job.events) - _EVENTS_SHOWN),
    }
    return PageSection("course", "Course", "course.html.j2", values)


def _members_chart(moments: Sequence[JobMoment]) -> Markup | None:
    if not _has_run(moments):
        return None
    at, unit = _scale(moments)
    return line_chart(
        [
            Series("model", _steps(moments, at, lambda one: one.workers, "worker")),
            Series("second", _steps(moments, at, lambda one: one.servers, "parameter server")),
        ],
        x_name=unit,
        label="Members that run, over time",
        lowest=0.0,
    )


def _speed_chart(moments: Sequence[JobMoment]) -> Markup | None:
    if not _has_run(moments):
        return None
    at, unit = _scale(moments)
    points = [
        (at(one), one.samples_per_second, f"{count_text(one.samples_per_second)} records/s")
        for one in moments
    ]
    return line_chart(
        [Series("model", points)], x_name=unit, label="Records per second, over time", lowest=0.0
    )


def _has_run(moments: Sequence[JobMoment]) -> bool:
    """Whether there is anything to draw."""
    return len(moments) > 1 and any(one.workers or one.servers for one in moments)


def _steps(
    moments: Sequence[JobMoment],
    at: Callable[[JobMoment], float],
    count: Callable[[JobMoment], int],
    noun: str,
) -> list[tuple[float, float, str]]:
    """Corners of a line that stays where it is until the number changes."""
    points: list[tuple[float, float, str]] = []
    for moment in moments:
        number = count(moment)
        text = f"{number} {noun}{'' if number == 1 else 's'}"
        if points and points[-1][1] != number:
            points.append((at(moment), points[-1][1], text))
        points.append((at(moment), float(number), text))
    return points


def _scale(moments: Sequence[JobMoment]) -> tuple[Callable[[JobMoment], float], str]:
    """Time since the first moment, and its unit."""
    begin = moments[0].time
    span = moments[-1].time - begin
    seconds, unit = next((size, name) for least, size, name in _UNITS if span >= least)
    return lambda one: (one.time - begin) / seconds, unit


def event_time(unix_time: float) -> str:
    """When an event happened, UTC."""
    return f"{datetime.fromtimestamp(unix_time, UTC):%d %b %H:%M:%S}"
