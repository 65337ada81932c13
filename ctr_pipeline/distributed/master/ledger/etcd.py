"""The ledger in etcd, so that a master on another host can take over.

One key a record, all under the name of the job, plus:

- `lock`: held under a lease that a thread keeps alive; it names its holder.
- `turn`: a number that every transaction compares and counts up.
- `identity`: whose ledger it is.
- `pieces/`: of records too large for one value; the record names its newest ones.
- `journal/`: commits too large for one transaction, until they have been carried out.

Every transaction is conditional on `lock` being the one this master made, so a master that lost it
cannot write, whatever it believes. It is also conditional on `turn`: a transaction that was given
up for lost, and that etcd finds in its buffers a minute later, comes to nothing.
"""

import contextlib
import json
import logging
import os
import socket
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ctr_pipeline.config.models import EtcdLedgerConfig
from ctr_pipeline.distributed.coordination.codec import MalformedMessage, decode, encode
from ctr_pipeline.distributed.coordination.events import Json
from ctr_pipeline.distributed.master.ledger.etcd_gateway import (
    OPEN_TO_ALL,
    EtcdAccess,
    EtcdGateway,
    Operation,
    delete,
    delete_folder,
    equals,
    get,
    put,
    read_folder,
    size_of,
)
from ctr_pipeline.distributed.master.ledger.store import (
    LEDGER_FORMAT,
    LedgerDamagedError,
    LedgerError,
    LedgerHeldError,
    LedgerIdentity,
    LedgerLostError,
    LedgerStore,
    LedgerUnavailableError,
    NoLedgerError,
    compare_identity,
)

_WAIT_STEP_SECONDS = 0.25
# etcd's own limits are 128 operations and 1.5 MB, of which base64 is not counted but headers are.
_MOST_OPERATIONS = 120
_MOST_BYTES = 1_000_000
_PIECE_BYTES = 500_000
_COMPRESSED_BEYOND_BYTES = 16_384
_ATTEMPTS = 3

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class LockHolder:
    """The holder of a lock, as its value says.

    Attributes:
        token: Random name of this holding of it.
        host: For a person.
        pid: Process on that host.
        machine: The boot and the process namespace that `pid` counts in; empty if unknown.
        started: When that process began, in clock ticks since that boot.
    """

    token: str
    host: str
    pid: int
    machine: str
    started: int
    lease: str


@dataclass(frozen=True)
class _Pieces:
    """Where the pieces of a record lie, as its value says.

    Attributes:
        folder: Below `pieces/` and the record's name; another one each time it is written.
    """

    folder: str
    number: int

    def to_record(self) -> bytes:
        return f"p{self.folder}/{self.number}".encode()

    @classmethod
    def of_record(cls, value: bytes) -> "_Pieces | None":
        """None if the value is the record itself: JSON, which begins otherwise, or compressed."""
        if value[:1] != b"p":
            return None
        folder, _, number = value[1:].decode().partition("/")
        return cls(folder, int(number))


class EtcdLocation:
    """Keys of etcd under the name of the job."""

    def __init__(self, wanted: EtcdLedgerConfig, _: Path) -> None:
        self._url, self._prefix = wanted.etcd, wanted.prefix
        files = EtcdAccess(wanted.ca, wanted.certificate, wanted.key)
        self._access = files.as_user_of_environment()

    def await_ready(self, *, wait_seconds: float, on_wait: Callable[[str], None]) -> None:
        """Waits until etcd answers."""
        await_etcd(self._url, wait_seconds=wait_seconds, on_wait=on_wait, access=self._access)

    def open(self, identity: LedgerIdentity, *, wait_seconds: float) -> LedgerStore:
        """The ledger, locked; waits as long as it takes until the lock is free."""
        forever = float("inf")
        return EtcdLedger(
            self._url, self._prefix, identity, wait_seconds=forever, access=self._access
        )

    def read(self, identity: LedgerIdentity) -> Mapping[str, Json]:
        """The records of the ledger, whoever holds it."""
        found, records = read_etcd_ledger(
            self._url, self._prefix, identity.job, access=self._access
        )
        compare_identity(found, identity, self._url)
        return records


