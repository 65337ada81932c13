"""Files of a few kilobytes that ask for gigabytes: each is read in bounded memory, or refused."""

import gzip
import json
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from ctr_pipeline.config.models import DataConfig
from ctr_pipeline.dataset.inspection import inspect_source
from ctr_pipeline.dataset.limits import MOST_COLUMNS
from ctr_pipeline.dataset.paths import resolve_files
from ctr_pipeline.errors import DataError

MOST_PEAK_BYTES = 1500 << 20
LARGEST_FILE_BYTES = 2 << 20


def label(num_rows):
    return pa.array(np.arange(num_rows) % 2)


def write(path, table, **options):
    pq.write_table(table, path, **options)
    return str(path)


def repeated_text(length, num_rows):
    def bomb(folder):
        rows = pa.DictionaryArray.from_arrays(pa.array([0] * num_rows, pa.int32()), ["x" * length])
        table = pa.table({"label": label(num_rows), "x": rows})
        return write(folder / "a.parquet", table, compression="zstd", write_statistics=False)

    return bomb


def a_page_of_zeros(folder):
    texts = pa.array([b"\0" * (300 << 20), b"b"], pa.binary())
    return write(
        folder / "a.parquet",
        pa.table({"label": label(2), "x": texts}),
        compression="zstd",
        use_dictionary=False,
        write_statistics=False,
    )


def a_list_of_millions(folder):
    elements = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(70_000_000, np.int32)), pa.array(["element"])
    )
    lists = pa.LargeListArray.from_arrays(pa.array([0, 70_000_000, 70_000_000]), elements)
    return write(
        folder / "a.parquet",
        pa.table({"label": label(2), "x": lists}),
        compression="zstd",
        write_statistics=False,
    )


def types_within_types(folder):
    kind = pa.int32()
    for _ in range(90):
        kind = pa.struct([("a", kind)])
    table = pa.table({"label": label(2), "x": pa.nulls(2, kind)})
    return write(folder / "a.parquet", table)


def recordio(folder, payload, num_records):
    stored = gzip.compress(payload, 9, mtime=0)
    head = struct.pack("<5I", 0x01020304, zlib.crc32(stored), 2, len(stored), num_records)
    path = folder / "a.recordio"
    path.write_bytes(head + stored)
    return str(path)


def empty_records(folder):
    return recordio(folder, bytes(4 * 16_800_000), 16_800_000)


def more_empty_records(folder):
    return recordio(folder, bytes(4 * 100_000_000), 100_000_000)


def a_record_of_zeros(folder):
    return recordio(folder, struct.pack("<I", 500 << 20) + bytes(500 << 20), 1)


def a_chunk_of_empty_members(folder):
    stored = gzip.compress(b"", 9, mtime=0) * 80_000
    head = struct.pack("<5I", 0x01020304, zlib.crc32(stored), 2, len(stored), 1)
    (folder / "a.recordio").write_bytes(head + stored)
    return str(folder / "a.recordio")


def gzip_of_one_line(folder):
    compressor = zlib.compressobj(9, wbits=31)
    parts = [compressor.compress(b"label,x\n0,a\n1,b\n0,")]
    parts += [compressor.compress(b"z" * (1 << 20)) for _ in range(150)]
    (folder / "a.csv.gz").write_bytes(b"".join([*parts, compressor.flush()]))
    return str(folder / "a.csv.gz")


def zstd_of_one_line(folder):
    compressor = zstandard.ZstdCompressor(3).compressobj()
    parts = [compressor.compress(b"label,x\n0,a\n1,b\n0,")]
    parts += [compressor.compress(b"z" * (1 << 20)) for _ in range(300)]
    (folder / "a.csv.zst").write_bytes(b"".join([*parts, compressor.flush()]))
    return str(folder / "a.csv.zst")


