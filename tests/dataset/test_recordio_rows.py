from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.config.models import DataConfig, SplitConfig
from ctr_pipeline.dataset.bad_rows import BadRowLedger, BadRowReason
from ctr_pipeline.dataset.formats.recordio.chunks import Compressor, RecordIOWriter
from ctr_pipeline.dataset.ingest import RowsToRead, ingest
from ctr_pipeline.dataset.inspection import inspect_source
from ctr_pipeline.dataset.parts import read_columns
from ctr_pipeline.dataset.stream import stream_rows
from ctr_pipeline.errors import DataError
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.specs.columns import ColumnType
from tests.dataset.example_messages import example_of

NUMBER, TEXT = ColumnType.NUMBER, ColumnType.TEXT
NO_SPLIT = SplitConfig(valid=0, test=0)
COLUMNS = ("label", "price", "city")
TYPES = {"price": NUMBER, "city": TEXT}


def write(path, records, **options):
    with path.open("wb") as file, RecordIOWriter(file, **options) as writer:
        for record in records:
            writer.write(record)
    return path


def write_examples(path, rows, **options):
    return write(path, [example_of(row).SerializeToString() for row in rows], **options)


def ingested(folder, path, types=TYPES, block_bytes=4 << 20, sensitive=(), **options):
    data = DataConfig(train=str(path), split=NO_SPLIT, **options)
    source = inspect_source(data)
    rows = ingest(
        RowsToRead(data, source, types, seed=0, sensitive=sensitive),
        Path(folder) / "in",
        threads=2,
        progress=SilentProgress(),
        block_bytes=block_bytes,
    )
    names = ["label", *types]
    return read_columns(rows.splits["train"].files, names).to_pydict(), rows.bad_rows


LINES = [b"0,1.5,Oslo", b"1,,Bergen", b"0,-7,", b"1,1e3,Br\xc3\xb8nn"]
EXPECTED = {
    "label": [0, 1, 0, 1],
    "price": [1.5, None, -7.0, 1000.0],
    "city": ["Oslo", "Bergen", None, "Brønn"],
}


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("compressor", Compressor)
def test_lines_are_rows(tmp_path, compressor, end):
    lines = [line + end for line in LINES]
    path = write(tmp_path / "rows.recordio", lines, compressor=compressor, chunk_bytes=20)
    found, bad = ingested(tmp_path, path, columns=COLUMNS)
    assert found == EXPECTED
    assert not bad.total
    named = write(tmp_path / "named.rio", [b"label,price,city", *lines])
    assert ingested(tmp_path, named)[0] == EXPECTED


@pytest.mark.parametrize(
    ("separator", "options"),
    [(b"\t", {}), (b";", {}), (b"|", {}), (b"\x01", {"delimiter": "\x01"})],
)
def test_lines_have_any_delimiter(tmp_path, separator, options):
    lines = [line.replace(b",", separator) for line in LINES]
    path = write(tmp_path / "rows", lines)
    assert ingested(tmp_path, path, columns=COLUMNS, **options)[0] == EXPECTED


def test_small_chunks_are_put_together_and_large_ones_are_cut(tmp_path):
    lines = [f"{i % 2},{i},c{i % 9}".encode() for i in range(400)]
    for chunk_bytes in (1, 100, 1500, 1 << 20):
        path = write(tmp_path / "rows.recordio", lines, chunk_bytes=chunk_bytes)
        for block_bytes in (64, 900, 4 << 20):
            found, _ = ingested(
                tmp_path / f"{chunk_bytes}-{block_bytes}",
                path,
                block_bytes=block_bytes,
                columns=COLUMNS,
            )
            assert found["price"] == list(range(400))


FIELDS = st.text(st.sampled_from('ab"\n\r,é '), max_size=6)


def quoted(text):
    return '"' + text.replace('"', '""') + '"'


@given(st.lists(FIELDS, min_size=1, max_size=12))
def test_quoted_fields_may_hold_anything(tmp_path_factory, texts):
    folder = tmp_path_factory.mktemp("quoted")
    lines = [f"{i % 2},{i},{quoted(text)}".encode() for i, text in enumerate([*texts, "x"])]
    path = write(folder / "rows.recordio", lines, chunk_bytes=50)
    found, bad = ingested(folder, path, columns=COLUMNS)
    assert found["city"] == [text.strip(" \t\n\v\f\r") or None for text in [*texts, "x"]]
    assert not bad.total


