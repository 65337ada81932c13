"""The parts that rows are divided into, and bad rows."""

from ctr_pipeline.reporting.data import ReportData
from ctr_pipeline.reporting.section import PageSection
from ctr_pipeline.reporting.sections.bad_rows import bad_rows_values


def section(data: ReportData) -> PageSection:
    """How many rows each part has, and what was left out."""
    values = {
        "splits": _split_bars(data),
        "times": _times_of_splits(data),
        **bad_rows_values(data.bad_rows, data.sensitive_columns),
    }
    return PageSection("rows", "Rows", "rows.html.j2", values)


def _split_bars(data: ReportData) -> list[tuple[str, int, float | None, float]]:
    """Name, rows, click rate and share of all rows."""
    total = sum(split.num_rows for split in data.splits) or 1
    return [
        (split.name, split.num_rows, split.label_rate, split.num_rows / total)
        for split in data.splits
    ]


def _times_of_splits(data: ReportData) -> dict[str, tuple[str, str]]:
    """First and last time by split; empty unless rows are divided by time."""
    if not any(split.first_time for split in data.splits):
        return {}
    return {split.name: (split.first_time or "", split.last_time or "") for split in data.splits}
