"""Work and failures of a job of several processes."""

from ctr_pipeline.reporting.data import ReportData
from ctr_pipeline.reporting.section import PageSection

REPORT_POSITION = 110


def section(data: ReportData) -> PageSection | None:
    """None if one process did it all."""
    return None if data.job is None else PageSection("job", "Job", "job.html.j2", {})