# What is no row of its own, and why; a record beside it must come through.
NOT_ROWS = [
    (b"", BadRowReason.NOT_ONE_LINE),
    (b"\n", BadRowReason.NOT_ONE_LINE),
    (b"0,1,a\n0,2,b", BadRowReason.NOT_ONE_LINE),
    (b"\n0,1,a", BadRowReason.NOT_ONE_LINE),
    (b"0,1,a\n\n", BadRowReason.NOT_ONE_LINE),
    (b'0,1,"never closed', BadRowReason.NOT_ONE_LINE),
    (b"0,1", BadRowReason.WRONG_COLUMN_COUNT),
    (b"0,1,a,b", BadRowReason.WRONG_COLUMN_COUNT),
    (b"0,1,\xff", BadRowReason.BAD_UTF8),
    (b"0,one,a", BadRowReason.NOT_A_NUMBER),
    (b",1,a", BadRowReason.LABEL_MISSING),
    (b"2,1,a", BadRowReason.LABEL_NOT_BINARY),
]


@pytest.mark.parametrize(("record", "reason"), NOT_ROWS)
@pytest.mark.parametrize("names", [True, False])
def test_a_bad_line_is_named_and_others_are_kept(tmp_path, record, reason, names):
    lines = [*LINES, b'1,3,"a ""b"""', record, *LINES]
    options = {} if names else {"columns": COLUMNS}
    path = write(tmp_path / "rows.recordio", [b"label,price,city", *lines] if names else lines)
    with pytest.raises(DataError, match=str(reason)) as caught:
        ingested(tmp_path, path, **options)
    row = 7 if names else 6
    assert f"rows.recordio, row {row}" in caught.value.place
    found, bad = ingested(tmp_path, path, bad_rows="skip", max_bad_fraction=0.5, **options)
    assert found["city"] == [*EXPECTED["city"], 'a "b"', *EXPECTED["city"]]
    assert bad.by_reason == {reason: 1}
    assert [example.row for example in bad.examples] == [row]


@given(st.lists(st.sampled_from([b'1,3,"x\ny"', *LINES, *(bad for bad, _ in NOT_ROWS)])))
def test_every_line_is_a_row_or_counted(tmp_path_factory, lines):
    folder = tmp_path_factory.mktemp("mixed")
    lines = [*LINES, *lines]
    path = write(folder / "rows.recordio", lines, chunk_bytes=40)
    options = {"bad_rows": "skip", "max_bad_fraction": 1.0, "columns": COLUMNS}
    found, bad = ingested(folder, path, block_bytes=100, **options)
    reasons = dict(NOT_ROWS)
    expected = [reasons[line] for line in lines if line in reasons]
    assert len(found["label"]) + bad.total == len(lines)
    assert bad.by_reason == {reason: expected.count(reason) for reason in set(expected)}
    first = {}
    for number, line in enumerate(lines, 1):
        first.setdefault(reasons.get(line), number)
    for example in bad.examples:
        assert reasons[lines[example.row - 1]] == example.reason
    assert all(first[reason] in {e.row for e in bad.examples} for reason in set(expected))


def test_a_sensitive_line_is_not_shown(tmp_path):
    path = write(tmp_path / "rows.recordio", [*LINES, b"secret\nsecret"])
    with pytest.raises(DataError) as caught:
        ingested(tmp_path, path, columns=COLUMNS, sensitive=["city"])
    assert "secret" not in str(caught.value)


ROWS = [
    {"label": 0, "price": 1.5, "city": b"Oslo", "n": 3},
    {"label": 1, "city": b"Bergen", "n": 2**62 + 1},
    {"label": 0, "price": -7.0, "n": None},
    {"label": 1, "price": 1000.0, "city": "Brønn".encode(), "more": 1},
]
EXAMPLE_TYPES = {**TYPES, "n": TEXT}


def test_examples_are_rows(tmp_path):
    path = write_examples(tmp_path / "rows.recordio", ROWS, chunk_bytes=1)
    found, bad = ingested(tmp_path, path, EXAMPLE_TYPES)
    assert found == {**EXPECTED, "n": ["3", str(2**62 + 1), None, None]}
    assert not bad.total


def test_types_of_examples_are_found(tmp_path):
    rows = [*ROWS, {"label": 1, "list": [1, 2], "user_id": 7, "mixed": 1, "none": None}]
    rows.append({"label": 0, "mixed": 0.5})
    path = write_examples(tmp_path / "rows.recordio", rows)
    source = inspect_source(DataConfig(train=str(path)))
    assert source.format_name == "recordio"
    assert source.record == "example"
    assert set(source.column_names) == set().union(*rows)
    assert source.inferred_types == {
        "label": NUMBER,
        "price": NUMBER,
        "city": TEXT,
        "n": TEXT,
        "more": NUMBER,
        "user_id": NUMBER,
        "mixed": NUMBER,
        "none": NUMBER,
    }
    assert source.head.column("mixed").to_pylist()[-2:] == [1.0, 0.5]
    assert source.head.num_rows == len(rows)


