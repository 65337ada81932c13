"""What every storage does."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ctr_pipeline.storage import ranged_reading
from ctr_pipeline.storage.protocol import (
    ObjectChangedError,
    ObjectExistsError,
    ObjectMissingError,
    ObjectTruncatedError,
)


def test_object_is_read_whole_and_in_ranges_as_it_was_written(storage):
    storage.write("a/b.bin", b"0123456789")
    assert storage.read("a/b.bin") == b"0123456789"
    assert storage.read_range("a/b.bin", 2, 3) == b"234"
    assert storage.read_range("a/b.bin", 9, 1) == b"9"
    assert storage.read_range("a/b.bin", 4, 0) == b""
    assert storage.stat("a/b.bin").num_bytes == 10


def test_an_object_may_be_empty(storage):
    storage.write("empty", b"")
    with storage.create("empty-too"):
        pass
    assert (storage.read("empty"), storage.read("empty-too")) == (b"", b"")


@pytest.mark.parametrize(("start", "num_bytes"), [(8, 3), (10, 1), (50, 4)])
def test_a_range_beyond_the_end_is_refused(storage, start, num_bytes):
    storage.write("ten", b"0123456789")
    with pytest.raises(ObjectTruncatedError, match="too early"):
        storage.read_range("ten", start, num_bytes)


def test_a_range_of_another_version_is_refused(storage):
    storage.write("one", b"0123456789")
    version = storage.stat("one").version
    assert storage.read_range("one", 2, 3, version=version) == b"234"
    storage.write("one", b"abcdefghij")
    with pytest.raises(ObjectChangedError, match=r"one: was written again .*Let nothing else"):
        storage.read_range("one", 2, 3, version=version)
    with pytest.raises(ObjectMissingError):
        storage.read_range("none", 2, 3, version=version)


@pytest.mark.parametrize(
    ("after", "error"),
    [(b"x" * 100, ObjectChangedError), (b"short", ObjectChangedError), (None, ObjectMissingError)],
)
def test_an_object_that_changes_between_its_ranges_is_refused(storage, monkeypatch, after, error):
    monkeypatch.setattr(ranged_reading, "READ_AHEAD_BYTES", 16)
    monkeypatch.setattr(ranged_reading, "JUMP_BYTES", 8)
    monkeypatch.setattr(ranged_reading, "BUFFER_BYTES", 4)
    storage.write("one", bytes(range(100)))
    with ranged_reading.open_ranges(storage, "one") as file:
        assert file.read(10) == bytes(range(10))
        if after is None:
            storage.delete(["one"])
        else:
            storage.write("one", after)
        with pytest.raises(error, match="one: "):
            file.read()


@pytest.fixture
def asked(storage, monkeypatch):
    """The ranges that are asked for."""
    ranges = []
    read_range = storage.read_range

    def record(key, start, num_bytes, **options):
        ranges.append((start, num_bytes))
        return read_range(key, start, num_bytes, **options)

    monkeypatch.setattr(storage, "read_range", record)
    return ranges


def test_the_rest_of_an_object_is_one_request(storage, asked, monkeypatch):
    monkeypatch.setattr(ranged_reading, "READ_AHEAD_BYTES", 1000)
    content = bytes(range(256)) * 256
    storage.write("one", content)
    with ranged_reading.open_ranges(storage, "one") as file:
        file.seek(6)
        assert file.read() == content[6:]
    assert asked == [(6, 65_530)]


def test_a_long_read_is_made_of_ranges_that_bound_what_is_kept(storage, asked, monkeypatch):
    monkeypatch.setattr(ranged_reading, "READ_AHEAD_BYTES", 1000)
    monkeypatch.setattr(ranged_reading, "JUMP_BYTES", 100)
    monkeypatch.setattr(ranged_reading, "BUFFER_BYTES", 64)
    content = bytes(range(256)) * 256
    storage.write("one", content)
    with ranged_reading.open_ranges(storage, "one") as file:
        assert file.read(50_000) == content[:50_000]
    assert max(num_bytes for _, num_bytes in asked) <= 1000


def test_a_small_object_is_one_request_however_it_is_read(storage, asked):
    content = bytes(range(256)) * 256
    storage.write("one", content)
    with ranged_reading.open_ranges(storage, "one") as file:
        for start in (65_526, 0, 30_000):
            assert file.seek(0, os.SEEK_END) == len(content)
            file.seek(start)
            assert file.read(10) == content[start : start + 10]
        file.seek(5)
        assert file.read() == content[5:]
    assert asked == [(0, 65_536)]


def test_object_is_reported_missing_when_it_is_not_there(storage):
    for call in (
        lambda: storage.read("no/such"),
        lambda: storage.read_range("no/such", 0, 1),
        lambda: storage.stat("no/such"),
        lambda: storage.open("no/such"),
    ):
        with pytest.raises(ObjectMissingError, match="no/such: is not there"):
            call()
    assert list(storage.list("no")) == []


def test_an_object_is_replaced_as_a_whole_and_has_another_version(storage):
    storage.write("one", b"before, longer")
    before = storage.stat("one").version
    storage.write("one", b"after")
    assert storage.read("one") == b"after"
    assert storage.stat("one").version != before


def test_blocks_become_one_object(storage):
    blocks = [bytes([number]) * (3 << 20) for number in range(7)]
    with storage.create("large") as file:
        for block in blocks:
            assert file.write(memoryview(block)) == len(block)
    assert storage.read("large") == b"".join(blocks)
    assert storage.read_range("large", (9 << 20) - 1, 2) == b"\x02\x03"


@pytest.mark.parametrize("num_bytes", [0, 9 << 20])
def test_object_is_not_put_where_the_block_fails(storage, num_bytes):
    def fail():
        with storage.create("partial") as file:
            file.write(bytes(num_bytes))
            raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        fail()
    with pytest.raises(ObjectMissingError):
        storage.read("partial")
    storage.write("x", b"")
    assert storage.list("partial") == []


def test_an_open_object_is_read_from_any_place_to_its_end(storage):
    content = bytes(range(256)) * (5 << 12)
    storage.write("seekable", content)
    with storage.open("seekable") as file:
        assert file.name.endswith("/seekable")
        assert file.read(5) == content[:5]
        assert file.seek(3 << 20) == 3 << 20
        assert file.read(1 << 20) == content[3 << 20 : 4 << 20]
        assert file.tell() == 4 << 20
        file.seek(-3, os.SEEK_END)
        assert (file.read(5), file.read(5)) == (content[-3:], b"")
        file.seek(1, os.SEEK_CUR)
        assert file.read(1) == b""
        file.seek(0)
        assert file.read() == content


def test_a_list_holds_all_below_a_folder_in_order_and_nothing_beside_it(storage):
    keys = ["cut/2", "cut/10/b", "cut/1", "cuts/1", "cut2", "other/cut/1"]
    for key in keys:
        storage.write(key, key.encode())
    assert [one.key for one in storage.list("cut")] == ["cut/1", "cut/10/b", "cut/2"]
    assert [one.num_bytes for one in storage.list("cut")] == [5, 8, 5]
    assert [one.key for one in storage.list("")] == sorted(keys)
    listed = storage.list("cut")[0]
    assert listed == storage.stat(listed.key)


def test_a_list_of_more_than_a_page_is_complete(storage):
    keys = [f"many/{number:05d}" for number in range(1100)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: storage.write(key, b"x"), keys))
    assert [one.key for one in storage.list("many")] == keys
    storage.delete(keys)
    assert storage.list("many") == []


def test_object_is_gone_once_deleted_and_may_be_deleted_again(storage):
    for key in ("a/1", "a/2", "a/3"):
        storage.write(key, b"x")
    storage.delete(["a/1", "a/none", "a/3"])
    storage.delete(["a/1"])
    storage.delete([])
    assert [one.key for one in storage.list("a")] == ["a/2"]


def test_put_if_absent_fails_when_the_object_is_there(storage):
    storage.put_if_absent("once", b"first")
    for data in (b"second", b"first"):
        with pytest.raises(ObjectExistsError, match="once: is there already"):
            storage.put_if_absent("once", data)
    assert storage.read("once") == b"first"
    storage.delete(["once"])
    storage.put_if_absent("once", b"third")
    assert storage.read("once") == b"third"


def test_put_if_absent_succeeds_for_one_of_16_writers_at_once(storage):
    for race in range(2):
        start = threading.Barrier(16)

        def put(writer, race=race, start=start):
            start.wait()
            try:
                storage.put_if_absent(f"race/{race}", f"{writer:02d}".encode() * 500)
            except ObjectExistsError:
                return None
            return writer

        with ThreadPoolExecutor(16) as pool:
            winners = [one for one in pool.map(put, range(16)) if one is not None]
        assert len(winners) == 1
        assert storage.read(f"race/{race}") == f"{winners[0]:02d}".encode() * 500


def test_readers_see_one_version_or_the_other(storage):
    size = 200_000
    storage.write("swapped", b"a" * size)
    done = threading.Event()

    def swap():
        for number in range(20):
            storage.write("swapped", b"ab"[number % 2 :][:1] * size)
        done.set()

    with ThreadPoolExecutor(1) as pool:
        swapping = pool.submit(swap)
        while not done.is_set() and not swapping.done():
            data = storage.read("swapped")
            assert (len(data), len(set(data))) == (size, 1)
        swapping.result()


@pytest.mark.parametrize(
    "key", ["/a", "a/", "a//b", "..", "a/../b", ".a", "a/.b", "a b", "a\n", "ä", "a\\b", "a*"]
)
def test_a_key_is_plain(storage, key):
    for call in (storage.read, storage.stat, storage.list, lambda key: storage.delete([key])):
        with pytest.raises(ValueError, match="is no key"):
            call(key)
    with pytest.raises(ValueError, match="is no key"):
        storage.write(key, b"")
    with pytest.raises(ValueError, match="is no key"):
        storage.put_if_absent(key, b"")


def test_an_empty_key_is_none_of_an_object(storage):
    for call in (storage.read, storage.stat, lambda key: storage.write(key, b"")):
        with pytest.raises(ValueError, match="is no key"):
            call("")
