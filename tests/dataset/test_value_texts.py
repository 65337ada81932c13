"""One value is one value, however it is written and wherever it comes from."""

import decimal
import itertools
import math
import re

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sqlglot import exp

from ctr_pipeline.config.models import DataConfig
from ctr_pipeline.dataset import value_sql
from ctr_pipeline.dataset.columns import missing_numbers, present_numbers
from ctr_pipeline.dataset.formats.recordio.chunks import RecordIOWriter
from ctr_pipeline.dataset.stream import stream_rows
from ctr_pipeline.dataset.value_texts import (
    as_float64,
    missing_texts,
    one_text,
    texts_of_decimals,
    texts_of_floats,
)
from ctr_pipeline.errors import DataError
from ctr_pipeline.specs.columns import ColumnType
from tests.dataset.example_messages import example_of

NUMBER, TEXT = ColumnType.NUMBER, ColumnType.TEXT

REWRITTEN = {
    "1084.0": "1084",
    "-7.00": "-7",
    "0.0": "0",
    "-0.0": "0",
    "8999999999999999.0": "8999999999999999",
    "True": "1",
    "FALSE": "0",
    "true": "1",
    "fAlSe": "0",
    " 7.0": "7",
    "7.0 ": "7",
    "7.0\n": "7",
    "u1 ": "u1",
    "\t\v u 1\f\r": "u 1",
    "  ": "",
    "é ": "é",
}
KEPT = (
    *("1084", "007", "007.0", "00.0", "+7.0", "7.", ".0", "7.5", "7.50", "1e3", "1.0e3"),
    *("u 1", "u1\u00a0", "9000000000000000.0", "1.2.0", "x7.0", "0", "-0", "10", "true.", "Trues"),
    *("yes", "", "é.0", "trie"),
)


@pytest.mark.parametrize("text", [*REWRITTEN, *KEPT])
def test_a_text_is_the_one_of_its_value(text):
    assert one_text(pa.array([text])).to_pylist() == [REWRITTEN.get(text, text)]


def by_hand(text):
    """As `one_text`, of one value."""
    if text is None:
        return None
    text = text.strip(" \t\n\v\f\r")
    if re.fullmatch(r"-?(0|[1-9][0-9]*)\.0+", text) and abs(decimal.Decimal(text)) < 9 * 10**15:
        return str(int(decimal.Decimal(text)))
    return {"true": "1", "false": "0"}.get(text.lower() if text.isascii() else text, text)


WRITTEN = (
    st.none() | st.text("0179.-tTrRuUeEfFaAlLsS é", max_size=20) | st.sampled_from([*REWRITTEN])
)
MANY = st.integers(-(10**17), 10**17).map(lambda number: f"{number}.0")


@given(st.lists(WRITTEN | MANY, max_size=20), st.integers(0, 5))
def test_many_texts_at_once(values, start):
    whole = pa.array(values, pa.string())
    assert one_text(whole.slice(start)).to_pylist() == [by_hand(text) for text in values[start:]]


def test_texts_that_are_kept_are_not_copied():
    texts = pa.array(["1084", "10", "7.5", "C1", None])
    assert one_text(texts) is texts


def test_sql_says_the_same():
    column = value_sql.one_text(exp.column("x")).sql("duckdb")
    texts = pa.table({"x": [*REWRITTEN, *KEPT, None]})
    found = duckdb.sql(f"SELECT {column} FROM texts").fetchall()
    assert [value for (value,) in found] == one_text(texts["x"].combine_chunks()).to_pylist()


@given(st.lists(st.floats(width=32) | st.floats(-1e4, 1e4, width=32)))
@example([0.1, 1e-45, 3.4028234663852886e38, 16777216.0, 1e22, -0.0, math.nan])
def test_a_float32_is_the_number_that_it_is_printed_as(values):
    narrow = np.array(values, np.float32)
    found = as_float64(pa.array([None, *narrow.tolist()], pa.float32()))
    assert found[0].as_py() is None
    printed = np.array([float(str(value)) for value in narrow])
    np.testing.assert_array_equal(found[1:].to_numpy(), printed)
    assert not np.any(np.signbit(found[1:].to_numpy()) & (narrow > 0))