@pytest.mark.parametrize(
    ("row", "kind", "expected"),
    [
        ({"x": 5}, NUMBER, 5.0),
        ({"x": b" 5.5 "}, NUMBER, 5.5),
        ({"x": 0.5}, NUMBER, 0.5),
        ({"x": float("nan")}, NUMBER, None),
        ({"x": b""}, TEXT, None),
        ({"x": b"a\nb"}, TEXT, "a\nb"),
        ({"x": -5}, TEXT, "-5"),
        ({"x": []}, TEXT, None),
        ({}, NUMBER, None),
    ],
)
def test_a_feature_may_be_of_several_kinds(tmp_path, row, kind, expected):
    first = {"label": 0, "x": b"1"}
    rows = [first, {"label": 1, "x": 2}, {"label": 1, **row}]
    path = write_examples(tmp_path / "rows.recordio", rows)
    found, _ = ingested(tmp_path, path, {"x": kind}, block_bytes=1)
    assert found["x"][-1] == expected
    found, _ = ingested(tmp_path / "together", path, {"x": kind})
    assert found["x"] == [*((1.0, 2.0) if kind is NUMBER else ("1", "2")), expected]


@pytest.mark.parametrize(
    ("record", "kind", "reason", "shown"),
    [
        (b"\x0a\x05abc", NUMBER, BadRowReason.NOT_AN_EXAMPLE, "abc"),
        (b"1,2,3", NUMBER, BadRowReason.NOT_AN_EXAMPLE, "1,2,3"),
        ({"label": 1, "x": [1, 2]}, NUMBER, BadRowReason.SEVERAL_VALUES, "2 values"),
        ({"label": [1, 1], "x": 1}, NUMBER, BadRowReason.SEVERAL_VALUES, "2 values"),
        ({"label": 1, "x": b"one"}, NUMBER, BadRowReason.NOT_A_NUMBER, "one"),
        ({"label": 1, "x": b"\xff"}, TEXT, BadRowReason.BAD_UTF8, r"\\xff"),
        ({"label": 1, "x": 0.5}, TEXT, BadRowReason.FLOAT_AS_TEXT, "0.5"),
        ({"label": 2, "x": 1}, NUMBER, BadRowReason.LABEL_NOT_BINARY, "2"),
        ({"label": 0.5, "x": 1}, NUMBER, BadRowReason.LABEL_NOT_BINARY, "0.5"),
        ({"x": 1}, NUMBER, BadRowReason.LABEL_MISSING, ""),
        (b"", NUMBER, BadRowReason.LABEL_MISSING, ""),
    ],
)
def test_a_bad_example_is_named_and_others_are_kept(tmp_path, record, kind, reason, shown):
    two = [example_of({"label": i, "x": i}).SerializeToString() for i in range(2)]
    rows = two * 12_500
    bad = record if isinstance(record, bytes) else example_of(record).SerializeToString()
    path = write(tmp_path / "rows.recordio", [*rows, bad, *rows[:2]])
    with pytest.raises(DataError) as caught:
        ingested(tmp_path, path, {"x": kind})
    assert caught.value.message.startswith(f"{reason}: ")
    assert shown in caught.value.message
    assert "rows.recordio, row 25001" in caught.value.place
    assert "data.bad_rows: skip" in caught.value.remedy
    found, counted = ingested(tmp_path, path, {"x": kind}, bad_rows="skip")
    assert len(found["x"]) == 25_002
    assert counted.by_reason == {reason: 1}


@given(place=st.integers(0, 10_000), change=st.integers(1, 255))
def test_a_changed_byte_of_an_example_loses_no_record(tmp_path_factory, place, change):
    folder = tmp_path_factory.mktemp("changed")
    records = [bytearray(example_of(row).SerializeToString()) for row in ROWS]
    spoiled = records[place % 3 + 1]
    spoiled[place % len(spoiled)] ^= change
    # The checksum is of the changed bytes: whoever wrote the file wrote them so.
    path = write(folder / "rows.recordio", records)
    options = {"bad_rows": "skip", "max_bad_fraction": 1.0}
    try:
        found, bad = ingested(folder, path, TYPES, **options)
    except DataError as error:
        # The byte was of a feature's name, or of its length, and leaves none: all rows are refused.
        if "has no name" not in error.message:
            raise
    else:
        assert len(found["label"]) + bad.total == len(ROWS)


