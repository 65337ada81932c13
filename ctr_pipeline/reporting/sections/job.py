"""How a job of several processes fared."""

from ctr_pipeline.reporting.data import ReportData
from ctr_pipeline.reporting.section import Section


def section(data: ReportData) -> Section | None:
    """None if one process did it all."""
    return None if data.job is None else Section("job", "Job", "job.html.j2", {})
