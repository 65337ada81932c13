"""Follows a job that this process has started until its members have ended."""

import logging
import signal
import time
from dataclasses import replace

from ctr_pipeline import interruption
from ctr_pipeline.distributed.coordination.launching import Launcher
from ctr_pipeline.distributed.coordination.messages import Empty
from ctr_pipeline.distributed.master.status import JobView
from ctr_pipeline.distributed.rpc.failures import PeerUnavailable
from ctr_pipeline.errors import CtrPipelineError, HandedOver, Interrupted, TrainingError
from ctr_pipeline.pipeline.job.control import (
    ENDED_STATES,
    Job,
    MasterConnection,
    ask_master,
    read_status,
)
from ctr_pipeline.pipeline.job.progress_view import JobProgress, NewsCollector
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.progress import Progress

_LOGGER = logging.getLogger(__name__)
_POLL_SECONDS = 0.25
LOOK_SECONDS = 0.5
_STOP_SECONDS = 140.0
_FINISH_SECONDS = 20.0
_LEAVING_SECONDS, _MOST_LEAVING_SECONDS = 2.0, 60.0
"""How long members are awaited that are about to leave with this process."""

LEFT_TO_NEXT = "Asked to end: the members go on, and the next driver leads them"
_RESUME = "--resume goes on from the last checkpoint"


def follow_job(
    run: RunFolder, launcher: Launcher, progress: Progress, *, resumable: bool
) -> JobView:
    """Shows a job until nothing is left to train or to score and its master has ended.

    Args:
        resumable: It takes checkpoints, from which it may be resumed.

    Returns:
        The last status; its members and tables as a master reported them last.

    Raises:
        TrainingError: It failed.
        HandedOver: A signal came, and another process goes on with the members.
        Interrupted: It was stopped.
    """
    job, stop_until = Job(run.path), None
    # What was told before this process began stands where it was told.
    news = NewsCollector(after=time.time())
    told: JobView | None = None
    with interruption.deferred(), JobProgress(progress) as shown, MasterConnection(job) as master:
        while True:
            if interruption.requested() and stop_until is None:
                if launcher.is_followed():
                    progress.log(LEFT_TO_NEXT)
                    _await_leaving(master)
                    raise HandedOver(signal.SIGTERM)
                progress.log("Stopping after a checkpoint" if resumable else "Stopping")
                stop_until = time.monotonic() + _STOP_SECONDS
                _request_stop(job)
            if stop_until is not None and time.monotonic() > stop_until:
                interruption.raise_if_requested()
            view: JobView | None
            try:
                view = master.ask("Status", Empty(), JobView)
            except PeerUnavailable:
                # It does not serve yet, is being restarted, or has ended since the last call.
                failure = launcher.failure()
                view = _last_view(job, launcher, failure)
                if failure and view is None:
                    reason = "the master cannot go on"
                    raise _failed(reason, failure, run, resumable=resumable) from None
            if view is not None:
                shown.show(view)
                launcher.publish(news.collect(view, time.time()))
                told = view if view.answering else told
                if view.state == "finished":
                    _await_master(launcher)
                    if told is None:
                        return view
                    return replace(view, members=told.members, tables=told.tables)
                if view.state == "failed":
                    raise _failed(view.reason, view.traceback, run, resumable=resumable)
                if view.state == "stopped":
                    progress.log("Stopped" + (f"; {_RESUME}" if resumable else ""))
                    interruption.raise_if_requested()
                    # Somebody ran 'ctrpipe stop'.
                    raise Interrupted(signal.SIGTERM)
            time.sleep(LOOK_SECONDS)


def _last_view(job: Job, launcher: Launcher, failure: str) -> JobView | None:
    """How a job ended, by its ledger; None where its master goes on, or ended before its job.

    Args:
        failure: Why the master is not started again; empty while all is well.

    Raises:
        CtrPipelineError: The master has done its work and its ledger cannot be read.
    """
    (master,) = (one for one in launcher.observe() if one.role == "master")
    if not failure and master.reason != "completed":
        return None
    try:
        view = read_status(job)
    except CtrPipelineError:
        if failure:
            return None
        raise
    return view if view.state in ENDED_STATES else None


def _failed(reason: str, details: str, run: RunFolder, *, resumable: bool) -> TrainingError:
    if details:
        _LOGGER.error("%s\n%s", reason, details)
    return TrainingError(
        reason,
        place=str(run.logs),
        remedy="What its members wrote lies there" + (f"; {_RESUME}" if resumable else ""),
    )


def _await_master(launcher: Launcher) -> None:
    """Waits for members to leave, the master last; the launcher ends those that stay."""
    until = time.monotonic() + _FINISH_SECONDS
    while time.monotonic() < until:
        if not any(one.running for one in launcher.observe() if one.role == "master"):
            return
        time.sleep(_POLL_SECONDS / 5)


def _await_leaving(master: MasterConnection) -> None:
    """Waits until no parameter server is about to end: its master lets it go without a loss.

    What asks this process to end, such as a node that is drained, may ask others there, too.
    """
    now = time.monotonic()
    at_least, until = now + _LEAVING_SECONDS, now + _MOST_LEAVING_SECONDS
    is_leaving = True
    while time.monotonic() < at_least or (is_leaving and time.monotonic() < until):
        time.sleep(LOOK_SECONDS)
        try:
            view = master.ask("Status", Empty(), JobView)
        except PeerUnavailable:
            return
        is_leaving = any(one.state == "leaving" for one in view.members)


def _request_stop(job: Job) -> None:
    """Asks the master to stop the job, again while it is being restarted."""
    for _ in range(20):
        try:
            ask_master(job, "Stop", Empty(), Empty)
        except PeerUnavailable:
            time.sleep(_POLL_SECONDS)
        else:
            return
    _LOGGER.warning("The master does not answer the request to stop")
