"""`ctrpipe status`: how a run is doing, in one process or in several."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ctr_pipeline.cli.cluster_jobs import names_cluster_job, show_cluster_status
from ctr_pipeline.cli.command import Panel, command
from ctr_pipeline.cli.options import Run
from ctr_pipeline.cli.session import CommandSession

if TYPE_CHECKING:
    from ctr_pipeline.apps.runs import RunStatus
    from ctr_pipeline.distributed.master.status import JobView


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
    from ctr_pipeline.apps.runs import read_run_status
    from ctr_pipeline.pipeline.run_folder import RunFolder, find_run

    found = RunFolder(find_run(run))
    state = read_run_status(found)
    if not found.job.is_dir():
        from ctr_pipeline.cli.run_views import print_run_status

        session.show(_run_payload(state), lambda: print_run_status(state))
        return 0
    from ctr_pipeline.cli.job_tables import print_status
    from ctr_pipeline.pipeline.job.control import Job, read_status

    view = read_status(Job(found.path))
    payload = _job_payload(view) | {"run": _run_payload(state)}
    session.show(payload, lambda: print_status(view, state))
    return 0


def _run_payload(state: "RunStatus") -> dict[str, Any]:
    """The run as JSON: epochs count from 1, times are ISO 8601; unknown values are null."""
    last = state.last
    return {
        "folder": state.folder,
        "name": state.name,
        "state": state.state,
        "alive": state.alive,
        "session": None if last is None else last.model_dump(mode="json"),
        "num_sessions": len(state.sessions),
        "epochs": state.epochs,
        "history": [asdict(record) | {"epoch": record.epoch + 1} for record in state.history],
        "resume": state.resume,
        "encoding_tasks": None if state.encoded is None else asdict(state.encoded),
        "worlds": [asdict(world) for world in state.worlds],
    }


def _job_payload(view: "JobView") -> dict[str, Any]:
    """The job as JSON: epochs count from 1; unknown values are null."""
    payload = asdict(view)
    payload["epoch"] += 1
    for record in payload["history"]:
        record["epoch"] += 1
    if payload["best_epoch"] is not None:
        payload["best_epoch"] += 1
    if not view.answering:
        payload["samples_per_second"] = payload["master_errors"] = None
    payload["members"] = [{"name": one.name, **asdict(one)} for one in view.members]
    return payload
