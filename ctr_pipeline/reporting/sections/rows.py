"""The parts that rows are divided into, and bad rows."""

from ctr_pipeline.reporting.data import ReportData
from ctr_pipeline.reporting.section import PageSection
from ctr_pipeline.reporting.sections.bad_rows import bad_rows_values

REPORT_POSITION = 80


def section(data: ReportData) -> PageSection:
    """How many rows each part has, and what was left out."""
    values = {
        "splits": _split_bars(data),
        "times": _times_of_splits(data),
        **bad_rows_values(data.bad_rows, data.sensitive_columns),
    }
    return PageSection("rows", "Rows", "rows.html.j2", values)


def _split_bars(data: ReportData) -> list[tuple[str, int, float, float]]:
    """Name, rows, click rate and share of all rows."""
    total = sum(split.num_rows for split in data.splits.values())
    return [
        (name, split.num_rows, split.label_rate, split.num_rows / total)
        for name, split in data.splits.items()
    ]


def _times_of_splits(data: ReportData) -> dict[str, tuple[str, str]]:
    """First and last time by split; empty unless rows are divided by time."""
    times = {name: split.times for name, split in data.splits.items()}
    if not any(times.values()):
        return {}
    return {name: (one.first, one.last) if one else ("", "") for name, one in times.items()}
