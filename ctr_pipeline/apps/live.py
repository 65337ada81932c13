"""The state of a run, read as a whole: as data, and as a page that brings itself up to date."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ctr_pipeline.apps.json_text import json_text
from ctr_pipeline.apps.runs import RunStatus, format_state, read_run_status
from ctr_pipeline.distributed.coordination.job.status import MemberStatus
from ctr_pipeline.distributed.master.ledger.store import NoLedgerError
from ctr_pipeline.distributed.master.status import OVER, JobView
from ctr_pipeline.distributed.rpc.pages import (
    Pages,
    Reply,
    SessionGate,
    kept_for_a_moment,
    serve_pages,
)
from ctr_pipeline.errors import CtrPipelineError
from ctr_pipeline.pipeline.job import control
from ctr_pipeline.pipeline.run_folder import RunFolder

_LOOK_SECONDS = 1.0
_LAST_LOOK_SECONDS = 6.0
"""Time in which a browser fetches the page once more, after the end."""


@dataclass(frozen=True)
class WholeStatus:
    """What is known of a run now.

    Attributes:
        job: Its job of several processes; None: it has none, or it cannot be read at the moment.
    """

    run: RunStatus
    job: JobView | None

    @property
    def is_live(self) -> bool:
        """Whether something may still change."""
        has_master = self.job is not None and self.job.answering and self.job.state not in OVER
        return bool(self.run.alive) or has_master

    def payload(self) -> dict[str, Any]:
        """State for programs: epochs count from 1, times are ISO 8601, unknown values are null."""
        run = _run_payload(self.run)
        return run if self.job is None else _job_payload(self.job) | {"run": run}

    def page(self) -> str:
        """The page for a browser."""
        from ctr_pipeline.reporting.data import LiveData
        from ctr_pipeline.reporting.render import render_live

        run, job = self.run, self.job
        state = format_state(run.state, run.sessions)
        warnings = [f"To go on: {run.resume}"] if run.resume else []
        if run.prepared is not None and job is None:
            done = run.prepared
            state += f", {done.num_done} of {done.num_units} tasks of preparation done"
        best = None if job is None or job.best_epoch is None else job.best_epoch
        history = run.history if job is None else job.history
        return render_live(
            LiveData(
                name=run.name or run.folder.name,
                model="",
                created=datetime.now(UTC),
                run_folder=str(run.folder),
                config_yaml="",
                history=history,
                best_step=next((one.step for one in history if one.epoch == best), None),
                job=job,
                worlds=run.worlds,
                replicas=run.replicas.members,
                replica_events=run.replicas.events,
                state=state if job is None else job.state,
                is_over=not self.is_live,
                epochs=run.epochs,
                warnings=tuple(warnings),
            )
        )


def read_whole(run: RunFolder) -> WholeStatus:
    """Reads the state of a run.

    Raises:
        CtrPipelineError: It is no run folder, a file in it is damaged, or its job cannot be read.
    """
    status = read_run_status(run)
    if not run.job.is_dir() or (status.alive and not (run.job / "spec.json").exists()):
        return WholeStatus(status, None)
    try:
        return WholeStatus(status, control.read_status(control.Job(run.path)))
    except NoLedgerError:
        # The ledger of a run that is kept at an address stays on the machine of its master. That
        # of a job which has just begun is still to be made.
        if run.stored is None and not status.alive:
            raise
        return WholeStatus(status, None)


def pages_of_job(run_folder: Path, view: Callable[[], JobView]) -> Pages:
    """The pages that a master serves.

    Args:
        view: The job now.
    """
    run = RunFolder(run_folder)
    return _pages(lambda: WholeStatus(read_run_status(run), view()))


def pages_of_run(run: RunFolder) -> Pages:
    """The pages of a run: it as it is, and once it has finished, its report."""

    def look() -> WholeStatus:
        try:
            return read_whole(run)
        except CtrPipelineError:
            # Its job begins, or its ledger is being written.
            return WholeStatus(read_run_status(run), None)

    pages = _pages(look)

    def page() -> Reply:
        if not look().is_live and run.report.is_file():
            return Reply(run.report.read_bytes(), _HTML, headers=_policy(_REPORT_POLICY))
        return pages["/"]()

    return pages | {"/": kept_for_a_moment(page)}


def is_live(run: RunFolder) -> bool:
    """Whether a run goes on."""
    try:
        return read_whole(run).is_live
    except CtrPipelineError:
        return bool(read_run_status(run).alive)


def show_pages(
    pages: Pages,
    *,
    port: int,
    on_address: Callable[[str], None],
    goes_on: Callable[[], bool],
    pause: Callable[[float], None],
) -> None:
    """Serves pages to one browser of this machine until there is nothing new to see.

    Args:
        port: 0: a free one.
        on_address: Called with the address to open, which works once.
        goes_on: Whether something may still change.
        pause: Waits seconds; whatever it raises ends the serving.

    Raises:
        CtrPipelineError: The port is taken.
    """
    gate = SessionGate()
    with serve_pages(pages, gate, host="127.0.0.1", port=port) as address:
        on_address(f"http://{address}{gate.opening_path}")
        while goes_on():
            pause(_LOOK_SECONDS)
        pause(_LAST_LOOK_SECONDS)


_HTML = "text/html; charset=utf-8"
_REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def _pages(look: Callable[[], WholeStatus]) -> dict[str, Callable[[], Reply]]:
    return {
        "/": kept_for_a_moment(lambda: live_reply(look().page())),
        "/status.json": kept_for_a_moment(
            lambda: Reply(json_text(look().payload()).encode(), "application/json")
        ),
    }


def live_reply(page: str) -> Reply:
    """A page that brings itself up to date, with what its browser may do for it."""
    from ctr_pipeline.reporting.render import LIVE_POLICY

    return Reply(page.encode("utf-8", "replace"), _HTML, headers=_policy(LIVE_POLICY))


def _policy(policy: str) -> dict[str, str]:
    return {"Content-Security-Policy": f"{policy}; frame-ancestors 'none'"}


def _run_payload(state: RunStatus) -> dict[str, Any]:
    last = state.last
    return {
        "folder": state.folder,
        "stored_at": state.stored_at,
        "files": dict(state.files),
        "name": state.name,
        "state": state.state,
        "alive": state.alive,
        "session": None if last is None else last.model_dump(mode="json"),
        "num_sessions": len(state.sessions),
        "epochs": state.epochs,
        "history": [asdict(record) | {"epoch": record.epoch + 1} for record in state.history],
        "resume": state.resume,
        "preparation_tasks": None if state.prepared is None else asdict(state.prepared),
        "worlds": [asdict(world) for world in state.worlds],
        "metrics_address": state.metrics_address,
        "members": _members_payload(state.replicas.members),
        "events": [asdict(event) for event in state.replicas.events],
    }


def _members_payload(members: Sequence[MemberStatus]) -> list[dict[str, Any]]:
    return [{"name": one.name, **asdict(one)} for one in members]


def _job_payload(view: JobView) -> dict[str, Any]:
    payload = asdict(view)
    payload["epoch"] += 1
    for record in payload["history"]:
        record["epoch"] += 1
    if payload["best_epoch"] is not None:
        payload["best_epoch"] += 1
    if not view.answering:
        payload["samples_per_second"] = payload["master_errors"] = None
    payload["members"] = _members_payload(view.members)
    return payload