class EtcdLedger:
    """Records of one job in etcd, behind its JSON gateway.

    Args:
        url: URL of etcd's client port, such as `http://127.0.0.1:2379`.
        prefix: Begins all keys.
        identity: Identity of the job; kept in a new ledger, compared with that of an old one.
        wait_seconds: For another master to go before giving up.
        lock_seconds: A master that etcd has not heard of for so long loses the lock.
        call_seconds: For etcd to answer a call.
        access: Certificates and credentials.
        compact_after: Etcd forgets what was overwritten, after so many transactions.
        clock: Seconds.
        sleep: Waits.
        connect: Opens a connection to etcd.

    Raises:
        LedgerHeldError: Another master still held it.
        LedgerUnavailableError: etcd does not answer.
        LedgerDamagedError: The ledger cannot be read.
        LedgerError: It belongs to another job or another version, or the address is none.
    """

    def __init__(
        self,
        url: str,
        prefix: str,
        identity: LedgerIdentity,
        *,
        wait_seconds: float = 0.0,
        lock_seconds: int = 5,
        call_seconds: float = 2.0,
        access: EtcdAccess = OPEN_TO_ALL,
        compact_after: int = 1000,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        connect: "Callable[[str, float, EtcdAccess], EtcdGateway]" = EtcdGateway,
    ) -> None:
        self._gateway = connect(url, call_seconds, access)
        self._compact_after = compact_after
        self._num_written = self._compact_to = 0
        self._root = _job_root(prefix, identity.job)
        self._place = f"{url}, {self._root}"
        self._lock_seconds = lock_seconds
        self._clock = clock
        self._held_until = clock()
        """When the lease of the lock ends, by our clock, unless etcd is heard again."""
        self._guard = threading.Lock()
        self._waiting: dict[str, Json | None] = {}
        self._lost = False
        self._closed = False
        self._ended = threading.Event()
        self._turn = 0
        self._pieces: dict[str, _Pieces] = {}
        """Pieces of records that are too large for one."""
        self._journal_begun = False
        self._lease, self._lock_revision = self._take_lock(wait_seconds, clock, sleep)
        # Connections are not for two threads at once: the keeper has its own.
        self._keeper = threading.Thread(
            target=self._keep_alive,
            args=(connect(url, min(call_seconds, lock_seconds / 3), access),),
            name="ledger-lock",
            daemon=True,
        )
        self._keeper.start()
        try:
            self._open(identity)
        except BaseException:
            self._give_back_lock()
            raise

    def load(self) -> Mapping[str, Json]:
        """All records; none for a job that begins."""
        with self._guard:
            self._refuse_if_over()
            self._write_waiting()
            self._finish_journal()
            found = read_folder(self._gateway, f"{self._root}records/", self._place)
            self._pieces = {
                name: pieces
                for name, value in found.items()
                if (pieces := _Pieces.of_record(value)) is not None
            }
            records = _read_records(self._gateway, self._root, found, self._place)
            # What was read is ours only if nobody else has written since.
            self._transact([])
            return records

    def commit(self, records: Mapping[str, Json | None], *, durable: bool) -> None:
        """Puts records, all or none, after all that was committed before."""
        with self._guard:
            self._refuse_if_over()
            self._waiting.update(records)
            if durable:
                self._write_waiting()

    def require_lock(self) -> None:
        """Makes sure that no other master can hold the ledger at this moment."""
        self._refuse_if_over(closing=True)
        if self._clock() >= self._held_until:
            raise LedgerUnavailableError(
                f"etcd was not heard for {self._lock_seconds} s, and another master may be at work",
                place=self._place,
            )

    def close(self) -> None:
        """Writes what waits and gives the lock back."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
            try:
                if not self._lost:
                    self._write_waiting()
            finally:
                self._give_back_lock()

    # The lock.

    def _take_lock(
        self, wait_seconds: float, clock: Callable[[], float], sleep: Callable[[float], None]
    ) -> tuple[str, int]:
        """Lease and revision of the lock, once it is ours."""
        give_up = clock() + wait_seconds
        key = f"{self._root}lock"
        is_said = False
        while True:
            try:
                found = self._read_lock_key(key)
            except LedgerUnavailableError as error:
                # A new master and etcd may be starting at the same time.
                if clock() >= give_up:
                    raise
                if not is_said:
                    is_said = True
                    _LOGGER.warning("%s; waiting for it", error)
            else:
                if isinstance(found, tuple):
                    return found
                if clock() >= give_up:
                    who = f"process {found.pid} on {found.host}" if found else "of unknown name"
                    raise LedgerHeldError(
                        f"another master works on this run ({who})",
                        place=self._place,
                        remedy="Wait for it, or stop it with 'ctrpipe stop'",
                    )
            sleep(_WAIT_STEP_SECONDS)

    def _read_lock_key(self, key: str) -> tuple[str, int] | LockHolder | None:
        """Lease and revision of the lock if it is ours now, or else who has it."""
        held = self._gateway.read(key)
        holder = _read_holder(held[0]) if held is not None else None
        if holder is not None and _is_dead(holder):
            # A process of this machine that is gone needs no lock: nobody waits for its end.
            self._gateway.call("/lease/revoke", {"ID": holder.lease})
            held = None
        if held is None:
            taken = self._try_lock(key)
            if taken is not None:
                return taken
        return holder

    def _try_lock(self, key: str) -> tuple[str, int] | None:
        asked_at = self._clock()
        granted = self._gateway.call("/lease/grant", {"TTL": self._lock_seconds, "ID": 0})
        lease = str(granted["ID"])
        us = _ourselves(lease)
        value = encode(us)
        answer: Mapping[str, Any] = {}
        with contextlib.suppress(LedgerUnavailableError):
            # Whether it went through is seen by reading, answered or not.
            answer = self._gateway.transact(
                [equals(key, "CREATE", "create_revision", 0)],
                [put(key, value, lease=lease)],
                [],
            )
        held = self._gateway.read(key)
        holder = _read_holder(held[0]) if held is not None else None
        if held is not None and holder is not None and holder.token == us.token:
            self._held_until = asked_at + self._lock_seconds
            return lease, held[1]
        if not answer.get("succeeded"):
            self._gateway.call("/lease/revoke", {"ID": lease})
        return None

    def _keep_alive(self, gateway: "EtcdGateway") -> None:
        with contextlib.closing(gateway):
            while not self._ended.wait(self._lock_seconds / 4):
                asked_at = self._clock()
                try:
                    answer = gateway.call("/lease/keepalive", {"ID": self._lease})
                except LedgerError:
                    continue  # until the lease is over; `require_lock` knows when
                seconds = int(answer.get("result", {}).get("TTL", 0))
                # Without the guard, which a call to etcd may hold: values are whole or absent.
                if seconds <= 0:
                    self._lost = True
                    return
                self._held_until = asked_at + min(seconds, self._lock_seconds)

    def _give_back_lock(self) -> None:
        self._ended.set()
        self._keeper.join()
        with contextlib.suppress(LedgerError):
            self._gateway.call("/lease/revoke", {"ID": self._lease})
        self._gateway.close()

    # Writing.

    def _write_waiting(self) -> None:
        """Writes what waits; keeps it if that fails. The guard is held."""
        if not self._waiting:
            self._refuse_if_over(closing=True)
            return
        pieces = dict(self._pieces)
        operations = [
            operation
            for key, value in self._waiting.items()
            for operation in self._to_operations(key, value, pieces)
        ]
        parts = _in_parts(operations)
        if self._journal_begun:
            self._finish_journal()
        if len(parts) == 1:
            self._transact(parts[0])
        else:
            self._write_by_journal(parts)
        self._pieces = pieces
        self._waiting.clear()

    def _to_operations(
        self, key: str, value: Json | None, pieces: dict[str, _Pieces]
    ) -> list[Operation]:
        """Puts or deletes a record; `pieces` is as it will be then."""
        name, folder = f"{self._root}records/{key}", f"{self._root}pieces/{key}/"
        before = pieces.pop(key, None)
        operations = [] if before is None else [delete_folder(f"{folder}{before.folder}/")]
        if value is None:
            return [*operations, delete(name)]
        data = _to_bytes(value)
        if len(data) <= _MOST_BYTES:
            return [*operations, put(name, data)]
        parts = [data[first : first + _PIECE_BYTES] for first in range(0, len(data), _PIECE_BYTES)]
        pieces[key] = _Pieces(uuid.uuid4().hex, len(parts))
        operations += [
            put(f"{folder}{pieces[key].folder}/{number:06d}", part)
            for number, part in enumerate(parts)
        ]
        return [*operations, put(name, pieces[key].to_record())]

    def _write_by_journal(self, parts: Sequence[Sequence[Operation]]) -> None:
        """Parts of one commit: in the journal first, so that they happen all or not at all."""
        self._journal_begun = True
        for number, part in enumerate(parts):
            data = zlib.compress(json.dumps(part).encode())
            self._transact([put(f"{self._root}journal/{number:06d}", data)])
        self._transact([put(f"{self._root}journal/complete", str(len(parts)).encode())])
        self._finish_journal()

    def _finish_journal(self) -> None:
        """Carries out a commit whose journal is complete; forgets one whose is not."""
        folder = f"{self._root}journal/"
        journal = read_folder(self._gateway, folder, self._place)
        if "complete" in journal:
            names = sorted(journal.keys() - {"complete"})
            try:
                parts = [json.loads(zlib.decompress(journal[name])) for name in names]
                if len(parts) != int(journal["complete"]):
                    raise ValueError(f"{len(parts)} parts of {int(journal['complete'])}")
            except (ValueError, zlib.error) as error:
                raise LedgerDamagedError(
                    f"the journal of the ledger is damaged ({error})", place=self._place
                ) from error
            for part in parts:
                self._transact(part)
        if journal:
            self._transact([delete_folder(folder)])
        self._journal_begun = False

    def _transact(self, operations: Sequence[Operation]) -> None:
        """One transaction, if the lock is still ours; exactly once, however often etcd is asked."""
        lock, turn = f"{self._root}lock", f"{self._root}turn"
        for attempt in range(_ATTEMPTS):
            self._refuse_if_over(closing=True)
            conditions = [
                equals(lock, "CREATE", "create_revision", self._lock_revision),
                equals(turn, "VERSION", "version", self._turn),
            ]
            counting = put(turn, str(os.getpid()).encode())
            try:
                answer = self._gateway.transact(
                    conditions, [*operations, counting], [get(lock), get(turn)]
                )
            except LedgerUnavailableError:
                # Restarted servers close connections; a stalled one is for the caller to wait for.
                if attempt + 1 == _ATTEMPTS or not self._gateway.was_reset:
                    raise
                continue
            if answer.get("succeeded"):
                self._turn += 1
                self._compact_if_due(int(answer["header"]["revision"]))
                return
            found_lock, found_turn = (
                part["response_range"].get("kvs", []) for part in answer["responses"]
            )
            if not found_lock or int(found_lock[0]["create_revision"]) != self._lock_revision:
                self._lost = True
                self._refuse_if_over(closing=True)
            # Ours, but a transaction that seemed lost has happened after all. Records are whole
            # values, so all of them are put again, in their turn.
            self._turn = int(found_turn[0]["version"]) if found_turn else 0
        raise LedgerUnavailableError("etcd does not come to rest", place=self._place)

    def _compact_if_due(self, revision: int) -> None:
        """Keeps etcd from growing by every value that a record ever had."""
        self._num_written += 1
        if self._num_written % self._compact_after:
            return
        if self._compact_to:
            # Never the newest revisions: others may be reading a folder as of one of them.
            try:
                self._gateway.compact(self._compact_to)
            except LedgerError as error:
                _LOGGER.warning("etcd cannot delete overwritten records: %s", error)
        self._compact_to = revision

    def _refuse_if_over(self, *, closing: bool = False) -> None:
        if self._lost:
            raise LedgerLostError(
                "this master lost its lock in etcd and has stopped writing", place=self._place
            )
        if self._closed and not closing:
            raise LedgerUnavailableError("the ledger is closed", place=self._place)

    def _open(self, identity: LedgerIdentity) -> None:
        with self._guard:
            found_turn = self._gateway.read_version(f"{self._root}turn")
            self._turn = found_turn
            key = f"{self._root}identity"
            found = self._gateway.read(key)
            if found is None:
                text = json.dumps({"format": LEDGER_FORMAT, **asdict(identity)})
                self._transact([put(key, text.encode())])
            else:
                compare_identity(_to_identity(found[0], self._place), identity, self._place)
            self._finish_journal()


def await_etcd(
    url: str,
    *,
    wait_seconds: float,
    on_wait: Callable[[str], None],
    call_seconds: float = 2.0,
    access: EtcdAccess = OPEN_TO_ALL,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Waits until etcd answers.

    Args:
        url: URL of etcd's client port.
        wait_seconds: For it to answer.
        on_wait: Told once what is waited for, if it does not answer the first time.
        call_seconds: For etcd to answer a call.
        access: Certificates and credentials.
        clock: Seconds.
        sleep: Waits.

    Raises:
        LedgerError: It did not, or the address is none.
    """
    give_up = clock() + wait_seconds
    is_said = False
    with contextlib.closing(EtcdGateway(url, call_seconds, access)) as gateway:
        while True:
            try:
                gateway.read_version("ctrpipe")
            except LedgerUnavailableError as error:
                if clock() >= give_up:
                    # Not as one that a restarted master gets over: a person waits for this.
                    raise LedgerError(
                        f"{error.message}, for {wait_seconds:g} s now",
                        place=url,
                        remedy=error.remedy,
                    ) from error
                if not is_said:
                    is_said = True
                    on_wait(
                        f"Waiting for etcd at {url}, {wait_seconds:g} s at most: {error.message}"
                    )
            else:
                return
            sleep(_WAIT_STEP_SECONDS)


