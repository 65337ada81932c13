"""How much information each column alone has about the click, most first."""

from collections.abc import Iterable

from ctr_pipeline.reporting.bars import Bar
from ctr_pipeline.reporting.data import ProfileData, ReportData
from ctr_pipeline.reporting.formats import percent_text, shorten, value_text
from ctr_pipeline.reporting.section import PageSection
from ctr_pipeline.statistics import Statistics

REPORT_POSITION = 50
PROFILE_POSITION = 10

_SHOWN = 25
"""Columns that are shown before one asks for more."""


def section(data: ReportData | ProfileData) -> PageSection | None:
    """None if no column was compared with the label."""
    bars = information_bars(data.statistics, [row.feature for row in data.plan])
    if not bars:
        return None
    values = {"information": bars, "information_shown": _SHOWN}
    return PageSection("information", "Before training", "information.html.j2", values)


def information_bars(statistics: Statistics | None, columns: Iterable[str]) -> list[Bar]:
    """Share of the label's entropy that each column explains, and its information value.

    Args:
        statistics: None if there are none.
        columns: The columns to show.
    """
    if statistics is None:
        return []
    found = [
        (column, known.label_information)
        for column in columns
        if (known := statistics.columns.get(column)) is not None
        and known.label_information is not None
    ]
    if not found:
        return []
    found.sort(key=lambda pair: (-pair[1].mutual_information, pair[0]))
    longest = found[0][1].mutual_information or 1.0
    return [
        Bar(
            name=shorten(column, 60),
            value=percent_text(one.share_explained(statistics.label_rate), 2),
            detail=value_text(one.information_value, digits=3),
            width=round(100 * one.mutual_information / longest, 1),
        )
        for column, one in found
    ]
