"""The ledger in a real etcd, killed, restarted, stalled, and held by two masters at once."""

import http.server
import itertools
import json
import os
import random
import signal
import socket
import string
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr_pipeline.distributed.master.ledger.etcd import EtcdLedger, await_etcd, read_etcd_ledger
from ctr_pipeline.distributed.master.ledger.etcd_gateway import EtcdGateway
from ctr_pipeline.distributed.master.ledger.store import (
    LedgerDamagedError,
    LedgerError,
    LedgerHeldError,
    LedgerIdentity,
    LedgerLostError,
    LedgerUnavailableError,
)
from tests.etcd.etcd_server import EtcdServer, as_base64, call_gateway, free_port, read_keys

pytestmark = pytest.mark.slow

OURS = LedgerIdentity("job-1", "config-1", "rows-1")
_NUMBERS = itertools.count()


@pytest.fixture
def prefix() -> str:
    return f"/test-{next(_NUMBERS)}/"


def put_by_others(url: str, key: str, value: str) -> None:
    call_gateway(url, "/kv/put", {"key": as_base64(key), "value": as_base64(value)})


def drop(url: str, key: str) -> None:
    call_gateway(url, "/kv/deleterange", {"key": as_base64(key)})


def records_of(url: str, prefix: str) -> dict[str, object]:
    folder = f"{prefix}job-1/records/"
    return {key[len(folder) :]: json.loads(v) for key, v in read_keys(url, folder).items()}


def within(seconds: float, condition) -> bool:
    give_up = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up:
            return False
        time.sleep(0.01)
    return True


def commit_in_the_end(ledger: EtcdLedger, records, seconds: float = 30.0) -> int:
    """As a master does: the same commit again until it succeeds; how often it did not."""
    give_up = time.monotonic() + seconds
    failures = 0
    while True:
        try:
            ledger.commit(records, durable=True)
        except LedgerUnavailableError:
            failures += 1
            if time.monotonic() > give_up:
                raise
            time.sleep(0.05)
        else:
            return failures


# What a ledger is.


def test_a_new_ledger_holds_nothing_and_durable_records_are_in_etcd(shared_etcd, prefix):
    ledger = EtcdLedger(shared_etcd.url, prefix, OURS)
    assert ledger.load() == {}
    ledger.commit({"head": {"epoch": 1}, "task/1": {"mask": 2**64 - 1}}, durable=True)
    expected = {"head": {"epoch": 1}, "task/1": {"mask": 2**64 - 1}}
    assert records_of(shared_etcd.url, prefix) == expected
    assert ledger.load() == expected
    ledger.close()


def test_records_that_wait_go_in_before_those_that_follow(shared_etcd, prefix):
    ledger = EtcdLedger(shared_etcd.url, prefix, OURS)
    ledger.commit({"a": {"v": 1}, "b": {"v": 1}}, durable=False)
    ledger.commit({"b": None, "c": {"v": 2}}, durable=True)
    assert records_of(shared_etcd.url, prefix) == {"a": {"v": 1}, "c": {"v": 2}}
    ledger.close()


def test_records_that_need_not_be_durable_cost_no_write_of_their_own(shared_etcd, prefix):
    ledger = EtcdLedger(shared_etcd.url, prefix, OURS)
    for number in range(100):
        ledger.commit({"a": {"v": number}}, durable=False)
    assert records_of(shared_etcd.url, prefix) == {}
    ledger.commit({}, durable=True)
    assert records_of(shared_etcd.url, prefix) == {"a": {"v": 99}}
    (entry,) = call_gateway(
        shared_etcd.url, "/kv/range", {"key": as_base64(f"{prefix}job-1/records/a")}
    )["kvs"]
    assert int(entry["version"]) == 1
    ledger.close()


def test_close_writes_what_waits_frees_the_lock_and_may_be_called_twice(shared_etcd, prefix):
    ledger = EtcdLedger(shared_etcd.url, prefix, OURS)
    ledger.commit({"a": {"v": 1}}, durable=False)
    ledger.close()
    ledger.close()
    assert records_of(shared_etcd.url, prefix) == {"a": {"v": 1}}
    assert f"{prefix}job-1/lock" not in read_keys(shared_etcd.url, prefix)
    with pytest.raises(LedgerUnavailableError, match="closed"):
        ledger.commit({}, durable=True)
    second = EtcdLedger(shared_etcd.url, prefix, OURS)
    assert second.load() == {"a": {"v": 1}}
    second.close()