def read_etcd_ledger(
    url: str,
    prefix: str,
    job: str,
    *,
    call_seconds: float = 2.0,
    access: EtcdAccess = OPEN_TO_ALL,
) -> tuple[LedgerIdentity, Mapping[str, Json]]:
    """Identity and records of a ledger, whoever holds it; nothing is written.

    A commit too large for one transaction may be seen half done.

    Raises:
        NoLedgerError: There is none.
        LedgerUnavailableError: etcd does not answer.
        LedgerDamagedError: It cannot be read.
    """
    gateway = EtcdGateway(url, call_seconds, access)
    root = _job_root(prefix, job)
    place = f"{url}, {root}"
    try:
        found = gateway.read(f"{root}identity")
        if found is None:
            raise NoLedgerError("there is no ledger here", place=place)
        records = read_folder(gateway, f"{root}records/", place)
        return _to_identity(found[0], place), _read_records(gateway, root, records, place)
    finally:
        gateway.close()


def _read_records(
    gateway: EtcdGateway, root: str, found: Mapping[str, bytes], place: str
) -> dict[str, Json]:
    """Records of their values, with the pieces of those that lie in some."""
    records = {}
    for name, value in found.items():
        pieces = _Pieces.of_record(value)
        if pieces is not None:
            parts = read_folder(gateway, f"{root}pieces/{name}/{pieces.folder}/", place)
            if len(parts) != pieces.number:
                raise LedgerDamagedError("pieces of a record are missing", place=f"{place}{name}")
            data = b"".join(parts[part] for part in sorted(parts))
        else:
            data = value
        records[name] = _to_json(data, f"{place}records/{name}")
    return records


