import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.distributed.master.ledger import sqlite
from ctr_pipeline.distributed.master.ledger.sqlite import SqliteLedger, read_ledger
from ctr_pipeline.distributed.master.ledger.store import (
    LedgerDamagedError,
    LedgerError,
    LedgerHeldError,
    LedgerIdentity,
    LedgerUnavailableError,
)

OURS = LedgerIdentity("job-1", "config-1", "rows-1")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def opened(path):
    """A ledger, and its connection to the database."""
    connections = []

    def connect(*arguments, **options):
        connections.append(sqlite3.connect(*arguments, **options))
        return connections[-1]

    ledger = SqliteLedger(path, OURS, connect=connect)
    yield ledger, connections[-1]
    ledger.close()


def stored(path):
    """What the file holds, read by another program."""
    database = sqlite3.connect(path)
    try:
        return {key: json.loads(value) for key, value in database.execute("SELECT * FROM records")}
    finally:
        database.close()


def test_a_new_ledger_holds_nothing(path):
    ledger = SqliteLedger(path, OURS)
    assert ledger.load() == {}
    ledger.close()


def test_durable_records_are_in_the_file_when_commit_returns(path):
    ledger = SqliteLedger(path, OURS)
    ledger.commit({"head": {"epoch": 1}, "task/1": {"mask": 2**64 - 1}}, durable=True)
    assert stored(path) == {"head": {"epoch": 1}, "task/1": {"mask": 2**64 - 1}}
    ledger.close()


def test_records_that_wait_go_in_before_those_that_follow(path):
    ledger = SqliteLedger(path, OURS)
    ledger.commit({"a": {"v": 1}, "b": {"v": 1}}, durable=False)
    ledger.commit({"b": None, "c": {"v": 2}}, durable=True)
    assert stored(path) == {"a": {"v": 1}, "c": {"v": 2}}
    ledger.close()


def test_records_that_need_not_be_durable_cost_no_write_of_their_own(path, opened):
    ledger, connection = opened
    seen = []
    connection.set_trace_callback(seen.append)
    for number in range(100):
        ledger.commit({"a": {"v": number}}, durable=False)
    assert not seen
    ledger.commit({}, durable=True)
    assert stored(path) == {"a": {"v": 99}}
    assert seen.count("COMMIT") == 1


def test_close_writes_what_waits_and_may_be_called_twice(path):
    ledger = SqliteLedger(path, OURS)
    ledger.commit({"a": {"v": 1}}, durable=False)
    ledger.close()
    ledger.close()
    assert stored(path) == {"a": {"v": 1}}
    with pytest.raises(LedgerUnavailableError, match="closed"):
        ledger.commit({}, durable=True)


def test_another_master_reads_what_was_committed(path):
    first = SqliteLedger(path, OURS)
    first.commit({"a": {"v": [1, 2.5, "x", None]}}, durable=True)
    first.close()
    second = SqliteLedger(path, OURS)
    assert second.load() == {"a": {"v": [1, 2.5, "x", None]}}
    second.close()


@given(
    commits=st.lists(
        st.tuples(
            st.dictionaries(
                st.sampled_from("abcde"), st.none() | st.fixed_dictionaries({"v": st.integers()})
            ),
            st.booleans(),
        )
    )
)
def test_any_series_of_commits_reads_as_a_dictionary(tmp_path_factory, commits):
    path = tmp_path_factory.mktemp("ledger") / "ledger.sqlite"
    expected = {}
    ledger = SqliteLedger(path, OURS)
    for records, durable in commits:
        ledger.commit(records, durable=durable)
        for key, value in records.items():
            if value is None:
                expected.pop(key, None)
            else:
                expected[key] = value
    assert ledger.load() == expected
    ledger.close()
    assert stored(path) == expected


def test_a_second_master_is_refused_and_told_which_process_holds_it(path):
    first = SqliteLedger(path, OURS)
    with pytest.raises(LedgerHeldError, match=f"process {os.getpid()}"):
        SqliteLedger(path, OURS)
    first.close()
    SqliteLedger(path, OURS).close()


def test_a_second_master_waits_and_takes_over(path):
    first = SqliteLedger(path, OURS)
    first.commit({"a": {"v": 1}}, durable=False)
    waited = threading.Event()

    def note_that_it_waits(_):
        if not waited.is_set():
            waited.set()
            first.close()

    second = SqliteLedger(path, OURS, wait_seconds=60.0, sleep=note_that_it_waits)
    assert waited.is_set()
    assert second.load() == {"a": {"v": 1}}
    second.close()


def test_waiting_ends(path):
    first = SqliteLedger(path, OURS)
    now = [0.0]

    def sleep(seconds):
        now[0] += seconds

    with pytest.raises(LedgerHeldError):
        SqliteLedger(path, OURS, wait_seconds=3.0, clock=lambda: now[0], sleep=sleep)
    assert now[0] == pytest.approx(3.0, abs=0.2)
    first.close()


