import datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctr_pipeline.config.models import DataConfig, SplitConfig
from ctr_pipeline.dataset import arrow_columns
from ctr_pipeline.dataset.formats.parquet import reading
from ctr_pipeline.dataset.ingest import RowsToRead, ingest
from ctr_pipeline.dataset.inspection import inspect_source
from ctr_pipeline.dataset.parts import read_columns
from ctr_pipeline.errors import DataError
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.specs.columns import ColumnType

NUMBER, TEXT = ColumnType.NUMBER, ColumnType.TEXT


def ingest_columns(folder, column_types, label=None, n=None, **columns):
    n = n or len(next(iter(columns.values())))
    label = label if label is not None else [i % 2 for i in range(n)]
    pq.write_table(pa.table({"label": label, **columns}), folder / "rows.parquet")
    return ingest_file(folder, column_types)


def ingest_file(folder, column_types, **options):
    split = SplitConfig(valid=0, test=0)
    data = DataConfig(train=str(folder / "rows.parquet"), split=split, **options)
    source = inspect_source(data)
    return ingest(
        RowsToRead(data, source, column_types, seed=0),
        folder / "in",
        threads=2,
        progress=SilentProgress(),
    )


def values_of(rows, name):
    return read_columns(rows.splits["train"].files, [name]).column(name).to_pylist()


@pytest.mark.parametrize(
    ("array", "column_type", "expected"),
    [
        (pa.array([1, 2, None]), NUMBER, [1.0, 2.0, None]),
        (pa.array([1, 2**62 + 1, None]), TEXT, ["1", str(2**62 + 1), None]),
        (pa.array([2**64 - 1, 0], pa.uint64()), TEXT, [str(2**64 - 1), "0"]),
        (pa.array([1.5, float("nan"), float("inf")]), NUMBER, [1.5, None, float("inf")]),
        (pa.array([0.5, None], pa.float16()), NUMBER, [0.5, None]),
        (pa.array([True, False, None]), NUMBER, [1.0, 0.0, None]),
        (pa.array([0, 19_800, None], pa.date32()), TEXT, ["1970-01-01", "2024-03-18", None]),
        (
            pa.array([-1, 1_700_000_000_123, None], pa.timestamp("ms")),
            TEXT,
            ["1969-12-31 23:59:59.999", "2023-11-14 22:13:20.123", None],
        ),
        (
            pa.array([0, None], pa.timestamp("s", tz="Asia/Tokyo")),
            TEXT,
            ["1970-01-01 00:00:00.000", None],
        ),
        (pa.array([True, False, None]), TEXT, ["1", "0", None]),
        (pa.array([1, 2], pa.decimal128(5, 2)), NUMBER, [1.0, 2.0]),
        (pa.array(["007", "", None, "é"]), TEXT, ["007", None, None, "é"]),
        (pa.array(["a", "b", "a"]).dictionary_encode(), TEXT, ["a", "b", "a"]),
        (pa.array(["a", "b"], pa.large_string()), TEXT, ["a", "b"]),
        (pa.array([b"a", "é".encode()], pa.binary()), TEXT, ["a", "é"]),
        (pa.array(["1", " 2.5 ", "+3", "nan", ""]), NUMBER, [1.0, 2.5, 3.0, None, None]),
        (pa.array([None, None]), NUMBER, [None, None]),
    ],
)
def test_types_become_numbers_or_texts(tmp_path, array, column_type, expected):
    rows = ingest_columns(tmp_path, {"x": column_type}, x=array)
    assert values_of(rows, "x") == expected


@pytest.mark.parametrize(
    "label",
    [
        [0, 1],
        [0.0, 1.0],
        [False, True],
        ["0", "1"],
        pa.array([0, 1], pa.uint8()),
    ],
)
def test_labels_of_any_type(tmp_path, label):
    rows = ingest_columns(tmp_path, {"x": NUMBER}, label=label, x=[1, 2])
    assert values_of(rows, "label") == [0, 1]


@pytest.mark.parametrize(
    ("array", "column_type", "message"),
    [
        (pa.array([1.0, 2.5]), TEXT, "a float without one text"),
        (pa.array([[1], [2]]), NUMBER, "neither a number nor a text"),
        (pa.array([{"a": 1}, {"a": 2}]), TEXT, "neither a number nor a text"),
        (pa.array([1, 2], pa.timestamp("s")), NUMBER, "neither a number nor a text"),
    ],
)
def test_types_that_do_not_fit_their_use(tmp_path, array, column_type, message):
    with pytest.raises(DataError, match=message) as caught:
        ingest_columns(tmp_path, {"x": column_type}, x=array)
    assert "column 'x'" in caught.value.place
    # Unused, the same column is no fault.
    pq.write_table(pa.table({"label": [0, 1], "x": array, "y": [1, 2]}), tmp_path / "rows.parquet")
    assert ingest_file(tmp_path, {"y": NUMBER}).splits["train"].num_rows == 2


