"""Texts of key-value pairs as columns of their own, in every format."""

import csv
import io

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr_pipeline.config.models import DataConfig, KeyValueConfig
from ctr_pipeline.dataset.formats.recordio.chunks import RecordIOWriter
from ctr_pipeline.dataset.ingest import RowsToRead, ingest
from ctr_pipeline.dataset.inspection import inspect_source
from ctr_pipeline.dataset.pairs import find_keys, split_pairs
from ctr_pipeline.dataset.parts import read_batches
from ctr_pipeline.dataset.stream import stream_rows
from ctr_pipeline.errors import DataError
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.specs.columns import ColumnType

NUMBER, TEXT = ColumnType.NUMBER, ColumnType.TEXT
TYPES = {"age": NUMBER, "city": TEXT}
SPLIT = {"valid": 0.0, "test": 0.0}
KEYS = ("age", "city", "url")
CUT = {"column": "features"}


def config(path, **cut):
    return DataConfig(train=str(path), label="click", split=SPLIT, key_value={**CUT, **cut})


def write_csv(path, texts):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["click", "features", "user"])
        writer.writerows([n % 2, text or "", f"u{n}"] for n, text in enumerate(texts))
    return path


def write_parquet(path, texts):
    labels = [n % 2 for n in range(len(texts))]
    users = [f"u{n}" for n in range(len(texts))]
    pq.write_table(
        pa.table({"click": labels, "features": pa.array(texts, pa.string()), "user": users}), path
    )
    return path


def write_recordio(path, texts):
    with path.open("wb") as file, RecordIOWriter(file) as writer:
        for line in [
            ["click", "features", "user"],
            *([n % 2, text or "", f"u{n}"] for n, text in enumerate(texts)),
        ]:
            text = io.StringIO()
            csv.writer(text, lineterminator="").writerow(line)
            writer.write(text.getvalue().encode())
    return path


WRITERS = {"csv": write_csv, "parquet": write_parquet, "recordio": write_recordio}


def rows_of(path, tmp_path, types=TYPES, **cut):
    data = config(path, **cut)
    rows = ingest(
        RowsToRead(data, inspect_source(data), types, seed=0),
        tmp_path / "rows",
        threads=1,
        progress=SilentProgress(),
    )
    batches = read_batches(list(rows.splits["train"].files), [*types])
    return pa.Table.from_batches(list(batches)).to_pydict()


def values_of(text, key, pairs=",", value=":"):
    """What a row says of a key, by plain Python; raises where it is bad."""
    found = []
    for pair in (text or "").split(pairs):
        if not pair.strip():
            continue
        name, separator, rest = pair.partition(value)
        if not separator or not name.strip():
            raise ValueError(pair)
        found += [rest] if name.strip() == key else []
    if len(found) > 1:
        raise ValueError(key)
    return found[0] if found else None


@pytest.mark.parametrize("name", WRITERS)
def test_keys_are_columns_in_the_place_of_their_text(name, tmp_path):
    texts = ["age:31,city:Paris", " city:Oslo, age: 7 ,", None, "city:,zip:75", "age:1.5"]
    path = WRITERS[name](tmp_path / f"rows.{name}", texts)
    source = inspect_source(config(path))
    assert source.column_names == ("click", "age", "city", "zip", "user")
    assert source.inferred_types["age"] is NUMBER
    assert source.inferred_types["city"] is TEXT
    assert rows_of(path, tmp_path) == {
        "age": [31.0, 7.0, None, None, 1.5],
        "city": ["Paris", "Oslo", None, None, None],
    }


def test_keys_that_are_listed_are_the_columns(tmp_path):
    path = write_csv(tmp_path / "rows.csv", ["age=31;x=1", "x=2;age=4"])
    cut = {"pairs": ";", "value": "=", "keys": ("city", "age")}
    assert inspect_source(config(path, **cut)).column_names == ("click", "city", "age", "user")
    assert rows_of(path, tmp_path, **cut) == {"age": [31.0, 4.0], "city": [None, None]}


