"""Records by their number, from files that other programs have written."""

import csv
import gzip
import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctr_pipeline.dataset.formats.recordio.chunks import RecordIOWriter
from ctr_pipeline.distributed.records.sources import open_records
from ctr_pipeline.errors import DataError

CONTENT = [f"record {number} ".encode() * (number % 5) for number in range(1000)]


def _write_tfrecords(folder, records, name="part-{}.tfrecord"):
    import tensorflow as tf

    for part in range(3):
        with tf.io.TFRecordWriter(str(folder / name.format(part))) as writer:
            for record in records[part * 400 : (part + 1) * 400]:
                writer.write(record)
    return str(folder / name.format("*"))


def _write_recordio(folder, records):
    for part in range(3):
        with (
            (folder / f"part-{part}.recordio").open("wb") as file,
            RecordIOWriter(file, chunk_bytes=500) as writer,
        ):
            for record in records[part * 400 : (part + 1) * 400]:
                writer.write(record)
    return str(folder / "*.recordio")


@pytest.mark.parametrize("write", [_write_tfrecords, _write_recordio])
def test_records_of_bytes_are_read_by_number(tmp_path, write):
    source = open_records(write(tmp_path, CONTENT))
    assert source.num_records == 1000
    numbers = np.random.default_rng(0).permutation(1000)[:300]
    assert source.read(numbers).tolist() == [CONTENT[number] for number in numbers]
    assert source.read(numbers[:0]).tolist() == []


def test_lines_of_text_are_records_and_quoted_fields_may_hold_line_ends(tmp_path):
    rows = [["id", "text"], *([str(n), f'a "{n}"\n, b' if n % 7 == 0 else "c"] for n in range(500))]
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    source = open_records(str(tmp_path / "a.csv"), has_header=True)
    assert source.num_records == 500
    numbers = np.array([499, 0, 7, 7, 8])
    parsed = [
        next(csv.reader(io.StringIO(line.decode(), newline=""))) for line in source.read(numbers)
    ]
    assert parsed == [rows[number + 1] for number in numbers]


def test_rows_of_parquet_are_arrays_by_column(tmp_path):
    values = np.arange(1000)
    table = pa.table(
        {
            "id": values,
            "price": pa.array([None if n == 3 else n / 2 for n in range(1000)], pa.float32()),
            "text": pa.array([None if n == 4 else f"t{n}" for n in range(1000)]),
            "clicked": values % 2 == 0,
            "day": pa.array(values.astype("datetime64[D]")),
        }
    )
    pq.write_table(table[:600], tmp_path / "a.parquet", row_group_size=64)
    pq.write_table(table[600:], tmp_path / "b.parquet", row_group_size=100)
    files = [str(tmp_path / name) for name in ("a.parquet", "b.parquet")]
    source = open_records(files, columns=["text", "price", "id", "clicked"])
    assert source.num_records == 1000
    numbers = np.random.default_rng(1).permutation(1000)
    found = source.read(numbers)
    assert list(found) == ["text", "price", "id", "clicked"]
    np.testing.assert_array_equal(found["id"], numbers)
    np.testing.assert_array_equal(found["clicked"], numbers % 2 == 0)
    texts = [b"" if n == 4 else f"t{n}".encode() for n in numbers]
    assert found["text"].tolist() == texts
    prices = np.where(numbers == 3, np.nan, numbers / 2)
    np.testing.assert_array_equal(found["price"], prices.astype(np.float32))
    assert [len(column) for column in source.read(numbers[:0]).values()] == [0, 0, 0, 0]
    with pytest.raises(DataError, match=r"column 'day': values of type date32.* columns="):
        open_records(files).read(numbers)
    with pytest.raises(DataError, match=r"a\.parquet: has no column 'none'"):
        open_records(files, columns=["none"])


def test_missing_whole_numbers_are_refused(tmp_path):
    pq.write_table(pa.table({"id": [1, None, 3]}), tmp_path / "a.parquet")
    source = open_records(str(tmp_path / "a.parquet"))
    with pytest.raises(DataError, match=r"column 'id': 1 whole numbers are missing"):
        source.read(np.array([0]))


def test_damage_is_found(tmp_path):
    paths = _write_tfrecords(tmp_path, CONTENT)
    path = tmp_path / "part-1.tfrecord"
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    with pytest.raises(DataError, match=r"part-1\.tfrecord, record 400: is truncated"):
        open_records(paths)
    position = whole.index(b"record 403")
    path.write_bytes(whole[:position] + b"R" + whole[position + 1 :])
    source = open_records(paths)
    with pytest.raises(DataError, match=r"part-1\.tfrecord, record 4: is damaged"):
        source.read(np.array([403]))
    path.write_bytes(b"no records at all, but a text")
    with pytest.raises(DataError, match=r"part-1\.tfrecord, record 1: is no record"):
        open_records(paths)


def test_sources_that_cannot_be_read_are_explained(tmp_path):
    def refused(match, source, **options):
        with pytest.raises(DataError, match=match):
            open_records(source, **options)

    (tmp_path / "a.csv").write_text("1\n")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "b.csv").write_bytes(gzip.compress(b"1\n2\n"))
    (tmp_path / "part-00000-of-00001").write_text("1\n")
    (tmp_path / "c.parquet").write_text("1\n")
    refused("ElasticRecords: 0 records. Name 1 or more", 0)
    refused("no file matches", str(tmp_path / "*.recordio"))
    refused(r"b\.csv: is compressed.*Unpack it", str(tmp_path / "b.csv"))
    refused(r"empty\.csv: hold no records", str(tmp_path / "empty.csv"))
    refused(
        "its name does not tell its format. Name it: format='tfrecord' or", str(tmp_path / "part-*")
    )
    refused("several formats: parquet, text", [str(tmp_path / n) for n in ("a.csv", "c.parquet")])
    refused("cannot be read as Parquet", str(tmp_path / "c.parquet"))
    refused("no format is named 'avro'", str(tmp_path / "a.csv"), file_format="avro")
    refused("records of text have no columns", str(tmp_path / "a.csv"), columns=["a"])
    assert open_records(str(tmp_path / "part-*"), file_format="text").num_records == 1
