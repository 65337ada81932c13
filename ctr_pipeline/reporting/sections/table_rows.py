"""Where the rows of a profiled table come from, and bad rows."""

from ctr_pipeline.reporting.data import ProfileData
from ctr_pipeline.reporting.section import PageSection
from ctr_pipeline.reporting.sections.bad_rows import bad_rows_values

PROFILE_POSITION = 30


def section(data: ProfileData) -> PageSection:
    """Files of the table and what was left out."""
    return PageSection("rows", "Rows", "table_rows.html.j2", bad_rows_values(data.bad_rows, ()))
