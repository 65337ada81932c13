"""Statistics by Spark, in a Java process of its own, equal those of this machine."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlglot import exp, parse_one

from ctr_pipeline.analysis import collect_statistics_with, plan_statistics
from ctr_pipeline.analysis.engine_protocol import LabelCounts
from ctr_pipeline.analysis.spark_connection import SparkConnection
from ctr_pipeline.analysis.spark_engine import SparkEngine
from ctr_pipeline.analysis.spark_rows import FileView, ParquetRows
from ctr_pipeline.analysis.table_sql import CountedRows
from ctr_pipeline.errors import DataError, StatisticsError
from ctr_pipeline.progress import SilentProgress
from tests.analysis.engine_rows import (
    EDGE_WEIGHTS,
    RANDOM_SPECS,
    SPECS,
    as_table,
    assert_as_here,
    assert_same,
    assert_same_value_tables,
    number,
    random_rows,
    random_weights,
    text,
    types_of,
)
from tests.spark.spark_here import SPARK, skip_without_spark

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def connection(tmp_path_factory):
    skip_without_spark()
    with SparkConnection(SPARK, tmp_path_factory.mktemp("spark")) as connection:
        yield connection


def table_of(rows: pa.Table, file, types, weight: str | None = None) -> CountedRows:
    pq.write_table(rows, file)
    view = FileView(file.stem, (file,))
    sources = (ParquetRows(view, rows.schema, (), ("",)),)
    return CountedRows("label", types, sources, weight=weight)


def collect_there(connection, rows: pa.Table, specs, folder, accept=None, weight=None):
    folder.mkdir(parents=True, exist_ok=True)
    counted = table_of(rows, folder / "rows.parquet", types_of(specs), weight)

    class Opened:
        def __enter__(self):
            return SparkEngine(connection, counted, accept=accept)

        def __exit__(self, *_):
            pass

    return collect_statistics_with(
        lambda _: Opened(),
        plan_statistics(specs, "label", weight=weight),
        folder,
        data_fingerprint="rows",
        progress=SilentProgress(),
    )


def test_every_statistic_is_the_same_as_on_this_machine(connection, collect, tmp_path):
    there = collect_there(connection, as_table(), SPECS, tmp_path / "there")
    assert_as_here(there, collect, tmp_path / "here")
    words = [
        pq.read_table(tmp_path / side / there.vocabularies["words"].file)
        for side in ("there", "here")
    ]
    assert words[0].equals(words[1])


def test_random_rows_give_the_same_statistics(connection, collect, tmp_path):
    columns, labels = random_rows()
    rows = pa.table({"label": pa.array(labels, pa.int8()), **columns})
    (tmp_path / "here").mkdir()
    there = collect_there(connection, rows, RANDOM_SPECS, tmp_path / "there")
    assert_same(there, collect(columns, labels, RANDOM_SPECS, folder=tmp_path / "here"))


def test_weighted_rows_give_the_same_statistics(connection, collect, tmp_path):
    columns, labels = random_rows()
    weights = random_weights()
    rows = pa.table({"label": pa.array(labels, pa.int8()), **columns, "weight": weights})
    (tmp_path / "here").mkdir()
    there = collect_there(connection, rows, RANDOM_SPECS, tmp_path / "there", weight="weight")
    here = collect(columns, labels, RANDOM_SPECS, folder=tmp_path / "here", weights=weights)
    assert_same(there, here)
    expected = np.average(columns["price"], weights=weights)
    assert there.columns["price"].moments.mean == pytest.approx(expected, rel=1e-9)
    assert list(there.value_tables) == ["place"]
    assert_same_value_tables(there, here, tmp_path / "there", tmp_path / "here")


@pytest.mark.parametrize("weights", EDGE_WEIGHTS.values(), ids=EDGE_WEIGHTS)
def test_weights_of_all_sizes_give_the_same_statistics(connection, collect, tmp_path, weights):
    rows = as_table(weights)
    there = collect_there(connection, rows, SPECS, tmp_path / "there", weight="weight")
    assert_as_here(there, collect, tmp_path / "here", weights)


def test_types_and_hostile_names_read_as_the_rows_do(connection, collect, tmp_path):
    names = ("a`b", "${x}", "a.b", "A.B", "x'; DROP TABLE y; --", "日本 n", "ids", "flag", "n")
    columns = {
        names[0]: pa.array([1, 2, None, 2**53 + 1], pa.int64()),
        names[1]: pa.array([1, 2, 3, None], pa.decimal128(10, 0)),
        names[2]: pa.array([True, None, False, True]),
        names[3]: pa.array([5, 5, None, 7], pa.uint64()),
        names[4]: pa.array([0.1, None, 3.5, 1e30], pa.float32()),
        names[5]: pa.array(["1e3", None, "\u3000inf\x0b", " -0"], pa.string()),
        names[6]: pa.array(["1084.0", "1084", "-0.00", "FALSE"]),
        names[7]: pa.array([True, None, False, True]),
        names[8]: pa.array(["True", "false", "2.0", None]),
    }
    rows = pa.table({"label": pa.array([True, False, True, False]), **columns})
    specs = [
        *(number(name) for name in (names[0], names[1], names[2])),
        text(names[3], min_count=1),
        *(number(name) for name in (names[4], names[5], names[8])),
        *(text(name, min_count=1) for name in names[6:8]),
    ]
    there = collect_there(connection, rows, specs, tmp_path / "there")
    read = {
        names[0]: [1.0, 2.0, None, float(2**53 + 1)],
        names[1]: [1.0, 2.0, 3.0, None],
        names[2]: [1.0, None, 0.0, 1.0],
        names[3]: ["5", "5", None, "7"],
        names[4]: [0.1, None, 3.5, 1e30],
        names[5]: [1000.0, None, float("inf"), 0.0],
        names[6]: ["1084", "1084", "0", "0"],
        names[7]: ["1", None, "0", "1"],
        names[8]: [1.0, 0.0, 2.0, None],
    }
    (tmp_path / "here").mkdir()
    assert_same(there, collect(read, [1, 0, 1, 0], specs, folder=tmp_path / "here"))


def test_large_results_come_in_batches(connection):
    rows = parse_one("SELECT CAST(id AS STRING) AS v, id AS n FROM RANGE(150000) ORDER BY v")
    batches = list(connection.batches(rows))
    assert [batch.num_rows for batch in batches] == [65_536, 65_536, 18_928]
    table = pa.Table.from_batches(batches)
    assert table.schema == pa.schema([("v", pa.string()), ("n", pa.int64())])
    assert table.column("v").to_pylist() == sorted(map(str, range(150_000)))


def test_labels_are_told_before_anything_is_computed(connection, tmp_path):
    def refuse(found):
        assert found == {"train": LabelCounts(8, 4, 0)}
        raise DataError("too few", place="train rows")

    with pytest.raises(DataError, match="too few"):
        collect_there(connection, as_table(), SPECS, tmp_path, refuse)


def test_rows_with_numbers_that_are_none_are_bad(connection, tmp_path):
    prices = ["1", " 2e3 ", "1d", "0x10", "x", "", "nan", "1_000", "Infinity", "1.5f"]
    rows = pa.table({"label": [n % 2 for n in range(10)], "price": prices})
    found = []
    collect_there(
        connection, rows, [number("price")], tmp_path, lambda labels: found.append(labels["train"])
    )
    # `1d`, `0x10`, `x`, `1_000` and `1.5f` are no numbers to the reader of rows.
    assert [(one.num_rows, one.num_wrong) for one in found] == [(10, 5)]


def test_a_query_that_fails_is_told_in_one_line(connection, capfd, tmp_path):
    with pytest.raises(
        StatisticsError, match=r"Spark cannot run a query \(A column.*`x`"
    ) as caught:
        connection.rows(exp.select(exp.column("x")).from_(exp.values([(1,)], alias="t")))
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(DataError, match="Spark cannot read a data file"):
        connection.offer_files(FileView("gone", (tmp_path / "gone.parquet",)))
    assert capfd.readouterr() == ("", "")


def test_names_of_files_are_no_patterns(connection, tmp_path):
    for name in ("a[1]*{x}? %20#.txt", "a1.txt"):
        (tmp_path / name).write_text("one\ntwo\r\nthree\rfour")
    view = FileView("lines", (tmp_path / "a[1]*{x}? %20#.txt",), is_text=True)
    connection.offer_files(view)
    found = connection.rows(exp.select(exp.column("line")).from_("lines"))
    assert sorted(found) == [("four",), ("one",), ("three",), ("two",)]
