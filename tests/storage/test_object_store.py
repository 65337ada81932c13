"""An object store in trouble: nothing is lost, nothing is half visible, and errors say what is."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ctr_pipeline.config.models import DataConfig
from ctr_pipeline.dataset.inspection import inspect_source
from ctr_pipeline.dataset.object_files import find_objects
from ctr_pipeline.errors import StorageError
from ctr_pipeline.storage.object_store import ObjectStore, Patience
from ctr_pipeline.storage.protocol import (
    ObjectExistsError,
    ObjectMissingError,
    StorageAwayError,
    StorageDeniedError,
)
from tests.storage.http_faults import Fault
from tests.storage.store_servers import SERVERS

pytestmark = pytest.mark.slow


class Clock:
    """Time that passes only where somebody sleeps."""

    def __init__(self):
        self.seconds = 0.0
        self.on_sleep = lambda: None

    def now(self):
        return self.seconds

    def sleep(self, seconds):
        self.seconds += seconds
        self.on_sleep()


def put_blocks(store):
    with store.create("a") as file:
        file.write(b"x")


@pytest.fixture(params=SERVERS)
def opened(request, open_store):
    return open_store(request.param)


@pytest.mark.parametrize("status", [500, 503, 409])
def test_a_write_is_repeated_until_the_store_does_it(opened, status):
    server, store = opened
    server.faults.trouble(Fault("PUT", times=3, status=status))
    store.write("a", b"x" * 1000)
    assert store.read("a") == b"x" * 1000
    assert sum(one.startswith("PUT") for one in server.faults.requests) == 4


@pytest.mark.parametrize("status", [500, 503])
def test_requests_are_repeated_when_they_only_ask(opened, status):
    server, store = opened
    store.write("f/a", b"hello")
    for method, call, answer in (
        ("GET", lambda: store.read("f/a"), b"hello"),
        ("GET", lambda: store.read_range("f/a", 1, 2), b"el"),
        ("GET", lambda: [one.key for one in store.list("f")], ["f/a"]),
        ("HEAD", lambda: store.stat("f/a").num_bytes, 5),
    ):
        server.faults.trouble(Fault(method, times=2, status=status))
        assert call() == answer
        assert len(server.faults.requests) == 3
    server.faults.trouble(*(Fault(one, 2, status) for one in ("POST", "DELETE")))
    store.delete(["f/a"])
    assert store.list("f") == []


def test_a_body_that_is_cut_off_is_read_again(opened):
    server, store = opened
    data = bytes(range(256)) * 4096
    store.write("body", data)
    server.faults.trouble(Fault("GET", times=2, cuts_body=True))
    assert store.read("body") == data
    server.faults.trouble(Fault("GET", times=2, cuts_body=True))
    assert store.read_range("body", 100, 500_000) == data[100:500_100]
    assert len(server.faults.requests) == 3


@pytest.mark.parametrize("fault", [{"status": 503}, {"status": 500}, {"loses_answer": True}])
def test_parts_of_a_stream_are_repeated_and_arrive_once(opened, fault):
    server, store = opened
    parts = [bytes([number]) * (4 << 20) for number in range(6)]
    server.faults.trouble(Fault("PUT", times=3, **fault))
    with store.create("stream") as file:
        file.writelines(parts)
    assert store.read("stream") == b"".join(parts)


def test_a_conditional_write_whose_answer_is_lost_has_succeeded(opened):
    server, store = opened
    server.faults.trouble(Fault("PUT", loses_answer=True))
    store.put_if_absent("once", b"writer 1")
    assert store.read("once") == b"writer 1"
    assert any("PUT" in one for one in server.faults.requests)


def test_a_conditional_write_that_is_repeated_does_not_take_anothers_place(opened):
    server, store = opened
    store.put_if_absent("once", b"writer 2")
    server.faults.trouble(Fault("PUT", times=2, status=500))
    with pytest.raises(ObjectExistsError):
        store.put_if_absent("once", b"writer 1")
    assert store.read("once") == b"writer 2"


@pytest.mark.parametrize("status", [409, 412])
def test_a_refusal_with_nothing_there_is_asked_again(opened, status):
    # 409: of writers at the same moment, S3 may refuse all.
    server, store = opened
    server.faults.trouble(Fault("PUT", times=2, status=status))
    store.put_if_absent("once", b"writer 1")
    assert store.read("once") == b"writer 1"


def test_an_answer_is_not_asked_for_again(opened):
    server, store = opened
    store.put_if_absent("once", b"writer 2")
    server.faults.trouble()
    with pytest.raises(ObjectExistsError):
        store.put_if_absent("once", b"writer 1")
    assert [one.split()[0] for one in server.faults.requests] == ["PUT", "GET"]
    server.faults.trouble()
    with pytest.raises(ObjectMissingError):
        store.read("none")
    assert len(server.faults.requests) == 1


def test_put_succeeds_for_one_of_16_writers_while_answers_are_lost_and_refused(opened):
    server, store = opened
    server.faults.trouble(
        Fault("PUT", 3, status=503), Fault("PUT", 3, status=409), Fault("PUT", 3, loses_answer=True)
    )
    start = threading.Barrier(16)

    def put(writer):
        start.wait()
        try:
            store.put_if_absent("race", b"writer %d" % writer)
        except ObjectExistsError:
            return None
        return writer

    with ThreadPoolExecutor(16) as pool:
        winners = [one for one in pool.map(put, range(16)) if one is not None]
    assert [b"writer %d" % one for one in winners] == [store.read("race")]


def test_a_store_50_milliseconds_away_does_the_same(opened):
    server, store = opened
    server.network.slow(delay_seconds=0.05)
    store.put_if_absent("far", b"data")
    assert store.read_range("far", 1, 2) == b"at"
    assert [one.key for one in store.list("far-folder")] == []
    with pytest.raises(ObjectExistsError):
        store.put_if_absent("far", b"other")


def test_a_store_that_is_away_for_a_minute_is_waited_for(opened):
    server, store = opened
    clock = Clock()
    patient = ObjectStore(store.address, patience=Patience(now=clock.now, sleep=clock.sleep))
    server.network.cut()
    clock.on_sleep = lambda: clock.seconds >= 60 and server.network.heal()
    patient.write("a", b"kept")
    assert clock.seconds >= 60
    assert store.read("a") == b"kept"


def test_a_store_that_stays_away_is_told_after_two_minutes(opened):
    server, store = opened
    clock = Clock()
    patient = ObjectStore(store.address, patience=Patience(now=clock.now, sleep=clock.sleep))
    server.network.cut()
    for call in (
        lambda: patient.read("a"),
        lambda: patient.put_if_absent("a", b"x"),
        lambda: patient.list("a"),
    ):
        began = clock.seconds
        with pytest.raises(StorageAwayError, match=r"s3://.*/a: the store does not answer"):
            call()
        assert 100 < clock.seconds - began <= 120
    server.network.heal()
    with pytest.raises(ObjectMissingError):
        store.read("a")


def test_a_stream_to_a_store_that_stays_away_leaves_nothing(opened):
    server, store = opened
    impatient = ObjectStore(store.address, patience=Patience(0.01, 0.05, 0.3))
    server.faults.trouble(Fault("PUT", times=1_000_000, status=503))
    with (
        pytest.raises(StorageAwayError, match="does not answer"),
        impatient.create("partial") as file,
    ):
        file.writelines(bytes(9 << 20) for _ in range(2))
    server.faults.trouble()
    assert store.list("partial") == []
    with pytest.raises(ObjectMissingError):
        store.read("partial")


def test_a_refused_signature_is_told_at_once(opened):
    server, store = opened
    server.faults.trouble(Fault("GET", status=403))
    with pytest.raises(StorageDeniedError, match=r"the store refuses it .*Check the credentials"):
        store.read("a")
    assert len(server.faults.requests) == 1


def test_wrong_credentials_are_told(open_store, monkeypatch):
    _, store = open_store("seaweedfs")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    with pytest.raises(StorageDeniedError, match="refuses it"):
        ObjectStore(store.address).write("a", b"")


def test_a_bucket_that_is_not_there_is_no_missing_object(open_store):
    open_store("moto")
    store = ObjectStore("s3://no-such-bucket/prefix")
    for call in (
        lambda: store.read("a"),
        lambda: store.write("a", b""),
        lambda: store.put_if_absent("a", b""),
        lambda: store.list("a"),
        lambda: store.stat("a"),
        lambda: store.delete(["a"]),
        lambda: store.open("a"),
        lambda: put_blocks(store),
    ):
        with pytest.raises(StorageError, match="the bucket is not there"):
            call()


def test_an_endpoint_without_tls_must_be_allowed(open_store, monkeypatch):
    _, store = open_store("moto")
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    with pytest.raises(StorageError, match="Set AWS_ALLOW_HTTP=true"):
        ObjectStore(store.address).read("a")


@pytest.mark.parametrize("name", SERVERS)
def test_rows_are_found_and_read_whatever_their_names(open_store, name):
    _, store = open_store(name)
    others = ObjectStore(store.address, any_key=True)
    rows = b"label,x\n0,1\n1,2\n"
    for key in ("a b/ä+1.csv", "a b/x=2.csv", "a b/_hidden.csv", "c/1.csv"):
        others.write(key, rows)
    found = find_objects(f"{store.address}/a b/*.csv", "data.train")
    assert [file.name for file in found] == ["x=2.csv", "ä+1.csv"]
    assert find_objects(f"{store.address}/a*/*", "data.train") == found
    for file in found:
        with file.open() as stream:
            assert stream.read() == rows
        assert file.state() == find_objects(file.address, "data.train")[0].state()
    before = found[0].state()
    others.write("a b/x=2.csv", rows.replace(b"2", b"3"))
    assert found[0].state() != before
    query = f"SELECT * FROM '{store.address}/a*/x=2.csv' ORDER BY label"
    assert inspect_source(DataConfig(query=query)).head.column("x").to_pylist() == [1, 3]
