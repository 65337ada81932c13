"""Where a master begins: its ledger, and the job that the ledger or the cuts describe."""

import logging
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ctr_pipeline.config.models import Config, EtcdLedgerConfig
from ctr_pipeline.distributed.coordination.events import Json
from ctr_pipeline.distributed.coordination.job import Job
from ctr_pipeline.distributed.coordination.settings import JobSettings
from ctr_pipeline.distributed.coordination.spec import JobSpec
from ctr_pipeline.distributed.coordination.storage_wait import StorageWait
from ctr_pipeline.distributed.master.cuts import require_same_job
from ctr_pipeline.distributed.master.ledger.etcd import EtcdLedger, read_etcd_ledger
from ctr_pipeline.distributed.master.ledger.etcd_gateway import EtcdAccess
from ctr_pipeline.distributed.master.ledger.sqlite import SqliteLedger, read_ledger
from ctr_pipeline.distributed.master.ledger.store import (
    LedgerDamagedError,
    LedgerIdentity,
    LedgerStore,
    compare_identity,
)
from ctr_pipeline.distributed.master.manifests import CheckpointsFolder
from ctr_pipeline.distributed.master.status import NO_CUT, JobEvent, NewestCut
from ctr_pipeline.errors import CheckpointError, StorageError

T = TypeVar("T")

EVENTS_RECORD = "master/events"
START_RECORD = "master/start"
FENCE_RECORD = "master/fence"
_OWN_RECORDS = "master/"
"""Records of the ledger that the job machine does not know begin so."""

_SQLITE_FILE = "ledger.sqlite"

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


def open_ledger(
    config: Config, spec: JobSpec, job_folder: Path, *, wait_seconds: float
) -> LedgerStore:
    """The ledger that the config asks for, locked; a damaged file is set aside.

    For etcd it waits until the lock is free, as long as it takes; for a file, `wait_seconds`.

    Raises:
        LedgerError: Another master holds it, it belongs to another job, or it cannot be reached.
    """
    wanted, identity = config.runtime.ledger, _identity_of(spec)
    if wanted != "sqlite":
        return EtcdLedger(
            wanted.etcd,
            wanted.prefix,
            identity,
            wait_seconds=float("inf"),
            access=etcd_access(wanted),
        )
    path = job_folder / _SQLITE_FILE
    try:
        return _open_sqlite(path, identity, wait_seconds)
    except LedgerDamagedError as error:
        aside = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
        _LOGGER.warning("%s. It is set aside as %s", error, aside.name)
        for suffix in ("", "-wal", "-shm"):
            part = path.with_name(path.name + suffix)
            if part.exists():
                shutil.move(part, aside.with_name(aside.name + suffix))
        return _open_sqlite(path, identity, wait_seconds)


def etcd_access(wanted: EtcdLedgerConfig) -> EtcdAccess:
    """What the config and the environment give to be shown to etcd."""
    files = EtcdAccess(wanted.ca, wanted.certificate, wanted.key)
    return files.as_user_of_environment()


def read_records(config: Config, spec: JobSpec, job_folder: Path) -> Mapping[str, Json]:
    """The records of the job's ledger, whoever holds it.

    Raises:
        LedgerError: There is none, it belongs to another job, or it cannot be read.
    """
    wanted = config.runtime.ledger
    if wanted == "sqlite":
        place = str(job_folder / _SQLITE_FILE)
        identity, records = read_ledger(job_folder / _SQLITE_FILE)
    else:
        place = wanted.etcd
        identity, records = read_etcd_ledger(
            wanted.etcd, wanted.prefix, spec.job, access=etcd_access(wanted)
        )
    compare_identity(identity, _identity_of(spec), place)
    return records


def begin_job(
    settings: JobSettings,
    spec: JobSpec,
    records: Mapping[str, Json],
    folder: CheckpointsFolder,
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
        manifest = folder.load(spec.scores_cut)
        require_same_job(manifest, spec)
        return Job.to_score(settings, spec.scores_cut, manifest.frozen, now)
    folder.require_there()
    sound, reasons = folder.sound()
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
            place=str(folder.path),
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
    return None if record is None else MasterStart(**record)


def read_events(records: Mapping[str, Json]) -> tuple[JobEvent, ...]:
    """The event log, oldest first."""
    record = records.get(EVENTS_RECORD)
    return () if record is None else tuple(JobEvent(**entry) for entry in record["events"])


def find_newest_cut(folder: CheckpointsFolder, cut: int) -> NewestCut:
    """What is told of a cut that the ledger names; one that cannot be read has step 0."""
    if not cut:
        return NO_CUT
    try:
        facts = folder.load(cut).facts
    except (CheckpointError, StorageError) as error:
        # Whoever restores it will see to it; for the status it is not worth the job.
        _LOGGER.warning("the last checkpoint cannot be read: %s", error)
        return NewestCut(cut, 0, time.time())
    return NewestCut(cut, facts.step, facts.taken_at)


def _identity_of(spec: JobSpec) -> LedgerIdentity:
    return LedgerIdentity(spec.job, spec.config_fingerprint, spec.rows_fingerprint)


def _open_sqlite(path: Path, identity: LedgerIdentity, wait_seconds: float) -> SqliteLedger:
    store = SqliteLedger(path, identity, wait_seconds=wait_seconds)
    try:
        store.load()
    except BaseException:
        store.close()
        raise
    return store