def test_keys_of_any_flat_type_are_carried_as_text(tmp_path):
    when = [datetime.date(2020, 1, 1), datetime.date(2020, 1, 2)]
    table = pa.table({"label": [0, 1], "x": [1, 2], "at": pa.array(when), "f": [0.5, 1.0]})
    pq.write_table(table, tmp_path / "rows.parquet")
    rows = ingest_file(tmp_path, {"x": NUMBER}, key_columns=("at", "f"))
    assert values_of(rows, "at") == ["2020-01-01", "2020-01-02"]
    assert values_of(rows, "f") == ["0.5", "1"]


@pytest.mark.parametrize(
    ("columns", "column", "message"),
    [
        ({"x": pa.array(["1"] * 70_000 + ["one"])}, "x", "not a number: 'one'"),
        ({"x": pa.array([b"1"] * 70_000 + [b"\xff"], pa.binary())}, "x", r"not UTF-8: '\\xff'"),
        ({"label": [0, 1] * 35_000 + [2]}, "label", "label not 0 or 1: '2'"),
        ({"label": [0, 1] * 35_000 + [None]}, "label", "label missing"),
        ({"label": [0.0, 1.0] * 35_000 + [float("nan")]}, "label", "label missing"),
    ],
)
def test_bad_records_are_named(tmp_path, columns, column, message):
    n = 70_001
    table = pa.table({"label": [i % 2 for i in range(n)], "x": ["1"] * n, **columns})
    pq.write_table(table, tmp_path / "rows.parquet")
    with pytest.raises(DataError) as caught:
        ingest_file(tmp_path, {"x": NUMBER})
    assert caught.value.message.startswith(message)
    assert caught.value.place == f"{tmp_path / 'rows.parquet'}, row 70001, column '{column}'"
    rows = ingest_file(tmp_path, {"x": NUMBER}, bad_rows="skip")
    assert rows.splits["train"].num_rows == 70_000
    assert rows.bad_rows.total == 1


def test_a_damaged_file_is_an_error(tmp_path):
    path = tmp_path / "rows.parquet"
    n = 100_000
    pq.write_table(pa.table({"label": [i % 2 for i in range(n)], "x": list(range(n))}), path)
    content = bytearray(path.read_bytes())
    # The magic and the footer stay whole, the pages do not.
    content[4:2000] = b"\xff" * 1996
    path.write_bytes(content)
    with pytest.raises(DataError, match="truncated or damaged"):
        ingest_file(tmp_path, {"x": NUMBER})


def test_names_with_dots(tmp_path):
    rows = ingest_columns(tmp_path, {"user.age": NUMBER}, **{"user.age": [1, 2], "user": [3, 4]})
    assert values_of(rows, "user.age") == [1.0, 2.0]


@pytest.mark.parametrize("group_rows", [1 << 20, 20_000])
def test_repeated_texts_are_read_as_dictionaries_with_the_same_parts(
    tmp_path, monkeypatch, group_rows
):
    random = np.random.default_rng(0)
    num_rows = 70_000
    few = random.choice(["a", "", "é" * 20, "NA", None, "b"], num_rows)
    some = [f"value {n}" for n in random.integers(0, 1_000, num_rows)]
    columns = {
        "label": [None if n % 1_000 == 7 else n % 2 for n in range(num_rows)],
        "few": pa.array(few, pa.string()),
        "some": pa.array(some),
        "sorted": pa.array(sorted(some)),
        "each": pa.array([f"{n}" for n in range(num_rows)]),
        "bytes": pa.array(some).cast(pa.binary()),
    }
    coded, converted = [], []
    seen, convert = reading.pq.ParquetFile, arrow_columns.convert_column

    def open_file(native, *, read_dictionary=None, **options):
        if read_dictionary is not None:
            coded.append(set(read_dictionary))
        return seen(native, read_dictionary=read_dictionary, **options)

    monkeypatch.setattr(reading.pq, "ParquetFile", open_file)
    monkeypatch.setattr(
        arrow_columns,
        "convert_column",
        lambda *values: converted.append(convert(*values)) or converted[-1],
    )
    found = []
    for kind, use_dictionary in enumerate((True, False)):
        folder = tmp_path / str(kind)
        folder.mkdir()
        pq.write_table(
            pa.table(columns),
            folder / "rows.parquet",
            use_dictionary=use_dictionary,
            row_group_size=group_rows,
        )
        types = dict.fromkeys(("few", "some", "sorted", "each", "bytes"), TEXT)
        rows = ingest_file(
            folder, types, missing_values=("NA",), bad_rows="skip", max_bad_fraction=0.01
        )
        found.append([pa.ipc.open_file(file).read_all() for file in rows.splits["train"].files])
    # The head of a file is read, and then the file.
    assert coded == [set(), {"few", "some", "sorted", "bytes"}, set(), set()]
    assert any(pa.types.is_dictionary(one.type) for one in converted)
    assert sum(part.num_rows for part in found[0]) == num_rows - 70
    for one, other in zip(*found, strict=True):
        assert one.equals(other)


def test_bad_utf8_in_a_dictionary_is_told_by_its_row(tmp_path):
    texts = pa.array([b"a", b"\xff", b"b"] * 100).dictionary_encode()
    pq.write_table(pa.table({"label": [0, 1, 0] * 100, "x": texts}), tmp_path / "rows.parquet")
    with pytest.raises(DataError, match=r"row 2\b"):
        ingest_file(tmp_path, {"x": TEXT})
