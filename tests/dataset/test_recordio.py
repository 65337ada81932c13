import gzip
import io
import json
import struct
import zlib
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.dataset.formats.recordio import chunks as recordio
from ctr_pipeline.dataset.formats.recordio.chunks import (
    Compressor,
    RecordIOReader,
    RecordIOWriter,
    Records,
)
from ctr_pipeline.dataset.formats.recordio.compression import compress_snappy
from ctr_pipeline.errors import DataError

FILES = Path(__file__).parent / "recordio_files"
GOLDEN = [bytes.fromhex(text) for text in json.loads((FILES / "records_hex.json").read_text())]
NAMES = [f"{compressor}_{size}" for compressor in ("none", "snappy", "gzip") for size in (0, 1024)]
NAMES = [name.replace("_", "_chunk") for name in NAMES]


def read_all(path):
    with RecordIOReader(path) as reader:
        return [bytes(record) for records, _ in reader.chunks() for record in records]


def written(records, **options):
    file = io.BytesIO()
    with RecordIOWriter(file, **options) as writer:
        for record in records:
            writer.write(record)
    return file.getvalue()


def saved(folder, data):
    path = folder / "rows.recordio"
    path.write_bytes(data)
    return path


def as_records(records):
    ends = np.cumsum([len(record) for record in records], dtype=np.int64)
    starts = ends - np.array([len(record) for record in records], np.int64)
    return Records(np.frombuffer(b"".join(records), np.uint8), starts, ends)


def chunk(payload, num_records, *, compressor=0, magic=recordio.MAGIC, crc=None, num_bytes=None):
    crc = zlib.crc32(payload) if crc is None else crc
    num_bytes = len(payload) if num_bytes is None else num_bytes
    return struct.pack("<5I", magic, crc, compressor, num_bytes, num_records) + payload


@pytest.mark.parametrize("name", NAMES)
def test_files_of_the_go_library_are_read(name):
    assert read_all(FILES / f"{name}.recordio") == GOLDEN


@pytest.mark.parametrize(("name", "chunk_bytes"), [("chunk0", 4 << 20), ("chunk1024", 1024)])
def test_plain_files_are_those_of_the_go_library_byte_for_byte(name, chunk_bytes):
    expected = (FILES / f"none_{name}.recordio").read_bytes()
    assert written(GOLDEN, chunk_bytes=chunk_bytes) == expected
    file = io.BytesIO()
    with RecordIOWriter(file, chunk_bytes=chunk_bytes) as writer:
        writer.write_all(as_records(GOLDEN[:50]))
        writer.write_all(as_records(GOLDEN[50:]))
    assert file.getvalue() == expected


@pytest.mark.parametrize("name", NAMES)
def test_a_range_is_a_slice(name):
    with RecordIOReader(FILES / f"{name}.recordio") as reader:
        assert reader.num_records == len(GOLDEN)
        assert reader.num_chunks == (1 if name.endswith("chunk0") else 8)
        for start in range(0, 212, 9):
            for stop in (None, *range(0, 230, 13)):
                parts = [bytes(record) for part in reader.read(start, stop) for record in part]
                assert parts == GOLDEN[start:stop], (start, stop)
        with pytest.raises(ValueError, match="range"):
            list(reader.read(-1))


records_of_any_kind = st.lists(
    st.one_of(st.binary(max_size=40), st.binary(max_size=3).map(lambda part: part * 900)),
    max_size=30,
)


@given(
    records=records_of_any_kind,
    compressor=st.sampled_from(Compressor),
    chunk_bytes=st.sampled_from([1, 7, 64, 1000, 1 << 20]),
    cuts=st.lists(st.integers(0, 30), max_size=3),
)
def test_recordio_reader_returns_what_was_written(
    tmp_path_factory, records, compressor, chunk_bytes, cuts
):
    options = {"compressor": compressor, "chunk_bytes": chunk_bytes}
    data = written(records, **options)
    file = io.BytesIO()
    bounds = [0, *sorted(cuts), len(records)]
    with RecordIOWriter(file, **options) as writer:
        for start, stop in pairwise(bounds):
            writer.write_all(as_records(records[start:stop]))
    path = saved(tmp_path_factory.mktemp("written"), data)
    assert read_all(path) == records
    assert file.getvalue() == data
    with RecordIOReader(path) as reader:
        some = [bytes(record) for part in reader.read(3, 17) for record in part]
        assert some == records[3:17]


@given(st.binary(max_size=200_000) | st.binary(max_size=9).map(lambda part: part * 30_000))
def test_a_snappy_stream_of_many_frames(tmp_path_factory, record):
    path = saved(
        tmp_path_factory.mktemp("snappy"), written([record, b""], compressor=Compressor.SNAPPY)
    )
    assert read_all(path) == [record, b""]


def test_the_checksum_of_snappy_is_the_one_of_its_description():
    # RFC 3720, appendix B.4: the CRC-32C of 32 zero bytes is 0x8A9136AA.
    stream = compress_snappy(bytes(32))
    rotated = ((0x8A9136AA >> 15) | (0x8A9136AA << 17)) & 0xFFFFFFFF
    assert stream[14:18] == struct.pack("<I", (rotated + 0xA282EAD8) & 0xFFFFFFFF)


def _rows(count):
    return [f"{i % 2}\t{i}\tcity{i % 7}".encode() for i in range(count)]


