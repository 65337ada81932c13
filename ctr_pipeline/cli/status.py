"""`ctrpipe status`: how a run is doing, in one process or in several."""

from ctr_pipeline.cli.cluster_jobs import names_cluster_job, show_cluster_status
from ctr_pipeline.cli.command import Panel, command
from ctr_pipeline.cli.options import Run
from ctr_pipeline.cli.session import CommandSession


@command(Panel.JOB)
def status(
    session: CommandSession,
    run: Run,
) -> int:
    """Show what a run does now, or how it ended; of a job, also members, speed and failures.

    For example:

    ctrpipe status runs/criteo

    ctrpipe status config.yaml --json
    """
    if names_cluster_job(run):
        return show_cluster_status(session, run)
    from ctr_pipeline.apps.live import read_whole
    from ctr_pipeline.cli.job_tables import print_replicas, print_status
    from ctr_pipeline.cli.run_views import print_run_status
    from ctr_pipeline.pipeline.run_folder import find_run

    found = read_whole(find_run(run))

    def render() -> None:
        if found.job is None:
            print_run_status(found.run)
            print_replicas(found.run)
        else:
            print_status(found.job, found.run)

    session.show(found.payload(), render)
    return 0
