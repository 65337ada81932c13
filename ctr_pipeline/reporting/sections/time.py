"""Wall-clock time of the stages."""

from ctr_pipeline.reporting.bars import Bar
from ctr_pipeline.reporting.data import ReportData
from ctr_pipeline.reporting.formats import duration_text, percent_text, shorten
from ctr_pipeline.reporting.section import PageSection

REPORT_POSITION = 90


def section(data: ReportData) -> PageSection | None:
    """None if no stage was timed."""
    if not data.timings:
        return None
    return PageSection("time", "Time", "time.html.j2", {"timings": _timing_bars(data)})


def _timing_bars(data: ReportData) -> list[Bar]:
    total = sum(data.timings.values()) or 1.0
    return [
        Bar(
            name=shorten(stage, 40),
            value=duration_text(seconds),
            detail=percent_text(seconds / total, 0),
            width=round(100 * seconds / total, 2),
        )
        for stage, seconds in data.timings.items()
    ]
