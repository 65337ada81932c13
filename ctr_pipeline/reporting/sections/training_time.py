"""Where the time of training went: a bar of the training thread, and a table of all stages."""

from ctr_pipeline.reporting.data import ReportData
from ctr_pipeline.reporting.section import PageSection
from ctr_pipeline.training.profile import Stage, describe_bound

REPORT_POSITION = 100


def section(data: ReportData) -> PageSection | None:
    """None where nothing was profiled."""
    profile = data.training_profile
    if profile is None or not profile.stages:
        return None
    colours = {
        one.stage: "waiting" if one.stage is Stage.AWAIT_BATCH else f"part{place % 8}"
        for place, one in enumerate(profile.stages)
        if not one.stage.is_ahead
    }
    values = {"colours": colours, "bound": describe_bound(profile)}
    return PageSection("training-time", "Training time", "training_time.html.j2", values)