def test_a_float16_is_the_number_that_it_is_printed_as():
    values = pa.array(np.array([0.1, 65504, -0.0, 0.1], np.float16), mask=np.arange(4) == 3)
    assert as_float64(values).to_pylist() == [0.1, 65500.0, 0.0, None]
    assert as_float64(pa.array([1, None], pa.uint8())).to_pylist() == [1.0, None]


@pytest.mark.parametrize("scale", [0, 2, 10])
def test_a_whole_decimal_is_its_integer(scale):
    values = [decimal.Decimal(one) for one in (0, -7, 10**20, 100)]
    texts = texts_of_decimals(pa.array([*values, None], pa.decimal128(38, scale)))
    assert texts.to_pylist() == ["0", "-7", str(10**20), "100", None]


def test_a_decimal_with_a_fraction_keeps_its_digits():
    values = [decimal.Decimal("12.50"), decimal.Decimal("-0.05")]
    assert texts_of_decimals(pa.array(values)).to_pylist() == ["12.50", "-0.05"]


@pytest.mark.parametrize(("kind", "most"), [("f2", 2**11), ("f4", 2**24), ("f8", 9 * 10**15)])
def test_a_float_has_a_text_where_no_other_was_rounded_to_it(kind, most):
    values = np.array([-3.0, -0.0, np.nan, most // 2, most, 0.5, np.inf], kind)
    texts, has_none = texts_of_floats(pa.array(values, mask=np.arange(7) == 2))
    assert texts.to_pylist() == ["-3", "0", None, str(most // 2), None, None, None]
    assert has_none.tolist() == [False] * 4 + [True] * 3


def test_a_listed_text_means_missing_in_each_writing():
    assert missing_texts(("NULL", "-1.0")) == ("", "NULL", "-1.0", "-1")


def test_a_number_is_missing_where_a_listed_text_is_that_number():
    listed = ("NULL", "-1", " 2.50 ", "1e3", "-1.0", "nan", "", "true", "-Inf")
    assert missing_numbers(listed) == (-1.0, 2.5, 1000.0, 1.0, -math.inf)
    numbers = pa.array([-1, 2.5, 2.4, 1e3, math.nan, None, 1, -math.inf, math.inf, 0])
    left = [None, None, 2.4, None, None, None, None, None, math.inf, 0.0]
    assert present_numbers(numbers, listed).to_pylist() == left
    column = value_sql.present_number(exp.column("x"), listed).sql("duckdb")
    rows = pa.table({"x": numbers.drop_null()})
    found = duckdb.sql(f"SELECT {column} FROM rows WHERE NOT isnan(x)").fetchall()
    assert [value for (value,) in found] == [*left[:4], *left[6:]]
    assert rows.num_rows == 9


TYPES = {"user": TEXT, "flag": TEXT, "price": NUMBER, "sold": NUMBER}
EXPECTED = {
    "user": ["1084", "7", None, "0"],
    "flag": ["1", "0", None, "1"],
    "price": [3.0, -1.0, None, 12.0],
    "sold": [1.0, 0.0, None, 1.0],
}
LISTED = ("-1.0", "7", "TRUE")
UNLISTED = {
    "user": ["1084", None, None, "0"],
    "flag": [None, "0", None, None],
    "price": [3.0, None, None, 12.0],
    "sold": [None, 0.0, None, None],
}
"""What is left where these texts mean missing."""
USERS, FLAGS = [1084, 7, None, 0], [True, False, None, True]
PRICES = [3, -1, None, 12]

WHOLE = {
    "int32": lambda values: pa.array(values, pa.int32()),
    "int64": pa.array,
    "float32": lambda values: pa.array(values, pa.float32()),
    "float64": lambda values: pa.array(values, pa.float64()),
    "decimal": lambda values: pa.array(values, pa.decimal128(12, 2)),
    "text": lambda values: pa.array(values).cast(pa.string()),
    "text of floats": lambda values: pa.array(
        [None if value is None else f"{value}.0" for value in values]
    ),
    "large text": lambda values: pa.array(values).cast(pa.string()).cast(pa.large_string()),
    "dictionary": lambda values: pa.array(values).cast(pa.string()).dictionary_encode(),
    "dictionary of floats": lambda values: pa.array(values, pa.float64()).dictionary_encode(),
}
TRUTH = {
    "bool": pa.array,
    "int8": lambda values: pa.array(values).cast(pa.int8()),
    "float64": lambda values: pa.array(values).cast(pa.int8()).cast(pa.float64()),
    **{
        f"text {yes}": lambda values, yes=yes, no=no: pa.array(
            [{True: yes, False: no}.get(value) for value in values]
        )
        for yes, no in (("True", "False"), ("true", "false"), ("TRUE", "FALSE"), ("1", "0"))
    },
}


def table_of(whole, truth):
    make, decide = WHOLE[whole], TRUTH[truth]
    return pa.table(
        {"user": make(USERS), "flag": decide(FLAGS), "price": make(PRICES), "sold": decide(FLAGS)}
    )


def write_text(table, folder):
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    lines = [",".join("" if value is None else str(value) for value in row) for row in rows]
    path = folder / "rows.csv"
    path.write_text("\n".join([",".join(table.column_names), *lines]) + "\n")
    return str(path)


def write_parquet(table, folder):
    pq.write_table(table, folder / "rows.parquet")
    return str(folder / "rows.parquet")


_AS_FEATURE = {str: str.encode, decimal.Decimal: float, bool: int, int: int, float: float}


def write_examples(table, folder):
    path = folder / "rows.recordio"
    with path.open("wb") as file, RecordIOWriter(file) as writer:
        for row in table.to_pylist():
            given = {name: value for name, value in row.items() if value is not None}
            features = {name: _AS_FEATURE[type(value)](value) for name, value in given.items()}
            writer.write(example_of(features).SerializeToString())
    return str(path)


def write_query(table, folder):
    return f"SELECT * FROM '{write_parquet(table, folder)}'"


WRITERS = {
    "csv": write_text,
    "parquet": write_parquet,
    "examples": write_examples,
    "query": write_query,
}


def read(path, types=TYPES, missing_values=()):
    data = DataConfig(train="x", missing_values=missing_values)
    batches = stream_rows(data, path, types, label_required=False)
    return pa.Table.from_batches(batches).to_pydict()


# One has no part in how the other is read.
@pytest.mark.parametrize(("whole", "truth"), list(zip(WHOLE, itertools.cycle(TRUTH), strict=False)))
@pytest.mark.parametrize("source", WRITERS)
def test_a_row_is_the_same_from_any_source(tmp_path, source, whole, truth):
    path = WRITERS[source](table_of(whole, truth), tmp_path)
    assert read(path) == EXPECTED
    assert read(path, missing_values=LISTED) == UNLISTED


@pytest.mark.parametrize("source", WRITERS)
def test_a_fraction_as_a_text_is_refused_but_where_it_is_written_as_one(tmp_path, source):
    table = pa.table({"user": [1084.0, 2.5], "other": [1, 1]})
    path = WRITERS[source](table, tmp_path)
    listed = read(path, {"user": TEXT}, missing_values=("2.50", "2.5"))
    assert listed["user"] == ["1084", None]
    if source == "csv":
        assert read(path, {"user": TEXT})["user"] == ["1084", "2.5"]
        return
    with pytest.raises(
        DataError, match=r"a float without one text.*2\.5.*round_identity"
    ) as caught:
        read(path, {"user": TEXT})
    assert "row 2, column 'user'" in caught.value.place


def test_columns_that_are_copied_keep_their_texts(tmp_path):
    path = write_text(pa.table({"user": ["1084.0", "True"], "x": [1, 2]}), tmp_path)
    batches = stream_rows(
        DataConfig(train="x"), path, {"x": NUMBER}, label_required=False, kept_columns=["user"]
    )
    assert pa.Table.from_batches(batches)["user"].to_pylist() == ["1084.0", "True"]