@pytest.mark.parametrize("compressor", Compressor)
def test_no_changed_byte_is_overlooked(tmp_path, compressor):
    records = [b"", *_rows(12)]
    data = written(records, compressor=compressor, chunk_bytes=100)
    for place in range(len(data)):
        for change in (1, 0x80, 0xFF):
            spoiled = bytearray(data)
            spoiled[place] ^= change
            with pytest.raises(DataError) as caught:
                read_all(saved(tmp_path, spoiled))
            assert ", chunk " in caught.value.place
            assert " at byte " in caught.value.place
            assert caught.value.remedy


@pytest.mark.parametrize("compressor", Compressor)
def test_no_cut_but_between_chunks_is_overlooked(tmp_path, compressor):
    records = _rows(12)
    data = written(records, compressor=compressor, chunk_bytes=100)
    whole = [i for i in range(1, len(data)) if data[i : i + 4] == recordio.MAGIC_BYTES]
    assert len(whole) == 1
    for size in range(1, len(data)):
        path = saved(tmp_path, data[:size])
        if size in whole:
            found = read_all(path)
            assert found == records[: len(found)]
            continue
        with pytest.raises(DataError, match="truncated"):
            read_all(path)
        with RecordIOReader(path) as reader, pytest.raises(DataError, match="truncated"):
            list(reader.read(0, 1))


PAYLOAD = struct.pack("<I", 3) + b"abc"
SNAPPY = compress_snappy(PAYLOAD)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (chunk(PAYLOAD, 1, magic=0x01020305), "magic number 04 03 02 01, but with 05 03 02 01"),
        (chunk(PAYLOAD, 1, crc=1), "its checksum is .*, but 00000001"),
        (chunk(PAYLOAD, 1, compressor=3), "unknown compressor 3; known are 0 none"),
        (chunk(PAYLOAD, 2), "not the 2 records"),
        (chunk(PAYLOAD, 0), "not the 0 records"),
        (chunk(PAYLOAD, 4_000_000_000), "not the 4,000,000,000 records"),
        (chunk(b"\xff\xff\xff\xffabc", 1), "not the 1 records"),
        (chunk(PAYLOAD + b"x", 1), "not the 1 records"),
        (chunk(PAYLOAD, 1, num_bytes=9), "7 of its 9 bytes are there"),
        (chunk(PAYLOAD, 1)[:19], "19 of its header's 20 bytes"),
        (chunk(PAYLOAD, 1, compressor=1), "as snappy, it cannot be decompressed"),
        (chunk(PAYLOAD, 1, compressor=2), "as gzip, it cannot be decompressed"),
        (chunk(b"", 0, compressor=2), "as gzip, it is empty"),
        (chunk(gzip.compress(PAYLOAD, mtime=0)[:-1], 1, compressor=2), "as gzip, it is truncated"),
        (chunk(gzip.compress(PAYLOAD, mtime=0) + b"x", 1, compressor=2), "as gzip, it"),
        (chunk(SNAPPY[:-1], 1, compressor=1), "as snappy, it"),
        (
            chunk(SNAPPY[:10] + b"\x02\x00\x00\x00", 0, compressor=1),
            "as snappy, it .*unsupported chunk type",
        ),
        (chunk(SNAPPY[:-1] + b"X", 1, compressor=1), "as snappy, it .*checksum"),
        (
            chunk(SNAPPY[:10] + b"\x00\x06\x00\x00\x00\x00\x00\x00\x05\xff", 1, compressor=1),
            "as snappy, it",
        ),
        (
            chunk(SNAPPY[:10] + b"\x00\x07\x00\x00\x00\x00\x00\x00\x81\x80\x04", 1, compressor=1),
            "as snappy, it",
        ),
    ],
)
def test_damage_is_named(tmp_path, data, message):
    before = chunk(PAYLOAD, 1)
    path = saved(tmp_path, before + data)
    with pytest.raises(DataError, match=message) as caught:
        read_all(path)
    assert caught.value.place == f"{path}, chunk 2 at byte {len(before)}"
    assert caught.value.remedy


def test_frames_that_may_be_skipped_are(tmp_path):
    padded = SNAPPY[:10] + b"\xfe\x02\x00\x00\x00\x00" + b"\x80\x00\x00\x00" + SNAPPY
    assert read_all(saved(tmp_path, chunk(padded, 1, compressor=1))) == [b"abc"]


def test_members_of_gzip_are_one_payload(tmp_path):
    payload = gzip.compress(PAYLOAD, mtime=0) + gzip.compress(PAYLOAD, mtime=0)
    assert read_all(saved(tmp_path, chunk(payload, 2, compressor=2))) == [b"abc", b"abc"]


def test_a_chunk_without_records_has_none(tmp_path):
    path = saved(tmp_path, chunk(b"", 0) + chunk(PAYLOAD, 1) + chunk(b"", 0))
    assert read_all(path) == [b"abc"]
    with RecordIOReader(path) as reader:
        assert [len(part) for part in reader.read()] == [1]
    assert read_all(saved(tmp_path, b"")) == []
    assert written([]) == b""


@pytest.mark.parametrize("compressor", Compressor)
def test_chunks_too_large_for_memory_are_refused(tmp_path, monkeypatch, compressor):
    path = saved(tmp_path, written([bytes(5000)], compressor=compressor))
    monkeypatch.setattr(recordio, "MAX_CHUNK_BYTES", 1000)
    with pytest.raises(DataError, match="a chunk is read as a whole"):
        read_all(path)
    monkeypatch.setattr(recordio, "LONGEST_VALUE_BYTES", 1000)
    with pytest.raises(DataError, match="5,000 bytes"):
        written([bytes(5000)])


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        RecordIOReader(tmp_path / "nowhere.recordio")
