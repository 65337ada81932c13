"""Sections of the pages: each a module with a function `section`, its template beside it.

To add one, write both files and put the module's function into the tuple of its page.
"""

from collections.abc import Callable

from ctr_pipeline.reporting.data import ProfileData, ReportData
from ctr_pipeline.reporting.section import PageSection
from ctr_pipeline.reporting.sections import (
    config,
    drift,
    features,
    groups,
    importance,
    information,
    job,
    learning,
    metrics,
    model,
    rows,
    table_rows,
    time,
    training_time,
)

REPORT_SECTIONS: tuple[Callable[[ReportData], PageSection | None], ...] = (
    metrics.section,
    groups.section,
    learning.section,
    importance.section,
    information.section,
    features.section,
    drift.section,
    rows.section,
    time.section,
    training_time.section,
    job.section,
    model.section,
    config.section,
)
"""Sections of the report, in the order of the page."""

PROFILE_SECTIONS: tuple[Callable[[ProfileData], PageSection | None], ...] = (
    information.section,
    features.section,
    table_rows.section,
)
"""Sections of the page of a table, in its order."""
