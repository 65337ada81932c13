"""`ctrpipe monitoring`: files for Prometheus and Grafana."""

from enum import StrEnum
from importlib import resources
from typing import Annotated

import typer

from ctr_pipeline.cli.command import Panel, command
from ctr_pipeline.cli.session import CommandSession


class MonitoringFile(StrEnum):
    """What there is a file for."""

    POD_MONITOR = "pod-monitor"
    DASHBOARD = "dashboard"


_FILES = {
    MonitoringFile.POD_MONITOR: "pod_monitor.yaml",
    MonitoringFile.DASHBOARD: "dashboard.json",
}


@command(Panel.CLUSTER, has_json=False)
def monitoring(
    session: CommandSession,
    what: Annotated[MonitoringFile, typer.Argument(help="The file to print.", show_default=False)],
) -> None:
    """Print a PodMonitor for the Prometheus operator, or a dashboard for Grafana.

    For example:

    ctrpipe monitoring pod-monitor | kubectl apply -n ads -f -

    ctrpipe monitoring dashboard > ctrpipe.json

    They show all jobs of the namespace that set kubernetes.metrics_from.
    """
    del session
    folder = resources.files("ctr_pipeline.apps.cluster") / "monitoring"
    typer.echo((folder / _FILES[what]).read_text("utf-8"), nl=False)