def zstd_of_a_large_window(folder):
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=31)
    content = b"label,x\n" + b"0,a\n1,b\n" * 1000
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    (folder / "a.csv.zst").write_bytes(compressor.compress(content) + compressor.flush())
    return str(folder / "a.csv.zst")


def zstd_of_lines_without_end(folder):
    """Rows that are good, of which there are very many: read in a stream."""
    compressor = zstandard.ZstdCompressor(3).compressobj()
    parts = [compressor.compress(b"label,x\n")]
    parts += [compressor.compress(b"0,aaaa\n1,bbbb\n" * 65_536) for _ in range(20)]
    (folder / "a.csv.zst").write_bytes(b"".join([*parts, compressor.flush()]))
    return str(folder / "a.csv.zst")


def columns_of_text(folder):
    names = ",".join(["label", *(f"c{n}" for n in range(MOST_COLUMNS))])
    (folder / "a.csv.gz").write_bytes(gzip.compress(f"{names}\n{'1,' * MOST_COLUMNS}1\n".encode()))
    return str(folder / "a.csv.gz")


REFUSED = {
    a_page_of_zeros: "a value has 314,572,800 bytes",
    more_empty_records: "holds more than 1,024 MiB",
    a_record_of_zeros: "holds a record of 524,288,000 bytes",
    a_chunk_of_empty_members: "is damaged",
    gzip_of_one_line: "longer than 64 MiB",
    zstd_of_one_line: "longer than 64 MiB",
    columns_of_text: "has 20,001 columns, and at most 20,000 are read",
    zstd_of_a_large_window: "damaged",
}
READ = {
    a_list_of_millions: 2,
    types_within_types: 2,
    repeated_text(20_000, 40_000): 40_000,
    zstd_of_lines_without_end: 20 * 2 * 65_536,
}


def read_in_child(addresses):
    """What became of each address, as `hostile_reading.py` tells it."""
    script = Path(__file__).with_name("hostile_reading.py")
    done = subprocess.run(
        [sys.executable, str(script), *addresses],
        check=False,
        capture_output=True,
        text=True,
        timeout=280,
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"ended with {done.returncode} after {found[-1:]}: {done.stderr}"
    return found


@pytest.mark.slow
@pytest.mark.parametrize("half", [0, 1])
def test_a_bomb_is_refused_or_read_in_bounded_memory(tmp_path, half):
    addresses = {}
    for number, (bomb, expected) in enumerate([*REFUSED.items(), *READ.items()]):
        if number % 2 == half:
            folder = tmp_path / str(number)
            folder.mkdir()
            addresses[bomb(folder)] = expected
            assert sum(file.stat().st_size for file in folder.iterdir()) < LARGEST_FILE_BYTES
    for one, expected in zip(read_in_child(addresses), addresses.values(), strict=True):
        if isinstance(expected, int):
            assert one.get("rows") == expected, one
        else:
            assert expected in one["refusal"], one
            assert one["remedy"]
            assert one["place"]
        assert one["peak_bytes"] < MOST_PEAK_BYTES, one


def test_many_columns_are_refused_before_they_are_looked_at(tmp_path):
    with pytest.raises(DataError, match=f"at most {MOST_COLUMNS:,} are read"):
        inspect_source(DataConfig(train=columns_of_text(tmp_path)))


@pytest.mark.parametrize("kind", ["path", "glob", "folder"])
def test_path_that_is_no_file_is_refused_at_once(tmp_path, kind):
    folder = tmp_path / "day=1"
    folder.mkdir()
    os.mkfifo(folder / "a.parquet")
    address = {
        "path": str(folder / "a.parquet"),
        "glob": str(folder / "*.parquet"),
        "folder": str(folder),
    }[kind]
    with pytest.raises(DataError, match=r"a pipe, a socket or a device|no file matches"):
        inspect_source(DataConfig(train=address))
    with pytest.raises(DataError, match="a pipe, a socket or a device"):
        resolve_files("/dev/zero", "data.train")
