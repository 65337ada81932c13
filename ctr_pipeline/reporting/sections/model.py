"""The size of the model, its export and where it was made."""

from ctr_pipeline.reporting.data import ReportData
from ctr_pipeline.reporting.headline import model_title
from ctr_pipeline.reporting.section import PageSection

REPORT_POSITION = 120


def section(data: ReportData) -> PageSection:
    """The facts of every run."""
    return PageSection("model", "Model", "model.html.j2", {"model_title": model_title(data)})
