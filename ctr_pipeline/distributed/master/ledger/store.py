"""What keeps a ledger: named JSON records, one writer, and a line drawn under some of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ctr_pipeline.distributed.coordination.events import Json
from ctr_pipeline.errors import EXIT_TRY_AGAIN, CtrPipelineError

LEDGER_FORMAT = 1
"""Format of the records; another one is refused."""


@dataclass(frozen=True)
class LedgerIdentity:
    """The job of a ledger; kept beside the records and compared when it is opened.

    Attributes:
        job: Unique name of the job.
        config_fingerprint: Fingerprint of the keys that the model depends on.
        rows_fingerprint: Fingerprint of the encoded rows.
    """

    job: str
    config_fingerprint: str
    rows_fingerprint: str


class LedgerError(CtrPipelineError):
    """The ledger cannot be opened, belongs to another job, or is damaged."""


class NoLedgerError(LedgerError):
    """There is none."""


class LedgerHeldError(LedgerError):
    """Another master holds the ledger; this one has written nothing."""


class LedgerDamagedError(LedgerError):
    """What the ledger holds cannot be read; the job can go on from its last cut."""


class LedgerLostError(LedgerError):
    """This master held the ledger and does not any more; it must stop at once.

    Another master may be at work, so not one more record may be written or promised. Started again,
    it waits for its turn.
    """

    exit_code = EXIT_TRY_AGAIN


class LedgerUnavailableError(LedgerError):
    """The ledger cannot be reached for now; what was to be committed may or may not be in it.

    The master answers nobody until the same commit has succeeded: asking again is safe, because
    records are whole values.
    """

    exit_code = EXIT_TRY_AGAIN


class LedgerStore(Protocol):
    """Records of one job, held by one master at a time.

    An implementation takes its lock when it is made, and waits for it or raises
    `LedgerHeldError`. Calls may come from several threads; one is carried out at a time.
    """

    def load(self) -> Mapping[str, Json]:
        """All records; none for a job that begins.

        Raises:
            LedgerDamagedError: A record cannot be read.
            LedgerUnavailableError: The store cannot be reached.
        """

    def commit(self, records: Mapping[str, Json | None], *, durable: bool) -> None:
        """Puts records, all or none, after all that was committed before.

        Args:
            records: New values; None deletes.
            durable: They, and all before them, survive a power cut when this returns. Others wait
                in memory for the next that are; a master that is killed loses those.

        Raises:
            LedgerLostError: Another master may hold the ledger.
            LedgerUnavailableError: Try again with the same records.
        """

    def require_lock(self) -> None:
        """Makes sure that no other master can hold the ledger at this moment.

        Raises:
            LedgerLostError: One may hold it.
            LedgerUnavailableError: One may, as it was not heard for too long that this one does.
        """

    def close(self) -> None:
        """Writes what waits and gives the lock back; does nothing the second time."""


class LedgerLocation(Protocol):
    """Where the ledger of a job is, or will be."""

    def await_ready(self, *, wait_seconds: float, on_wait: Callable[[str], None]) -> None:
        """Waits until a ledger can be kept here.

        Args:
            wait_seconds: For what keeps it to answer.
            on_wait: Told once what is waited for, if it does not answer the first time.

        Raises:
            LedgerError: It did not answer.
        """

    def open(self, identity: LedgerIdentity, *, wait_seconds: float) -> LedgerStore:
        """The ledger, locked; a new one is made if there is none.

        Args:
            wait_seconds: For another master to go before giving up. A store that several hosts
                reach may wait for its turn as long as it takes.

        Raises:
            LedgerError: Another master holds it, it belongs to another job, or it cannot be
                reached.
        """

    def read(self, identity: LedgerIdentity) -> Mapping[str, Json]:
        """The records of the ledger, whoever holds it; nothing is written.

        Raises:
            LedgerError: There is none, it belongs to another job, or it cannot be read.
        """


def compare_identity(found: LedgerIdentity, ours: LedgerIdentity, place: str) -> None:
    """Refuses the ledger of another job.

    Raises:
        LedgerError: Says what differs.
    """
    if found.job != ours.job:
        raise LedgerError(
            f"is the ledger of job '{found.job}', not of '{ours.job}'",
            place=place,
            remedy="Give this job another 'output', or remove the other job's ledger",
        )
    if found.config_fingerprint != ours.config_fingerprint:
        raise LedgerError(
            "was begun with another configuration of features, model or training",
            place=place,
            remedy="Resume with the config that the job was begun with, or start anew with "
            "--overwrite",
        )
    if found.rows_fingerprint != ours.rows_fingerprint:
        raise LedgerError(
            "was begun with other training rows",
            place=place,
            remedy="Restore the data files that the job was begun with, or start anew with "
            "--overwrite",
        )