def _job_root(prefix: str, job: str) -> str:
    return f"{prefix.rstrip('/')}/{job}/"


def _in_parts(operations: Sequence[Operation]) -> list[list[Operation]]:
    """Operations in their order, in groups that etcd takes at once."""
    parts: list[list[Operation]] = [[]]
    num_bytes = 0
    for operation in operations:
        size = size_of(operation)
        if parts[-1] and (len(parts[-1]) >= _MOST_OPERATIONS or num_bytes + size > _MOST_BYTES):
            parts.append([])
            num_bytes = 0
        parts[-1].append(operation)
        num_bytes += size
    return parts


def _to_bytes(value: Json) -> bytes:
    data = json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
    # Compressed ones begin with zlib's own first byte, 'x', as no JSON does.
    return zlib.compress(data) if len(data) > _COMPRESSED_BEYOND_BYTES else data


def _to_json(data: bytes, place: str) -> Json:
    try:
        value = json.loads(zlib.decompress(data) if data[:1] == b"x" else data)
    except (ValueError, zlib.error) as error:
        raise LedgerDamagedError("a record of the ledger is damaged", place=place) from error
    if not isinstance(value, dict):
        raise LedgerDamagedError("a record of the ledger is no mapping", place=place)
    return value


def _to_identity(data: bytes, place: str) -> LedgerIdentity:
    try:
        found = json.loads(data)
        version = found["format"]
        identity = LedgerIdentity(
            found["job"], found["config_fingerprint"], found["rows_fingerprint"]
        )
    except (ValueError, KeyError, TypeError) as error:
        raise LedgerDamagedError("the ledger does not say whose it is", place=place) from error
    if version != LEDGER_FORMAT:
        raise LedgerError(
            f"has format {version}, and this program knows format {LEDGER_FORMAT}",
            place=place,
            remedy="Go on with the version of ctrpipe that began the job, or start anew with "
            "--overwrite",
        )
    return identity


def _ourselves(lease: str) -> LockHolder:
    return LockHolder(
        token=uuid.uuid4().hex,
        host=socket.gethostname(),
        pid=os.getpid(),
        machine=_machine(),
        started=_start_ticks(os.getpid()) or 0,
        lease=lease,
    )


def _machine() -> str:
    """Name of what process numbers are unique in: this boot of the machine, and this namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def _start_ticks(pid: int) -> int | None:
    """When a process began, in ticks since boot, which no step of a clock moves; None: no such."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The second field, a name in parentheses, may itself hold blanks and parentheses.
    return int(text.rpartition(")")[2].split()[19])


def _is_dead(holder: LockHolder) -> bool:
    """Whether it is certain that the holder's process has ended."""
    if not holder.machine or holder.machine != _machine():
        return False
    return _start_ticks(holder.pid) != holder.started


def _read_holder(value: bytes) -> LockHolder | None:
    try:
        return decode(LockHolder, value)
    except MalformedMessage:
        return None
