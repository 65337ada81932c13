import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctr_pipeline.config.models import DataConfig
from ctr_pipeline.dataset.formats.parquet import chunks as parquet_chunks
from ctr_pipeline.dataset.formats.parquet.layout import DamagedLayoutError, footer_span, read_layout
from ctr_pipeline.dataset.formats.parquet.reading import ParquetFile, read_batches, read_schema
from ctr_pipeline.dataset.inspection import inspect_source
from ctr_pipeline.errors import DataError

TABLE = pa.table(
    {
        "label": [n % 2 for n in range(1000)],
        "text": [f"text {n % 7}" for n in range(1000)],
        "each": [f"another text {n}" for n in range(1000)],
        "lists": [["a", "b"][: n % 3] for n in range(1000)],
        "part.of": [{"one": n, "two": {"three": "x"}} for n in range(1000)],
        "bytes": pa.array([b"12345678"] * 1000, pa.binary(8)),
    }
)
OPTIONS = [
    {},
    {"compression": "none", "use_dictionary": False},
    {"compression": "zstd", "data_page_version": "2.0"},
    {"compression": "gzip", "write_page_index": True, "data_page_size": 100},
    {"compression": "brotli", "write_statistics": False},
    {"compression": "lz4"},
]


def layout_of(path):
    content = path.read_bytes()
    start, end = footer_span(content[-8:], len(content))
    return read_layout(content[start:end], start)


@pytest.mark.parametrize("options", OPTIONS)
def test_a_footer_says_what_arrow_reads_in_it(tmp_path, options):
    path = tmp_path / "a.parquet"
    pq.write_table(TABLE, path, row_group_size=300, **options)
    layout, expected = layout_of(path), pq.read_metadata(path)
    assert layout.num_rows_G.tolist() == [300, 300, 300, 100]
    assert [leaf.path for leaf in layout.leaves] == [
        expected.schema.column(number).path for number in range(expected.num_columns)
    ]
    assert [leaf.is_repeated for leaf in layout.leaves] == [
        expected.schema.column(number).max_repetition_level > 0
        for number in range(expected.num_columns)
    ]
    for group in range(expected.num_row_groups):
        for number, leaf in enumerate(layout.leaves):
            about, chunk = expected.row_group(group).column(number), layout.chunk(group, number)
            start = about.dictionary_page_offset or about.data_page_offset
            assert chunk.start == start
            assert chunk.end - chunk.start == about.total_compressed_size
            assert chunk.num_values == about.num_values
            assert leaf.is_text == (about.physical_type == "BYTE_ARRAY")


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("batch_bytes", [1 << 30, 20_000])
def test_rows_come_whole_in_batches_that_fit(tmp_path, monkeypatch, options, batch_bytes):
    monkeypatch.setattr(parquet_chunks, "BATCH_BYTES", batch_bytes)
    path = tmp_path / "a.parquet"
    pq.write_table(TABLE, path, row_group_size=300, **options)
    schema, num_rows = read_schema(path)
    batches = list(read_batches(ParquetFile(path, schema, num_rows), schema.names, 700))
    assert pa.Table.from_batches(batches).equals(TABLE)
    assert max(batch.num_rows for batch in batches) == 700 if batch_bytes > 20_000 else 100
    if batch_bytes == 20_000:
        assert max(batch.nbytes for batch in batches) < 2 * batch_bytes


@pytest.mark.parametrize("coding", [{}, {"column_encoding": {"x": "DELTA_BYTE_ARRAY"}}])
def test_values_that_repeat_count_with_all_their_bytes(tmp_path, monkeypatch, coding):
    monkeypatch.setattr(parquet_chunks, "BATCH_BYTES", 1 << 20)
    path = tmp_path / "a.parquet"
    table = pa.table({"x": ["y" * 1000] * 20_000})
    pq.write_table(table, path, use_dictionary=not coding, **coding)
    assert path.stat().st_size < 100_000
    schema, num_rows = read_schema(path)
    batches = list(read_batches(ParquetFile(path, schema, num_rows), ["x"], 65_536))
    assert max(batch.nbytes for batch in batches) <= 1 << 20
    assert pa.Table.from_batches(batches).equals(table)


def test_a_name_that_is_not_utf8_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"label": [0, 1], "price": [1, 2]}), path)
    path.write_bytes(path.read_bytes().replace(b"price", b"pri\xff\xfe"))
    with pytest.raises(DataError, match="the name of a column is not UTF-8"):
        inspect_source(DataConfig(train=str(path)))


@pytest.mark.parametrize("place", range(0, 300, 7))
def test_a_footer_that_is_cut_off_is_damaged(tmp_path, place):
    path = tmp_path / "a.parquet"
    pq.write_table(TABLE, path)
    content = path.read_bytes()
    start, end = footer_span(content[-8:], len(content))
    footer = content[start:end]
    with pytest.raises(DamagedLayoutError):
        read_layout(footer[: len(footer) * place // 300], start)


def test_a_column_outside_the_file_is_damaged(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": np.arange(100_000)}), path)
    content = path.read_bytes()
    start, end = footer_span(content[-8:], len(content))
    with pytest.raises(DamagedLayoutError, match="outside the file"):
        read_layout(content[start:end], 100)


def test_files_without_rows_are_read(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(TABLE.slice(0, 0), path)
    schema, num_rows = read_schema(path)
    source = ParquetFile(path, schema, num_rows)
    assert num_rows == sum(batch.num_rows for batch in read_batches(source, ["label"], 10)) == 0