VALUES = st.text() | st.integers() | st.floats(allow_nan=False)


@settings(max_examples=15)
@given(
    commits=st.lists(
        st.tuples(
            st.dictionaries(
                st.text(min_size=1, max_size=8).filter(lambda text: text.isprintable()),
                st.none() | st.fixed_dictionaries({"v": VALUES}),
                max_size=5,
            ),
            st.booleans(),
        ),
        max_size=6,
    )
)
def test_any_series_of_commits_reads_as_a_dictionary(shared_etcd, commits):
    prefix = f"/any-{next(_NUMBERS)}/"
    expected = {}
    ledger = EtcdLedger(shared_etcd.url, prefix, OURS)
    for records, durable in commits:
        ledger.commit(records, durable=durable)
        for key, value in records.items():
            if value is None:
                expected.pop(key, None)
            else:
                expected[key] = value
    assert ledger.load() == expected
    ledger.close()
    assert records_of(shared_etcd.url, prefix) == expected


def test_bytes_of_every_kind_survive_as_text(shared_etcd, prefix):
    value = {
        "v": bytes(range(256)).decode("latin-1"),
        "ключ": "\0\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"),
    }
    ledger = EtcdLedger(shared_etcd.url, prefix, OURS)
    ledger.commit({"task/ü": value}, durable=True)
    assert ledger.load() == {"task/ü": value}
    ledger.close()
    assert read_etcd_ledger(shared_etcd.url, prefix, "job-1") == (OURS, {"task/ü": value})


def test_a_commit_beyond_a_transaction_is_whole(shared_etcd, prefix):
    records = {f"task/{n}": {"mask": n} for n in range(5000)}
    ledger = EtcdLedger(shared_etcd.url, prefix, OURS)
    ledger.commit(records, durable=True)
    ledger.commit({f"task/{n}": None for n in range(0, 5000, 2)}, durable=True)
    ledger.close()
    expected = {key: value for key, value in records.items() if value["mask"] % 2}
    assert records_of(shared_etcd.url, prefix) == expected
    again = EtcdLedger(shared_etcd.url, prefix, OURS)
    assert again.load() == expected
    again.close()


def test_records_beyond_what_etcd_takes_lie_in_pieces(shared_etcd, prefix):
    noise = "".join(random.Random(1).choices(string.printable, k=4_800_000))
    ledger = EtcdLedger(shared_etcd.url, prefix, OURS)
    expected = {
        "a": {"bins": [[n, 1] for n in range(200_000)]},
        "base": {"v": noise},
        "c": {"v": noise[:500_000]},
    }
    ledger.commit(expected, durable=True)
    assert ledger.load() == expected
    assert read_etcd_ledger(shared_etcd.url, prefix, "job-1")[1] == expected

    def pieces():
        return {name for name in read_keys(shared_etcd.url, prefix) if "/pieces/" in name}

    first = pieces()
    assert len(first) > 5
    # What is written again, by another master too, leaves nothing of what it was.
    expected["base"] = {"v": noise[::-1]}
    ledger.commit({"base": expected["base"]}, durable=True)
    assert pieces().isdisjoint(first)
    ledger.close()
    again = EtcdLedger(shared_etcd.url, prefix, OURS)
    assert again.load() == expected
    again.commit({"base": {"v": "small"}, "c": None}, durable=True)
    assert pieces() == set()
    assert again.load() == {"a": expected["a"], "base": {"v": "small"}}
    again.close()


# Whose it is.


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        (LedgerIdentity("job-1", "config-2", "rows-1"), "another configuration"),
        (LedgerIdentity("job-1", "config-1", "rows-2"), "other training rows"),
    ],
)
def test_the_ledger_of_another_run_is_refused_and_left_alone(shared_etcd, prefix, theirs, said):
    first = EtcdLedger(shared_etcd.url, prefix, theirs)
    first.commit({"a": {"v": 1}}, durable=True)
    first.close()
    with pytest.raises(LedgerError, match=said):
        EtcdLedger(shared_etcd.url, prefix, OURS)
    # The refused one holds no lock either.
    again = EtcdLedger(shared_etcd.url, prefix, theirs)
    assert again.load() == {"a": {"v": 1}}
    again.close()


