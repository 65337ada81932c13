"""Before a member that a person started begins: whether there is a job that it can join.

Members that a launcher starts need none of this: their master is there or on its way back, and they
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
_SAY_EVERY_SECONDS = 10.0

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sighting:
    """What is seen of a job from outside.

    Attributes:
        state: As its master says, or else its ledger; None where neither does.
        answering: The master said so.
        announced: Some master has announced itself; it may be on its way back.
    """

    state: str | None
    answering: bool
    announced: bool


class JobSight:
    """Looks at a job; its ledger is read now and then only.

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
        self._noted: str | None = None

    def __call__(self) -> Sighting:
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
            return Sighting(view.state, answering=True, announced=True)
        if self._clock() >= self._ledger_due:
            # The code of the job machine; a master that answers spares us from loading it.
            from ctr_pipeline.distributed.master import reading

            self._ledger_due = self._clock() + _LEDGER_EVERY_SECONDS
            self._noted = reading.read_phase(self._job.run_folder)
        announced = load_endpoint(self._job.folder) is not None
        return Sighting(self._noted, answering=False, announced=announced)


def await_job(
    job: Job,
    look: Callable[[], Sighting],
    *,
    wait_seconds: float,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> bool:
    """Waits until a job can be joined: whether it can; False if it is finished.

    A master that was there and does not answer is waited for as long as it takes: it is being
    started again.

    Args:
        job: Named in messages.
        look: Says how the job is.
        wait_seconds: For the first master to announce itself.
        clock: Seconds, monotonic.
        pause: Waits seconds.

    Raises:
        RunFolderError: It was stopped or has failed, or no master has come.
    """
    begun = said_at = clock()
    was_there = False
    while True:
        seen = look()
        if seen.state in ENDED_STATES:
            return _may_leave(job, seen.state)
        if seen.answering:
            return True
        was_there |= seen.announced
        waited = clock() - begun
        if not was_there and waited >= wait_seconds:
            raise RunFolderError(
                f"no master has announced itself within {wait_seconds:g} s",
                place=str(job.run_folder),
                remedy="Start it with 'ctrpipe run CONFIG' or 'ctrpipe master --config FILE', or "
                "give --wait SECONDS to wait for longer",
            )
        if waited == 0 or clock() - said_at >= _SAY_EVERY_SECONDS:
            said_at = clock()
            if was_there:
                _LOGGER.info("The master does not answer; waiting, as it may be restarting")
            else:
                left = wait_seconds - waited
                _LOGGER.info("No master has announced itself yet: waiting for %.0f s more", left)
        pause(_POLL_SECONDS)


def _may_leave(job: Job, state: str) -> bool:
    """False for a job that has what it wanted.

    Raises:
        RunFolderError: It ended otherwise.
    """
    if state == "finished":
        _LOGGER.info("The job in %s is finished", job.run_folder)
        return False
    how = "was stopped" if state == "stopped" else "has failed"
    raise RunFolderError(
        f"the job is over: it {how}",
        place=str(job.run_folder),
        remedy="'ctrpipe run CONFIG --resume' goes on from its last checkpoint; 'ctrpipe status' "
        "says how it ended",
    )
