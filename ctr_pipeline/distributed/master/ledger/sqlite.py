"""The ledger in an SQLite file on a local disk."""

import contextlib
import fcntl
import json
import logging
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO

import psutil

from ctr_pipeline.distributed.coordination.events import Json
from ctr_pipeline.distributed.master.ledger.store import (
    LEDGER_FORMAT,
    LedgerDamagedError,
    LedgerError,
    LedgerHeldError,
    LedgerIdentity,
    LedgerStore,
    LedgerUnavailableError,
    NoLedgerError,
    compare_identity,
)
from ctr_pipeline.durable import not_through_links

_APPLICATION_ID = 0x63747270  # "ctrp", so that `file` and we know whose database it is
_NETWORK_DISKS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "ceph", "glusterfs", "lustre"}
)
_WAIT_STEP_SECONDS = 0.1
_FILE = "ledger.sqlite"

_LOGGER = logging.getLogger(__name__)


class SqliteLocation:
    """A file in the job's folder."""

    def __init__(self, _: object, job_folder: Path) -> None:
        self._path = job_folder / _FILE

    def await_ready(self, *, wait_seconds: float, on_wait: Callable[[str], None]) -> None:
        """The disk is there."""

    def open(self, identity: LedgerIdentity, *, wait_seconds: float) -> LedgerStore:
        """The ledger, locked; a damaged file is set aside."""
        path = self._path
        try:
            return _open_sound(path, identity, wait_seconds)
        except LedgerDamagedError as error:
            aside = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
            _LOGGER.warning("%s. It is set aside as %s", error, aside.name)
            for suffix in ("", "-wal", "-shm"):
                part = path.with_name(path.name + suffix)
                if part.exists():
                    shutil.move(part, aside.with_name(aside.name + suffix))
            return _open_sound(path, identity, wait_seconds)

    def read(self, identity: LedgerIdentity) -> Mapping[str, Json]:
        """The records of the ledger, whoever holds it."""
        found, records = read_ledger(self._path)
        compare_identity(found, identity, str(self._path))
        return records


class SqliteLedger:
    """Records of one job in an SQLite file.

    The lock is one of the operating system on a file beside it, so that it goes with the process
    that held it, however that ended, and readers are never in the way.

    Args:
        identity: Identity of the job; kept in a new ledger, compared with that of an old one.
        wait_seconds: For another master to go before giving up.
        clock: Seconds.
        sleep: Waits.
        connect: Opens the database, as `sqlite3.connect`.

    Raises:
        LedgerHeldError: Another master still held it.
        LedgerDamagedError: It is no database, or a broken one.
        LedgerError: It belongs to another job or another version, or its disk is of the network.
    """

    def __init__(
        self,
        path: Path,
        identity: LedgerIdentity,
        *,
        wait_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        connect: Callable[..., sqlite3.Connection] = sqlite3.connect,
    ) -> None:
        self._path = path
        self._connect = connect
        self._guard = threading.Lock()
        self._waiting: dict[str, Json | None] = {}
        self._closed = False
        _refuse_network_disk(path)
        self._lock_file = _take_lock(path, wait_seconds, clock, sleep)
        try:
            self._database = self._open(identity)
        except BaseException:
            self._lock_file.close()
            raise

    def load(self) -> Mapping[str, Json]:
        """All records; none for a job that begins."""
        with self._guard, _explained(self._path):
            self._write_waiting()
            return _read_records(self._database, self._path)

    def commit(self, records: Mapping[str, Json | None], *, durable: bool) -> None:
        """Puts records, all or none, after all that was committed before."""
        with self._guard:
            if self._closed:
                raise LedgerUnavailableError("the ledger is closed", place=str(self._path))
            self._waiting.update(records)
            if durable:
                self._write_waiting()

    def require_lock(self) -> None:
        """The lock goes only with this process."""

    def close(self) -> None:
        """Writes what waits and gives the lock back."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
            try:
                self._write_waiting()
            finally:
                self._database.close()
                self._lock_file.close()

    def _open(self, identity: LedgerIdentity) -> sqlite3.Connection:
        with _explained(self._path):
            database = self._connect(
                self._path, isolation_level=None, check_same_thread=False, timeout=10.0
            )
            try:
                _prepare(database, self._path, identity)
            except BaseException:
                database.close()
                raise
        # It may hold the names of hosts and columns: for the owner alone.
        self._path.chmod(0o600)
        return database

    def _write_waiting(self) -> None:
        """Writes what waits; keeps it if that fails. The guard is held."""
        if not self._waiting:
            return
        puts = [(key, _to_text(value)) for key, value in self._waiting.items() if value is not None]
        deletes = [(key,) for key, value in self._waiting.items() if value is None]
        database = self._database
        with _explained(self._path):
            database.execute("BEGIN IMMEDIATE")
            try:
                database.executemany(
                    "INSERT INTO records (key, value) VALUES (?, ?) "
                    "ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                    puts,
                )
                database.executemany("DELETE FROM records WHERE key = ?", deletes)
                database.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    database.execute("ROLLBACK")
                raise
        self._waiting.clear()


def _open_sound(path: Path, identity: LedgerIdentity, wait_seconds: float) -> SqliteLedger:
    store = SqliteLedger(path, identity, wait_seconds=wait_seconds)
    try:
        store.load()
    except BaseException:
        store.close()
        raise
    return store


def read_ledger(path: Path) -> tuple[LedgerIdentity, Mapping[str, Json]]:
    """Identity and records of a ledger, whoever holds it; nothing is written.

    Raises:
        NoLedgerError: There is none.
        LedgerDamagedError: It cannot be read.
    """
    if not path.exists():
        raise NoLedgerError("there is no ledger here", place=str(path))
    with _explained(path):
        # Not read-only: the log of a master that was killed is read through an index beside it,
        # which has to be made first.
        database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True, timeout=5.0)
        try:
            database.execute("PRAGMA query_only = ON")
            database.execute("BEGIN")
            return _read_identity(database, path), _read_records(database, path)
        finally:
            database.close()


def _take_lock(
    path: Path,
    wait_seconds: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> IO[bytes]:
    lock_path = path.with_name(f"{path.name}.lock")
    try:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        file = os.fdopen(not_through_links(str(lock_path), flags), "a+b")
    except OSError as error:
        raise LedgerError(
            f"cannot be opened ({error.strerror})",
            place=str(lock_path),
            remedy="Choose another 'output' or its permissions",
        ) from error
    give_up = clock() + wait_seconds
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if clock() >= give_up:
                file.seek(0)
                holder = file.read(20).decode("ascii", "replace").strip() or "unknown"
                file.close()
                raise LedgerHeldError(
                    f"another master works on this run (process {holder})",
                    place=str(path),
                    remedy="Wait for it, or stop it with 'ctrpipe stop'",
                ) from None
            sleep(_WAIT_STEP_SECONDS)
    file.seek(0)
    file.truncate()
    file.write(str(os.getpid()).encode())
    file.flush()
    return file


def _refuse_network_disk(path: Path) -> None:
    """Locks and shared memory of SQLite's log do not hold between hosts."""
    folder = path.parent.resolve()
    mounts = [
        disk for disk in psutil.disk_partitions(all=True) if folder.is_relative_to(disk.mountpoint)
    ]
    kind = max(mounts, key=lambda disk: len(disk.mountpoint)).fstype if mounts else ""
    if kind in _NETWORK_DISKS:
        raise LedgerError(
            f"a ledger in SQLite needs a local disk, and this one is {kind}",
            place=str(path),
            remedy="Choose another 'output', or runtime.ledger: {etcd: …}",
        )