def test_jobs_beside_each_other_do_not_meet(shared_etcd, prefix):
    ledgers = [
        EtcdLedger(shared_etcd.url, prefix, LedgerIdentity(job, "c", "r"))
        for job in ("job", "job-1", "job0")
    ]
    for number, ledger in enumerate(ledgers):
        ledger.commit({"a": {"v": number}}, durable=True)
    assert [ledger.load() for ledger in ledgers] == [{"a": {"v": n}} for n in range(3)]
    for ledger in ledgers:
        ledger.close()


def test_another_format_is_refused(shared_etcd, prefix):
    EtcdLedger(shared_etcd.url, prefix, OURS).close()
    text = json.dumps(
        {"format": 99, "job": "job-1", "config_fingerprint": "", "rows_fingerprint": ""}
    )
    put_by_others(shared_etcd.url, f"{prefix}job-1/identity", text)
    with pytest.raises(LedgerError, match="has format 99, and this program knows format 1"):
        EtcdLedger(shared_etcd.url, prefix, OURS)


@pytest.mark.parametrize(
    ("key", "value"),
    [("records/task/7", "{broken"), ("records/task/7", "[1]"), ("identity", "{}")],
)
def test_damage_is_named(shared_etcd, prefix, key, value):
    EtcdLedger(shared_etcd.url, prefix, OURS).close()
    put_by_others(shared_etcd.url, f"{prefix}job-1/{key}", value)
    with pytest.raises(LedgerDamagedError, match="task/7" if "task" in key else "whose it is"):
        EtcdLedger(shared_etcd.url, prefix, OURS).load()


def test_no_ledger_is_told(shared_etcd, prefix):
    with pytest.raises(LedgerError, match="no ledger here"):
        read_etcd_ledger(shared_etcd.url, prefix, "job-1")
    assert read_keys(shared_etcd.url, prefix) == {}


# An etcd that is not there, or is not one.


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:2379",
        "ftp://127.0.0.1",
        "http://",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:2379/v3",
        "http://user:secret@127.0.0.1:2379",
    ],
)
def test_addresses_that_are_none_are_refused(url):
    with pytest.raises(LedgerError, match="is no address of etcd"):
        EtcdLedger(url, "/x/", OURS)


def test_an_unreachable_etcd_is_told_with_its_address():
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(LedgerUnavailableError, match="etcd cannot be reached") as caught:
        EtcdLedger(url, "/x/", OURS)
    assert url in str(caught.value)
    assert "runtime.ledger.etcd" in str(caught.value)


def test_an_etcd_that_starts_late_is_waited_for(etcd_binary, tmp_path):
    server = EtcdServer(etcd_binary, tmp_path / "etcd")
    starter = threading.Timer(0.5, server.start)
    starter.start()
    try:
        ledger = EtcdLedger(server.url, "/x/", OURS, wait_seconds=30.0)
        assert ledger.load() == {}
        ledger.close()
    finally:
        starter.join()
        server.close()