def test_the_label_and_the_weight_may_be_keys(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("user\tfeatures\nu1\tclick:1,w:2,x:a\nu2\tw:3,x:b,click:0\n")
    data = DataConfig(
        train=str(path), label="click", weight="w", split=SPLIT, key_value={"column": "features"}
    )
    rows = ingest(
        RowsToRead(data, inspect_source(data), {"x": TEXT}, seed=0),
        tmp_path / "rows",
        threads=1,
        progress=SilentProgress(),
    )
    table = pa.Table.from_batches(list(read_batches(list(rows.splits["train"].files), None)))
    assert table.select(["click", "w", "x"]).to_pydict() == {
        "click": [1, 0],
        "w": [2.0, 3.0],
        "x": ["a", "b"],
    }


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize(
    ("text", "reason", "column", "shown"),
    [
        ("age:31,Paris", "not a pair of key and value", "features", "'Paris'"),
        (":31", "not a pair of key and value", "features", "':31'"),
        ("age:31,city:a,age:32", "key repeated", "features", "'age:32'"),
        ("age:old,city:a", "not a number", "age", "'old'"),
    ],
)
def test_a_bad_text_is_a_bad_row(name, text, reason, column, shown, tmp_path):
    path = WRITERS[name](tmp_path / f"rows.{name}", ["age:1,city:x", "age:2", text, "city:y"])
    with pytest.raises(DataError, match=reason) as refused:
        rows_of(path, tmp_path)
    row = 3 if name == "parquet" else 4
    assert str(refused.value.place) == f"{path}, row {row}, column '{column}'"
    assert shown in refused.value.message
    assert "data.bad_rows: skip" in refused.value.remedy
    data = config(path).model_copy(update={"bad_rows": "skip", "max_bad_fraction": 0.5})
    batches = list(stream_rows(data, str(path), TYPES, label_required=True))
    assert pa.Table.from_batches(batches).column("city").to_pylist() == ["x", None, "y"]


def test_a_repeated_key_that_nobody_reads_is_passed_over(tmp_path):
    path = write_csv(tmp_path / "rows.csv", ["age:1,zip:1,zip:2", "age:2,zip:3"])
    assert rows_of(path, tmp_path, types={"age": NUMBER})["age"] == [1.0, 2.0]


def test_new_rows_whose_first_rows_lack_a_key_are_refused_with_the_remedy(tmp_path):
    path = write_csv(tmp_path / "new.csv", ["age:1", "age:2"])
    with pytest.raises(DataError, match="no column 'city'") as refused:
        list(stream_rows(config(path), str(path), TYPES, label_required=False))
    assert "list all keys in data.key_value.keys" in refused.value.remedy
    data = config(path, keys=("age", "city"))
    (batch,) = stream_rows(data, str(path), TYPES, label_required=False)
    assert batch.to_pydict() == {"age": [1.0, 2.0], "city": [None, None]}


def test_listing_the_keys_that_were_found_reads_no_rows_anew(tmp_path):
    path = write_csv(tmp_path / "rows.csv", ["age:1,city:a", "age:2"])
    rows_of(path, tmp_path)
    written = {file: file.stat().st_mtime_ns for file in (tmp_path / "rows").rglob("*.arrow")}
    assert written
    rows_of(path, tmp_path, keys=("age", "city"))
    assert {file: file.stat().st_mtime_ns for file in written} == written


PARTS = st.sampled_from(["age", "city", "url", "zip", " age", "", "1", "x:y", "Oslo", "-2.5", " "])
PAIR = st.one_of(st.tuples(PARTS, PARTS).map(":".join), PARTS)
TEXTS = st.one_of(st.none(), st.lists(PAIR, max_size=5).map(",".join))


@pytest.fixture(scope="module")
def connection():
    with duckdb.connect() as connection:
        yield connection


@pytest.mark.parametrize("num_examples", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_values_are_those_of_plain_python_and_of_sql(connection, num_examples):
    @settings(max_examples=num_examples)
    @given(texts=st.lists(TEXTS, min_size=1, max_size=20))
    def check_any_texts(texts):
        check_values(connection, texts)

    check_any_texts()


def check_values(connection, texts):
    cut = KeyValueConfig(**CUT)
    columns, faults = split_pairs(pa.array(texts, pa.string()), cut, KEYS)
    bad = sorted({int(row) for fault in faults for row in fault.rows})
    expected_bad = []
    for row, text in enumerate(texts):
        try:
            expected = [values_of(text, key) for key in KEYS]
        except ValueError:
            expected_bad.append(row)
        else:
            assert [column[row].as_py() for column in columns] == expected
    assert bad == expected_bad
    good = [(row, text) for row, text in enumerate(texts) if row not in bad]
    rows = pa.table(
        {"row": [row for row, _ in good], "text": pa.array([t for _, t in good], pa.string())}
    )
    connection.register("rows", rows)
    for key, column in zip(KEYS, columns, strict=True):
        found = connection.execute(
            "SELECT list_transform(list_filter(string_split(text, ','), "
            "lambda pair: trim(split_part(pair, ':', 1)) = $key), "
            "lambda pair: substr(pair, strpos(pair, ':') + 1))[1] FROM rows ORDER BY row",
            {"key": key},
        ).fetchall()
        assert [column[row].as_py() for row, _ in good] == [value for (value,) in found]


def test_keys_are_found_in_the_order_of_the_texts():
    texts = pa.array([None, "b:1,a:2", "no pair", "c:,a:1", ":x", ""], pa.string())
    assert find_keys(texts, KeyValueConfig(**CUT)) == ["b", "a", "c"]