def test_a_killed_master_leaves_its_durable_records_and_no_lock(path):
    program = f"""
import sys
from pathlib import Path
from ctr_pipeline.distributed.master.ledger.sqlite import SqliteLedger
from ctr_pipeline.distributed.master.ledger.store import LedgerIdentity
ledger = SqliteLedger(Path({str(path)!r}), LedgerIdentity("job-1", "config-1", "rows-1"))
number = 0
while True:
    number += 1
    ledger.commit({{"head": {{"number": number}}}}, durable=True)
    print(number, flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        promised = 0
        for _ in range(50):
            promised = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        promised = max([promised, *map(int, process.stdout.read().split(b"\n")[:-1])])
    identity, records = read_ledger(path)
    assert identity == OURS
    # One more may have been committed without the word of it getting out.
    assert records["head"]["number"] in {promised, promised + 1}
    ledger = SqliteLedger(path, OURS)
    assert ledger.load() == records
    ledger.close()


def test_anyone_may_read_while_the_master_writes(path):
    ledger = SqliteLedger(path, OURS)
    ledger.commit({"a": {"v": 1}}, durable=True)
    identity, records = read_ledger(path)
    ledger.commit({"a": {"v": 2}}, durable=True)
    assert (identity, records) == (OURS, {"a": {"v": 1}})
    assert read_ledger(path)[1] == {"a": {"v": 2}}
    ledger.close()


def test_no_ledger_is_told(path):
    with pytest.raises(LedgerError, match="no ledger here"):
        read_ledger(path)
    assert not path.exists()


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        (LedgerIdentity("job-2", "config-1", "rows-1"), "ledger of job 'job-2', not of 'job-1'"),
        (LedgerIdentity("job-1", "config-2", "rows-1"), "another configuration"),
        (LedgerIdentity("job-1", "config-1", "rows-2"), "other training rows"),
    ],
)
def test_the_ledger_of_another_run_is_refused_and_left_alone(path, theirs, said):
    first = SqliteLedger(path, theirs)
    first.commit({"a": {"v": 1}}, durable=True)
    first.close()
    with pytest.raises(LedgerError, match=said):
        SqliteLedger(path, OURS)
    # The refused one holds no lock either.
    again = SqliteLedger(path, theirs)
    assert again.load() == {"a": {"v": 1}}
    again.close()


def test_another_format_is_refused(path):
    SqliteLedger(path, OURS).close()
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(LedgerError, match="has format 99, and this program knows format 1"):
        SqliteLedger(path, OURS)


def test_a_foreign_database_is_refused(path):
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE songs (title TEXT)")
    database.close()
    with pytest.raises(LedgerError, match="no ledger"):
        SqliteLedger(path, OURS)


def test_a_file_that_is_no_database_is_damaged(path):
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(LedgerDamagedError):
        SqliteLedger(path, OURS)
    with pytest.raises(LedgerDamagedError):
        read_ledger(path)


def test_flipped_bytes_in_its_pages_are_found(path):
    ledger = SqliteLedger(path, OURS)
    ledger.commit({f"task/{n}": {"v": "x" * 200} for n in range(200)}, durable=True)
    ledger.close()
    content = bytearray(path.read_bytes())
    for place in range(8192, len(content), 512):
        content[place : place + 64] = b"\xff" * 64
    path.write_bytes(content)
    with pytest.raises(LedgerDamagedError):
        SqliteLedger(path, OURS).load()


def test_a_record_that_is_no_json_is_damaged_and_named(path):
    SqliteLedger(path, OURS).close()
    database = sqlite3.connect(path)
    database.execute("INSERT INTO records VALUES ('task/7', '{broken')")
    database.commit()
    database.close()
    ledger = SqliteLedger(path, OURS)
    with pytest.raises(LedgerDamagedError, match="'task/7'"):
        ledger.load()
    ledger.close()


def test_a_full_disk_is_said_and_nothing_is_lost_when_there_is_room_again(path, opened):
    ledger, connection = opened
    ledger.commit({"a": {"v": 1}}, durable=True)
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(LedgerUnavailableError, match="disk is full"):
        ledger.commit({"b": {"v": "x" * 100_000}}, durable=True)
    assert stored(path) == {"a": {"v": 1}}
    connection.execute("PRAGMA max_page_count = 1000000")
    ledger.commit({"c": {"v": 3}}, durable=True)
    assert stored(path) == {"a": {"v": 1}, "b": {"v": "x" * 100_000}, "c": {"v": 3}}


def test_a_network_disk_is_refused(path, monkeypatch):
    class Disk:
        mountpoint = str(path.parent)
        fstype = "nfs4"

    monkeypatch.setattr(sqlite.psutil, "disk_partitions", lambda all: [Disk()])
    with pytest.raises(LedgerError, match="needs a local disk, and this one is nfs4"):
        SqliteLedger(path, OURS)
    assert not path.exists()


def test_ledger_is_readable_by_its_owner_only(path):
    SqliteLedger(path, OURS).close()
    assert path.stat().st_mode & 0o077 == 0


def test_commits_are_synced(opened):
    _, connection = opened
    full = 2
    assert connection.execute("PRAGMA synchronous").fetchone() == (full,)