class TestAwaited:
    """A start of a job, told to the person who waits."""

    def wait(self, url, *, wait_seconds, between=lambda: None):
        said, now = [], [0.0]

        def sleep(seconds):
            now[0] += seconds
            between()

        await_etcd(
            url,
            wait_seconds=wait_seconds,
            on_wait=said.append,
            call_seconds=0.3,
            clock=lambda: now[0],
            sleep=sleep,
        )
        return said

    def test_one_that_is_there_is_not_spoken_of(self, shared_etcd):
        assert self.wait(shared_etcd.url, wait_seconds=0.0) == []

    def test_one_that_comes_late_is_spoken_of_once(self, etcd_binary, tmp_path):
        server = EtcdServer(etcd_binary, tmp_path / "etcd")
        pauses = itertools.count()

        def between():
            if next(pauses) == 1:
                server.start()

        try:
            said = self.wait(server.url, wait_seconds=60.0, between=between)
        finally:
            server.close()
        assert said == [f"Waiting for etcd at {server.url}, 60 s at most: etcd cannot be reached"]

    def test_one_that_does_not_come_is_an_error_of_the_users(self):
        url = f"http://127.0.0.1:{free_port()}"
        with pytest.raises(LedgerError, match="etcd cannot be reached, for 5 s now") as caught:
            self.wait(url, wait_seconds=5.0)
        assert caught.value.place == url
        assert "runtime.ledger.etcd" in str(caught.value)
        assert caught.value.exit_code == 1

    def test_one_that_is_silent_is_spoken_of_after_the_first_call(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            with pytest.raises(LedgerError, match=r"in time, for 0\.1 s now"):
                self.wait(url, wait_seconds=0.1)


@pytest.fixture(params=[(200, b"<html>hello</html>"), (404, b"nothing"), (200, b'"etcd"')])
def stranger(request) -> Iterator[str]:
    status, content = request.param

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET

        def log_message(self, *args):
            """Silent."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_something_else_at_the_address_is_told(stranger):
    with pytest.raises(LedgerUnavailableError, match=r"not etcd|refuses") as caught:
        EtcdLedger(stranger, "/x/", OURS)
    assert stranger in str(caught.value)


def test_a_port_that_never_answers_is_told_in_time():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(LedgerUnavailableError, match="does not answer in time"):
            EtcdLedger(url, "/x/", OURS, call_seconds=0.3)
        assert time.monotonic() - began < 5


# An etcd that dies, restarts, stalls.


def test_a_restarted_etcd_is_used_again_and_nothing_is_lost(etcd):
    ledger = EtcdLedger(etcd.url, "/x/", OURS)
    ledger.commit({"a": {"v": 1}}, durable=True)
    etcd.kill()
    with pytest.raises(LedgerUnavailableError, match="cannot be reached"):
        ledger.commit({"b": {"v": 2}}, durable=True)
    ledger.commit({"c": {"v": 3}}, durable=False)
    etcd.start()
    commit_in_the_end(ledger, {"d": {"v": 4}})
    expected = {"a": {"v": 1}, "b": {"v": 2}, "c": {"v": 3}, "d": {"v": 4}}
    assert records_of(etcd.url, "/x/") == expected
    assert ledger.load() == expected
    ledger.close()


def test_a_restart_between_two_commits_is_not_even_noticed(etcd):
    ledger = EtcdLedger(etcd.url, "/x/", OURS)
    ledger.commit({"a": {"v": 1}}, durable=True)
    etcd.restart()
    ledger.commit({"a": {"v": 2}}, durable=True)
    assert records_of(etcd.url, "/x/") == {"a": {"v": 2}}
    ledger.close()


def test_restarts_in_the_middle_of_commits_lose_and_reorder_nothing(etcd):
    ledger = EtcdLedger(etcd.url, "/x/", OURS, call_seconds=1.0)
    number = 0

    def restart_often():
        dice = random.Random(7)
        for _ in range(5):
            enough = number + dice.randint(5, 50)
            if not within(30.0, lambda enough=enough: number > enough):
                return
            time.sleep(dice.uniform(0.0, 0.01))
            etcd.restart()

    chaos = threading.Thread(target=restart_often)
    chaos.start()
    while chaos.is_alive():
        number += 1
        commit_in_the_end(
            ledger, {"head": {"number": number}, f"task/{number % 50}": {"number": number}}
        )
    chaos.join()
    assert number > 5 * 5
    found = ledger.load()
    assert found["head"] == {"number": number}
    for task in range(min(number, 50)):
        last = number - (number - task) % 50
        if last > 0:
            assert found[f"task/{task}"] == {"number": last}
    ledger.close()


def test_a_short_stall_is_waited_out(etcd):
    ledger = EtcdLedger(etcd.url, "/x/", OURS, lock_seconds=10, call_seconds=1.0)
    ledger.commit({"a": {"v": 1}}, durable=True)
    etcd.stall()
    with pytest.raises(LedgerUnavailableError, match="does not answer in time"):
        ledger.commit({"a": {"v": 2}}, durable=True)
    etcd.go_on()
    commit_in_the_end(ledger, {"a": {"v": 3}})
    # Whatever of the stalled calls is carried out late comes to nothing.
    for _ in range(20):
        assert records_of(etcd.url, "/x/") == {"a": {"v": 3}}
        time.sleep(0.05)
    ledger.close()


def test_a_stall_beyond_the_lock_ends_in_a_clear_state(etcd):
    """Either etcd took a late sign of life, and work goes on, or the lock is lost for good."""
    ledger = EtcdLedger(etcd.url, "/x/", OURS, lock_seconds=2, call_seconds=0.5)
    ledger.commit({"a": {"v": 1}}, durable=True)
    etcd.stall()
    time.sleep(4.0)
    etcd.go_on()
    try:
        commit_in_the_end(ledger, {"a": {"v": 2}})
    except LedgerLostError:
        expected = [{"a": {"v": 1}}, {"a": {"v": 2}}]  # it may have been written before the loss
    else:
        expected = [{"a": {"v": 2}}]
    ledger.close()
    again = EtcdLedger(etcd.url, "/x/", OURS, wait_seconds=10.0)
    assert again.load() in expected
    again.commit({"a": {"v": 3}}, durable=True)
    again.close()
    assert records_of(etcd.url, "/x/") == {"a": {"v": 3}}


# The lock.


def test_a_master_whose_lock_is_gone_stops_writing_at_once(shared_etcd, prefix):
    ledger = EtcdLedger(shared_etcd.url, prefix, OURS)
    ledger.commit({"a": {"v": 1}}, durable=True)
    drop(shared_etcd.url, f"{prefix}job-1/lock")
    with pytest.raises(LedgerLostError, match="lost its lock"):
        ledger.commit({"a": {"v": 2}}, durable=True)
    for durable in (True, False):
        with pytest.raises(LedgerLostError):
            ledger.commit({"a": {"v": 3}}, durable=durable)
    with pytest.raises(LedgerLostError):
        ledger.load()
    ledger.close()
    assert records_of(shared_etcd.url, prefix) == {"a": {"v": 1}}


def test_a_lock_that_another_took_meanwhile_is_not_ours(shared_etcd, prefix):
    ledger = EtcdLedger(shared_etcd.url, prefix, OURS)
    drop(shared_etcd.url, f"{prefix}job-1/lock")
    other = EtcdLedger(shared_etcd.url, prefix, OURS)
    other.commit({"a": {"v": "theirs"}}, durable=True)
    with pytest.raises(LedgerLostError):
        ledger.commit({"a": {"v": "ours"}}, durable=True)
    ledger.close()
    # The loser's end takes nothing from the winner.
    other.commit({"b": {"v": "theirs"}}, durable=True)
    other.close()
    assert records_of(shared_etcd.url, prefix) == {"a": {"v": "theirs"}, "b": {"v": "theirs"}}


def is_lost(ledger):
    try:
        ledger.require_lock()
    except LedgerLostError:
        return True
    except LedgerUnavailableError:
        return False
    return False


def test_the_loss_is_noticed_without_a_commit(shared_etcd, prefix):
    ledger = EtcdLedger(shared_etcd.url, prefix, OURS, lock_seconds=2)
    (lock,) = call_gateway(shared_etcd.url, "/kv/range", {"key": as_base64(f"{prefix}job-1/lock")})[
        "kvs"
    ]
    call_gateway(shared_etcd.url, "/lease/revoke", {"ID": lock["lease"]})
    assert within(60.0, lambda: is_lost(ledger))
    with pytest.raises(LedgerLostError):
        ledger.commit({"a": {"v": 1}}, durable=False)
    ledger.close()
    assert records_of(shared_etcd.url, prefix) == {}


def test_a_master_cut_off_for_as_long_as_its_lease_holds_nothing_any_more(etcd):
    now = [100.0]
    ledger = EtcdLedger(etcd.url, "/x/", OURS, lock_seconds=5, clock=lambda: now[0])
    ledger.require_lock()
    etcd.stall()
    now[0] += 4.9
    ledger.require_lock()
    now[0] += 0.2
    with pytest.raises(LedgerUnavailableError, match="another master may be at work"):
        ledger.require_lock()
    etcd.go_on()

    def is_held():
        with suppress(LedgerUnavailableError):
            ledger.require_lock()
            return True
        return False

    # Nobody took it meanwhile: once etcd is heard again, it is ours as before.
    assert within(60.0, is_held)
    ledger.commit({"a": {"v": 1}}, durable=True)
    ledger.close()


def test_a_living_master_keeps_its_lock_however_long_it_is_idle(shared_etcd, prefix):
    ledger = EtcdLedger(shared_etcd.url, prefix, OURS, lock_seconds=2)
    time.sleep(5.0)
    ledger.commit({"a": {"v": 1}}, durable=True)
    ledger.close()


def test_a_second_master_is_refused_and_told_who_holds_it(shared_etcd, prefix):
    first = EtcdLedger(shared_etcd.url, prefix, OURS)
    with pytest.raises(LedgerHeldError, match=f"process {os.getpid()} on {socket.gethostname()}"):
        EtcdLedger(shared_etcd.url, prefix, OURS)
    first.commit({"a": {"v": 1}}, durable=True)
    first.close()


def test_a_second_master_waits_and_takes_over(shared_etcd, prefix):
    first = EtcdLedger(shared_etcd.url, prefix, OURS)
    first.commit({"a": {"v": 1}}, durable=False)
    waits = []

    def note_that_it_waits(seconds):
        waits.append(seconds)
        first.close()

    second = EtcdLedger(shared_etcd.url, prefix, OURS, wait_seconds=60, sleep=note_that_it_waits)
    assert len(waits) == 1
    assert second.load() == {"a": {"v": 1}}
    second.close()


MASTER = """
import sys
from ctr_pipeline.distributed.master.ledger.etcd import EtcdLedger
from ctr_pipeline.distributed.master.ledger.store import LedgerIdentity, LedgerLostError
url, prefix, name = sys.argv[1:]
identity = LedgerIdentity("job-1", "config-1", "rows-1")
ledger = EtcdLedger(url, prefix, identity, wait_seconds=60.0, lock_seconds=2)
number = ledger.load().get("head", {}).get("number", 0)
while True:
    number += 1
    try:
        ledger.commit({"head": {"number": number, "by": name}}, durable=True)
    except LedgerLostError:
        print("lost", flush=True)
        break
    print(number, flush=True)
"""


class Master:
    """A process that takes the lock and counts, saying each number that etcd has promised."""

    def __init__(self, url: str, prefix: str, name: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", MASTER, url, prefix, name], stdout=subprocess.PIPE, text=True
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.lines.append(line.strip())

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stdout.close()

    @property
    def promised(self) -> int:
        numbers = [int(line) for line in self.lines if line.isdigit()]
        return numbers[-1] if numbers else 0


def test_the_lock_of_a_killed_process_of_this_machine_is_free_at_once(shared_etcd, prefix):
    with Master(shared_etcd.url, prefix, "first") as first:
        assert within(60.0, lambda: first.promised > 10)
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
        # It would be refused, as it does not wait.
        second = EtcdLedger(shared_etcd.url, prefix, OURS)
    head = second.load()["head"]
    # One more may have been committed without the word of it getting out.
    assert head["number"] in {first.promised, first.promised + 1}
    second.close()


def test_ledger_is_written_by_one_of_two_masters_and_taken_over_in_seconds(shared_etcd, prefix):
    """The first is stopped, not killed: only etcd's lease can tell that it is gone."""
    with Master(shared_etcd.url, prefix, "first") as first:
        assert within(60.0, lambda: first.promised > 10)
        with Master(shared_etcd.url, prefix, "second") as second:
            time.sleep(2.0)
            assert second.lines == []
            first.process.send_signal(signal.SIGSTOP)
            began = time.monotonic()
            assert within(60.0, lambda: second.promised > 0)
            assert time.monotonic() - began < 30
            # Read only now: what the first had said lay in its pipe when it was stopped.
            before = first.promised
            # The second went on from all that was promised.
            assert int(second.lines[0]) in {before + 1, before + 2}
            count = second.promised
            assert within(60.0, lambda: second.promised > count + 5)
            first.process.send_signal(signal.SIGCONT)
            assert within(60.0, lambda: "lost" in first.lines)
            assert first.process.wait(10) == 0
            # One number is of both: promised by neither to the first, since it was refused.
            assert first.promised <= before + 1
            assert within(60.0, lambda: second.promised > count + 10)
            head = json.loads(read_keys(shared_etcd.url, prefix)[f"{prefix}job-1/records/head"])
            assert head["by"] == "second"


# A master that dies in the middle of a large commit.


def open_through(etcd, prefix):
    """A ledger, and the connection by which it writes."""
    gateways = []

    def connect(*arguments):
        gateways.append(EtcdGateway(*arguments))
        return gateways[-1]

    ledger = EtcdLedger(etcd.url, prefix, OURS, connect=connect)
    return ledger, gateways[0]


@pytest.mark.parametrize("transactions", range(1, 8))
def test_a_large_commit_that_is_cut_short_happens_wholly_or_not_at_all(
    shared_etcd, prefix, transactions
):
    before = {f"task/{n}": {"v": 0} for n in range(300)}
    after = {f"task/{n}": {"v": 1} for n in range(300)}
    ledger, gateway = open_through(shared_etcd, prefix)
    ledger.commit(before, durable=True)
    call, made = gateway.transact, []

    def die_after_some(*arguments):
        if len(made) == transactions:
            raise LedgerUnavailableError("the master dies here")
        made.append(call(*arguments))
        return made[-1]

    gateway.transact = die_after_some
    with pytest.raises(LedgerUnavailableError, match="dies here"):
        ledger.commit(after, durable=True)
    drop(shared_etcd.url, f"{prefix}job-1/lock")
    survivor = EtcdLedger(shared_etcd.url, prefix, OURS)
    # Three parts of the journal, then the word that it is complete.
    assert survivor.load() == (before if transactions < 4 else after)
    survivor.close()
    assert not [key for key in read_keys(shared_etcd.url, prefix) if "/journal/" in key]
    # Even if it lived on it could write no more.
    gateway.transact = call
    with pytest.raises(LedgerLostError):
        ledger.close()


def test_a_small_commit_after_a_large_one_that_was_interrupted_is_not_undone(shared_etcd, prefix):
    ledger, gateway = open_through(shared_etcd, prefix)
    call, made = gateway.transact, []

    def fail_once(*arguments):
        made.append(None)
        if len(made) == 6:
            raise LedgerUnavailableError("away for a moment")
        return call(*arguments)

    gateway.transact = fail_once
    with pytest.raises(LedgerUnavailableError, match="away for a moment"):
        ledger.commit({f"task/{n}": {"v": 0} for n in range(300)}, durable=True)
    ledger.commit({"task/7": {"v": 2}}, durable=True)
    ledger.commit({"task/8": {"v": 3}}, durable=True)
    expected = {f"task/{n}": {"v": 0} for n in range(300)} | {
        "task/7": {"v": 2},
        "task/8": {"v": 3},
    }
    assert ledger.load() == expected
    ledger.close()
    again = EtcdLedger(shared_etcd.url, prefix, OURS)
    assert again.load() == expected
    again.close()


def test_a_transaction_that_arrives_late_comes_to_nothing(shared_etcd, prefix):
    """What was sent once, given up for lost, and is delivered after newer ones, changes nothing."""
    ledger, gateway = open_through(shared_etcd, prefix)
    call, kept = gateway.transact, []

    def lose(*arguments):
        kept.append(arguments)
        raise LedgerUnavailableError("lost on the way")

    gateway.transact = lose
    with pytest.raises(LedgerUnavailableError):
        ledger.commit({"a": {"v": "old"}}, durable=True)
    gateway.transact = call
    ledger.commit({"a": {"v": "new"}}, durable=True)
    assert call(*kept[0]).get("succeeded") is None
    assert ledger.load() == {"a": {"v": "new"}}
    ledger.close()


def test_a_transaction_whose_answer_was_lost_is_not_refused_the_second_time(shared_etcd, prefix):
    ledger, gateway = open_through(shared_etcd, prefix)
    call = gateway.transact

    def lose_the_answer(*arguments):
        call(*arguments)
        raise LedgerUnavailableError("no answer")

    gateway.transact = lose_the_answer
    with pytest.raises(LedgerUnavailableError):
        ledger.commit({"a": {"v": 1}}, durable=True)
    gateway.transact = call
    ledger.commit({"b": {"v": 2}}, durable=True)
    assert ledger.load() == {"a": {"v": 1}, "b": {"v": 2}}
    ledger.close()