def _prepare(database: sqlite3.Connection, path: Path, identity: LedgerIdentity) -> None:
    database.execute("PRAGMA journal_mode = WAL")
    # The log is synced at every commit.
    database.execute("PRAGMA synchronous = FULL")
    names = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    if not names:
        database.execute("BEGIN IMMEDIATE")
        database.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        database.execute(f"PRAGMA user_version = {LEDGER_FORMAT}")
        database.execute("CREATE TABLE identity (name TEXT PRIMARY KEY, value TEXT NOT NULL)")
        database.execute(
            "CREATE TABLE records (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID"
        )
        database.executemany(
            "INSERT INTO identity VALUES (?, ?)",
            [
                ("job", identity.job),
                ("config_fingerprint", identity.config_fingerprint),
                ("rows_fingerprint", identity.rows_fingerprint),
            ],
        )
        database.execute("COMMIT")
        return
    compare_identity(_read_identity(database, path), identity, str(path))
    (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise LedgerDamagedError(f"the ledger is damaged ({verdict})", place=str(path))


def _read_identity(database: sqlite3.Connection, path: Path) -> LedgerIdentity:
    (owner,) = database.execute("PRAGMA application_id").fetchone()
    if owner != _APPLICATION_ID:
        raise LedgerError(
            "is a database, but no ledger", place=str(path), remedy="Choose another 'output'"
        )
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version != LEDGER_FORMAT:
        raise LedgerError(
            f"has format {version}, and this program knows format {LEDGER_FORMAT}",
            place=str(path),
            remedy="Go on with the version of ctrpipe that began the job, or start anew with "
            "--overwrite",
        )
    found = dict(database.execute("SELECT name, value FROM identity"))
    try:
        return LedgerIdentity(found["job"], found["config_fingerprint"], found["rows_fingerprint"])
    except KeyError as error:
        raise LedgerDamagedError(
            f"the ledger does not say its {error.args[0]}", place=str(path)
        ) from error


def _read_records(database: sqlite3.Connection, path: Path) -> dict[str, Json]:
    records: dict[str, Json] = {}
    for key, text in database.execute("SELECT key, value FROM records ORDER BY key"):
        try:
            records[key] = json.loads(text)
        except ValueError as error:
            raise LedgerDamagedError(
                f"record '{key}' of the ledger is damaged", place=str(path)
            ) from error
    return records


def _to_text(value: Json) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """SQLite's errors as ours."""
    try:
        yield
    except sqlite3.ProgrammingError:
        raise
    except sqlite3.DatabaseError as error:
        # The lower byte is the kind, the upper ones its detail.
        kind = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if kind in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
            raise LedgerDamagedError(f"the ledger is damaged ({error})", place=str(path)) from error
        full = kind == sqlite3.SQLITE_FULL
        raise LedgerUnavailableError(
            "the disk is full" if full else f"the ledger cannot be used ({error})",
            place=str(path),
            remedy="Free space" if full else None,
        ) from error