def test_several_files_of_examples_may_lack_features_of_others(tmp_path):
    write_examples(tmp_path / "1.recordio", ROWS[:3])
    write_examples(tmp_path / "2.recordio", [ROWS[3], {"label": 1, "x": 5}])
    found, _ = ingested(tmp_path, tmp_path / "*.recordio", {**TYPES, "x": NUMBER, "more": NUMBER})
    assert found["x"] == [None, None, None, None, 5.0]
    assert found["city"][:4] == EXPECTED["city"]
    assert found["more"] == [None, None, None, 1.0, None]


def test_new_examples_may_lack_a_feature_in_all_rows(tmp_path):
    path = write_examples(tmp_path / "new.recordio", [{"city": b"Oslo"}])
    data = DataConfig(train="unused")

    def streamed(types):
        return pa.Table.from_batches(
            stream_rows(
                data, str(path), types, label_required=False, ledger=BadRowLedger("fail", 0)
            )
        )

    assert streamed(TYPES).to_pydict() == {"price": [None], "city": ["Oslo"]}
    with pytest.raises(DataError, match="no column 'price'"):
        streamed({"price": NUMBER})


def spoil(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("prepare", "options", "message"),
    [
        (lambda f: write(f, []), {}, "is empty"),
        (lambda f: write(f, [b""]), {}, "the first record is empty"),
        (lambda f: write(f, [b"a,b\nc,d"]), {}, "the first record is not one row"),
        (lambda f: write(f, [b"label,\xff,c"]), {}, "the first row is not UTF-8"),
        (lambda f: write(f, [b"nothing"]), {}, "has no commas to separate columns"),
        (lambda f: write(f, [b"label,label"]), {}, "two columns are named 'label'"),
        (lambda f: write(f, [b"label,a"]), {}, "has a header but no rows"),
        (lambda f: write(f, LINES), {"columns": ("label", "a")}, "the first row has 3 columns"),
        (lambda f: write(f, [b"\x00\x01\x02" * 9] * 2), {}, "is not text"),
        (lambda f: write(f, LINES), {"record": "example"}, "no tf.train.Example"),
        (
            lambda f: write_examples(f, ROWS),
            {"record": "line"},
            "a tf.train.Example and not a line",
        ),
        (lambda f: write_examples(f, ROWS), {"columns": COLUMNS}, "Leave out data.columns"),
        (lambda f: write_examples(f, ROWS), {"format": "csv"}, "is RecordIO, but .* csv"),
        (lambda f: write_examples(f, ROWS), {"label": "lable"}, "Did you mean 'label'"),
        (lambda f: f.write_bytes(b"label,a\n1,2\n"), {}, "not a RecordIO file"),
        (lambda f: spoil(write(f, LINES), 25), {}, "chunk 1 at byte 0: is damaged"),
    ],
)
def test_files_that_do_not_fit_are_named(tmp_path, prepare, options, message):
    path = tmp_path / "rows.recordio"
    prepare(path)
    with pytest.raises(DataError, match=message) as caught:
        inspect_source(DataConfig(train=str(path), **options))
    assert "rows.recordio" in caught.value.place
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda f: write(f, LINES), "of the kind line, but .* of the kind example"),
        (lambda f: f.write_bytes(b"label,a\n1,2\n"), "is not a RecordIO file"),
        (lambda f: write_examples(f, [{"label": 1, "price": b"dear"}]), "column 'price' has"),
    ],
)
def test_files_of_one_source_agree(tmp_path, prepare, message):
    write_examples(tmp_path / "1.recordio", ROWS)
    prepare(tmp_path / "2.recordio")
    with pytest.raises(DataError, match=message) as caught:
        inspect_source(DataConfig(train=str(tmp_path / "*.recordio")))
    assert "2.recordio" in caught.value.place


def test_a_list_that_is_wanted_is_refused_at_once(tmp_path):
    path = write_examples(tmp_path / "rows.recordio", [*ROWS, {"label": 1, "tags": [b"a", b"b"]}])
    with pytest.raises(DataError, match="several values in one record") as caught:
        ingested(tmp_path, path, {"tags": TEXT})
    assert "column 'tags'" in caught.value.place
    with pytest.raises(DataError, match="a float without one text"):
        ingested(tmp_path, path, {"price": TEXT})


def test_record_belongs_to_recordio():
    with pytest.raises(ValueError, match="`record` belongs to format: recordio"):
        DataConfig(train="x", format="csv", record="line")
