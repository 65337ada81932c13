"""A member that a person started waits for a job that it can join.

Members that a launcher starts need none of this: their master runs or is being restarted, and they
end with the launcher. One started by hand would otherwise wait for ever beside a job that is over.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from ctr_pipeline.distributed.coordination.messages import Empty
from ctr_pipeline.distributed.master.status import JobView
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.endpoint import load_endpoint
from ctr_pipeline.distributed.rpc.failures import CallRefused, PeerUnavailable
from ctr_pipeline.errors import RunFolderError
from ctr_pipeline.pipeline.job.control import ENDED_STATES, Job, ask_master

_POLL_SECONDS = 0.5
_LEDGER_EVERY_SECONDS = 5.0
_LOG_EVERY_SECONDS = 10.0

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class JobSnapshot:
    """What a job looks like from outside.

    Attributes:
        state: As its master reports it, or else its ledger; None where neither does.
        answering: The master reported it.
        announced: Some master has announced itself; it may be restarting.
    """

    state: str | None
    answering: bool
    announced: bool


class JobProbe:
    """Takes snapshots of a job; the ledger is read every few seconds only.

    Args:
        master_address: `host:port`; None: as announced in the run folder.
        clock: Seconds, monotonic.

    Raises:
        CtrPipelineError: The secrets of the job cannot be read.
    """

    def __init__(
        self,
        job: Job,
        master_address: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        Access.load(job.folder, job.role)
        self._job = job
        self._master_address = master_address
        self._clock = clock
        self._ledger_due = clock()
        self._state_in_ledger: str | None = None

    def __call__(self) -> JobSnapshot:
        """The job now.

        Raises:
            CtrPipelineError: The master refuses us for good, or spec or config cannot be read.
        """
        try:
            view = ask_master(self._job, "Status", Empty(), JobView, address=self._master_address)
        except PeerUnavailable:
            pass
        except CallRefused as error:
            if not error.may_pass:
                raise
        else:
            return JobSnapshot(view.state, answering=True, announced=True)
        if self._clock() >= self._ledger_due:
            # The code of the job machine; a master that answers spares us from loading it.
            from ctr_pipeline.distributed.master import reading

            self._ledger_due = self._clock() + _LEDGER_EVERY_SECONDS
            self._state_in_ledger = reading.read_phase(self._job.run_folder)
        announced = load_endpoint(self._job.folder) is not None
        return JobSnapshot(self._state_in_ledger, answering=False, announced=announced)


def await_job(
    job: Job,
    probe: Callable[[], JobSnapshot],
    *,
    wait_seconds: float,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> bool:
    """Waits until a job can be joined; returns False if it is finished.

    Once a master has announced itself, there is no time limit: one that does not answer is being
    restarted.

    Args:
        wait_seconds: For the first master to announce itself.
        clock: Seconds, monotonic.
        pause: Waits seconds.

    Raises:
        RunFolderError: It was stopped or has failed, or no master has come.
    """
    began = logged_at = clock()
    was_announced = False
    while True:
        snapshot = probe()
        if snapshot.state == "finished":
            _LOGGER.info("The job in %s is finished", job.run_folder)
            return False
        if snapshot.state in ENDED_STATES:
            raise _is_over(job, snapshot.state)
        if snapshot.answering:
            return True
        was_announced |= snapshot.announced
        waited = clock() - began
        if not was_announced and waited >= wait_seconds:
            raise RunFolderError(
                f"no master has announced itself within {wait_seconds:g} s",
                place=str(job.run_folder),
                remedy="Start it with 'ctrpipe run CONFIG' or 'ctrpipe master --config FILE', or "
                "give --wait SECONDS to wait for longer",
            )
        if waited == 0 or clock() - logged_at >= _LOG_EVERY_SECONDS:
            logged_at = clock()
            if was_announced:
                _LOGGER.info("The master does not answer; waiting, as it may be restarting")
            else:
                left = wait_seconds - waited
                _LOGGER.info("No master has announced itself yet: waiting for %.0f s more", left)
        pause(_POLL_SECONDS)


def _is_over(job: Job, state: str) -> RunFolderError:
    how = "was stopped" if state == "stopped" else "has failed"
    return RunFolderError(
        f"the job is over: it {how}",
        place=str(job.run_folder),
        remedy="'ctrpipe run CONFIG --resume' goes on from its last checkpoint; 'ctrpipe status' "
        "says how it ended",
    )
