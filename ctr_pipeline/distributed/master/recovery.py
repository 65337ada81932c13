"""Where a master begins: the job that its ledger or the cuts describe."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from ctr_pipeline.distributed.coordination.codec import from_record
from ctr_pipeline.distributed.coordination.events import Json
from ctr_pipeline.distributed.coordination.job import Job
from ctr_pipeline.distributed.coordination.settings import JobSettings
from ctr_pipeline.distributed.coordination.spec import JobSpec
from ctr_pipeline.distributed.coordination.storage_wait import StorageWait
from ctr_pipeline.distributed.master.cuts import require_same_job
from ctr_pipeline.distributed.master.manifests import Cuts
from ctr_pipeline.distributed.master.status import NO_CUT, JobEvent, NewestCut
from ctr_pipeline.distributed.master.timeline import JobMoment
from ctr_pipeline.errors import CheckpointError, StorageError

T = TypeVar("T")

EVENTS_RECORD = "master/events"
TIMELINE_RECORD = "master/timeline"
START_RECORD = "master/start"
FENCE_RECORD = "master/fence"
_OWN_RECORDS = "master/"
"""Records of the ledger that the job machine does not know begin so."""

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class MasterStart:
    """One start of a master, as the ledger remembers it.

    Attributes:
        launch: The start of the whole job that it belongs to.
        number: Masters of that start of the job before it.
        alive_at: Unix time when it was last known to live, seconds.
    """

    launch: str
    number: int
    alive_at: float


def begin_job(
    settings: JobSettings,
    spec: JobSpec,
    records: Mapping[str, Json],
    cuts: Cuts,
    now: float,
    *,
    resume: bool,
) -> Job:
    """The job as the ledger has it, or else as its cuts have it, or else a new one.

    Args:
        now: The job's clock.
        resume: All members are gone; the ledger is of an earlier start of the job.

    Raises:
        CheckpointError: There is no ledger, and of the cuts none can be used; or the one that is
            to be scored with cannot.
        StorageError: There is no ledger, and what cuts there are cannot be told at this moment.
    """
    jobs_own = records_of_job(records)
    if jobs_own:
        return Job.from_ledger(settings, jobs_own, now, resume=resume)
    if spec.scores_cut:
        manifest = cuts.load(spec.scores_cut)
        require_same_job(manifest, spec)
        return Job.to_score(settings, spec.scores_cut, manifest.frozen, now)
    cuts.storage.require_there()
    sound, reasons = cuts.sound()
    for reason in reasons:
        _LOGGER.warning("skipping a checkpoint: %s", reason)
    for manifest in sound:
        require_same_job(manifest, spec)
    if sound:
        _LOGGER.warning(
            "there is no ledger: the job goes on from checkpoint %d", sound[0].facts.cut
        )
        return Job.from_cut(
            settings,
            {manifest.facts.cut: manifest.frozen for manifest in sound},
            max(manifest.facts.generation for manifest in sound),
            now,
        )
    if reasons:
        raise CheckpointError(
            f"there is no ledger, and none of the checkpoints can be used: {reasons[0]}",
            place=cuts.storage.address,
            remedy="Start anew with --overwrite",
        )
    return Job.begin(settings, now)


def await_storage(
    question: Callable[[], T], timeout_seconds: float, *, wait: Callable[[float], None]
) -> T:
    """The answer to a question that reads checkpoints; waits while they cannot be read.

    Args:
        question: Raises StorageError then.
        timeout_seconds: For how long.
        wait: Waits for some seconds.

    Raises:
        StorageError: They could not be read for so long.
    """
    storage, waited = StorageWait(timeout_seconds), 0.0
    while True:
        try:
            return question()
        except StorageError as error:
            storage.fail(waited, str(error))
            if storage.is_over(waited):
                raise StorageError(
                    f"checkpoints could not be read for {timeout_seconds:g} s: {error.message}",
                    place=error.place,
                    remedy="Nothing is lost: run it again with --resume once they can",
                ) from error
            _LOGGER.warning("waiting for storage: %s", error)
            wait(storage.retry_seconds)
            waited += storage.retry_seconds


def records_of_job(records: Mapping[str, Json]) -> Mapping[str, Json]:
    """Records without those of the master itself."""
    return {name: value for name, value in records.items() if not name.startswith(_OWN_RECORDS)}


def read_start(records: Mapping[str, Json]) -> MasterStart | None:
    """The last start of a master; None: there was none."""
    record = records.get(START_RECORD)
    return None if record is None else from_record(MasterStart, record)


def read_events(records: Mapping[str, Json]) -> tuple[JobEvent, ...]:
    """The event log, oldest first."""
    record = records.get(EVENTS_RECORD)
    return () if record is None else from_record(tuple[JobEvent, ...], record["events"])


def read_timeline(records: Mapping[str, Json]) -> tuple[JobMoment, ...]:
    """Members, records and speed over time, oldest first."""
    record = records.get(TIMELINE_RECORD)
    return () if record is None else from_record(tuple[JobMoment, ...], record["moments"])


def find_newest_cut(cuts: Cuts, cut: int) -> NewestCut:
    """What is told of a cut that the ledger names; one that cannot be read has step 0."""
    if not cut:
        return NO_CUT
    try:
        facts = cuts.load(cut).facts
    except (CheckpointError, StorageError) as error:
        # Whoever restores it will see to it; for the status it is not worth the job.
        _LOGGER.warning("the last checkpoint cannot be read: %s", error)
        return NewestCut(cut, 0, time.time())
    return NewestCut(cut, facts.step, facts.taken_at)
