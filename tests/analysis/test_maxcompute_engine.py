"""Statistics by MaxCompute equal those of this machine, through the real client."""

import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlglot import exp

from ctr_pipeline.analysis import collect_statistics_with, plan_statistics
from ctr_pipeline.analysis.maxcompute_engine import (
    COLUMNS_A_SCAN,
    MaxComputeEngine,
    MaxComputeRows,
    counting_queries,
    plan_sources,
)
from ctr_pipeline.analysis.table_sql import CountedRows
from ctr_pipeline.dataset.formats.maxcompute import client as client_module
from ctr_pipeline.dataset.formats.maxcompute.client import connect
from ctr_pipeline.dataset.formats.maxcompute.dialect import SETTINGS, render
from ctr_pipeline.dataset.formats.maxcompute.reading import MaxComputeTable
from ctr_pipeline.dataset.formats.maxcompute.table import (
    HashRange,
    TableAddress,
    TableFacts,
    TableRows,
)
from ctr_pipeline.errors import DataError, StatisticsError
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.specs.columns import ColumnType
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
from tests.maxcompute import maxcompute_grammar
from tests.maxcompute.maxcompute_service import (
    ACCESS_KEY,
    PROJECT,
    Fault,
    MaxComputeService,
    service_in_environment,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def service(monkeypatch):
    monkeypatch.setattr(client_module, "RETRY_SECONDS", (0.0, 0.0, 0.0))
    with service_in_environment(monkeypatch) as running:
        yield running


def collect_there(service: MaxComputeService, rows: pa.Table, specs, folder, weight=None):
    service.add_table("clicks", rows)
    address = TableAddress(PROJECT, "clicks")
    there = MaxComputeRows((TableRows(address),), rows.schema, ((0, None),), ("",))
    counted = CountedRows("label", types_of(specs), (there,), weight)
    counted.check_types()
    return collect_statistics_with(
        lambda _: MaxComputeEngine(connect(), counted),
        plan_statistics(specs, "label", weight=weight),
        folder,
        data_fingerprint="rows",
        progress=SilentProgress(),
    )


def test_a_shared_vocabulary_is_the_same_as_on_this_machine(service, collect, tmp_path):
    columns = {
        "item": ["a", "b", "é", "", "a", "c"],
        "last": ["a", "", "b", "'; x", "é", "c"],
    }
    item = text("item", min_count=2)
    last = text("last", min_count=2).model_copy(update={"table": "item"})
    rows = pa.table({"label": pa.array([0, 1, 0, 1, 1, 0], pa.int64()), **columns})
    (tmp_path / "here").mkdir()
    there = collect_there(service, rows, [item, last], tmp_path / "there")
    here = collect(columns, rows["label"].to_pylist(), [item, last], folder=tmp_path / "here")
    assert_same(there, here)
    file = there.vocabularies["item"].file
    assert file == there.vocabularies["last"].file
    words = [pq.read_table(tmp_path / side / file) for side in ("there", "here")]
    assert words[0].equals(words[1])
    counts = dict(zip(*words[0].select(["value", "count"]).to_pydict().values(), strict=True))
    assert counts == {"a": 3, "b": 2, "c": 2, "é": 2}


def test_every_statistic_is_the_same_as_on_this_machine(service, collect, tmp_path):
    there = collect_there(service, as_table(), SPECS, tmp_path / "there")
    assert_as_here(there, collect, tmp_path / "here")
    words = [
        pq.read_table(tmp_path / side / there.vocabularies["words"].file)
        for side in ("there", "here")
    ]
    assert words[0].equals(words[1])
    assert service.left_tables() == []


def test_random_rows_give_the_same_statistics(service, collect, tmp_path):
    columns, labels = random_rows()
    rows = pa.table({"label": pa.array(labels, pa.int8()), **columns})
    (tmp_path / "here").mkdir()
    there = collect_there(service, rows, RANDOM_SPECS, tmp_path / "there")
    assert_same(there, collect(columns, labels, RANDOM_SPECS, folder=tmp_path / "here"))


def test_weighted_rows_give_the_same_statistics(service, collect, tmp_path):
    columns, labels = random_rows()
    weights = random_weights()
    rows = pa.table({"label": pa.array(labels, pa.int8()), **columns, "weight": weights})
    (tmp_path / "here").mkdir()
    there = collect_there(service, rows, RANDOM_SPECS, tmp_path / "there", "weight")
    here = collect(columns, labels, RANDOM_SPECS, folder=tmp_path / "here", weights=weights)
    assert_same(there, here)
    expected = np.average(columns["price"], weights=weights)
    assert there.columns["price"].moments.mean == pytest.approx(expected, rel=1e-9)
    assert list(there.value_tables) == ["place"]
    assert_same_value_tables(there, here, tmp_path / "there", tmp_path / "here")
    assert service.left_tables() == []


@pytest.mark.parametrize("weights", EDGE_WEIGHTS.values(), ids=EDGE_WEIGHTS)
def test_weights_of_all_sizes_give_the_same_statistics(service, collect, tmp_path, weights):
    rows = as_table(weights)
    there = collect_there(service, rows, SPECS, tmp_path / "there", "weight")
    assert_as_here(there, collect, tmp_path / "here", weights=weights)


def test_integers_decimals_booleans_and_identifiers_read_as_the_rows_do(service, collect, tmp_path):
    rows = pa.table(
        {
            "label": pa.array([True, False, True, False]),
            "count": pa.array([1, 2, None, 2**53 + 1], pa.int64()),
            "amount": pa.array([1, 2, 3, None], pa.decimal128(10, 0)),
            "flag": pa.array([True, None, False, True]),
            "user": pa.array([5, 5, None, 7], pa.int64()),
            "item": pa.array(["1084.0", "1084", "-0.00", "FALSE"]),
            "seen": pa.array([True, None, False, True]),
        }
    )
    specs = [
        *map(number, ("count", "amount", "flag")),
        *(text(name, min_count=1) for name in ("user", "item", "seen")),
    ]
    there = collect_there(service, rows, specs, tmp_path / "there")
    columns = {
        "count": [1.0, 2.0, None, float(2**53 + 1)],
        "amount": [1.0, 2.0, 3.0, None],
        "flag": [1.0, None, 0.0, 1.0],
        "user": ["5", "5", None, "7"],
        "item": ["1084", "1084", "0", "0"],
        "seen": ["1", None, "0", "1"],
    }
    (tmp_path / "here").mkdir()
    assert_same(there, collect(columns, [1, 0, 1, 0], specs, folder=tmp_path / "here"))


def test_requests_that_are_turned_away_are_sent_again(service, tmp_path):
    service.faults += [
        Fault("POST /api/projects/ads/instances", 503, times=2),
        Fault("POST /api/projects/ads/instances", 429, "RequestQuotaExceeded"),
        Fault("GET /projects/ads/instances/.*data", 500, "InternalServerError"),
        Fault("GET /projects/ads/instances/.*data", 0),
    ]
    statistics = collect_there(service, as_table(), SPECS, tmp_path)
    assert statistics.num_rows == 8
    assert all(fault.times == 0 for fault in service.faults)


def test_a_failed_query_is_told_and_leaves_no_table(service, tmp_path):
    service.faults.append(
        Fault("POST /api/projects/ads/instances", 403, "NoPermission", "ODPS-0130013: no privilege")
    )
    with pytest.raises(
        DataError, match=r"permission denied .*no privilege.*Ask the project's owner"
    ):
        collect_there(service, as_table(), SPECS, tmp_path)
    assert service.left_tables() == []
    assert not (tmp_path / "statistics.json").exists()


def test_no_secret_is_in_a_message(service, tmp_path):
    service.faults.append(
        Fault("POST /api/projects/ads/instances", 400, "InvalidArgument", f"bad key {ACCESS_KEY}")
    )
    with pytest.raises(StatisticsError) as caught:
        collect_there(service, as_table(), SPECS, tmp_path)
    assert "bad key …" in str(caught.value)
    assert ACCESS_KEY not in str(caught.value)
    assert not any(ACCESS_KEY in line for line in service.requests)


def test_weights_that_sql_reads_otherwise_are_refused(service, tmp_path):
    rows = pa.table({"label": [0, 1], "price": [1.0, 2.0], "weight": ["1", "3"]})
    with pytest.raises(StatisticsError, match=r"column 'weight': has the type string but is used"):
        collect_there(service, rows, [number("price")], tmp_path, "weight")


def sources_of(*addresses: TableAddress, chosen: HashRange | None = None) -> list[MaxComputeTable]:
    schema = pa.schema([("label", pa.int8()), ("price", pa.float64())])
    facts = TableFacts(schema, is_view=False, size_bytes=0, version="1")
    return [MaxComputeTable(TableRows(one, chosen), facts, None) for one in addresses]


def sql_of(*splits: list[MaxComputeTable]) -> str:
    table = CountedRows("label", {}, plan_sources(splits, ("",)))
    text = render(exp.select(exp.Star()).from_(table.rows({})))
    maxcompute_grammar.parse(text, SETTINGS)
    return text


def test_partitions_of_a_table_are_one_select():
    days = [TableAddress(PROJECT, "clicks", (("ds", f"d{n}"),)) for n in range(900)]
    kinds = (("price", pa.int64()),)
    halves = (HashRange(kinds, None, ends) for ends in ((0, 2**51), (2**51, 2**52)))
    text = sql_of(*(sources_of(*days, chosen=chosen) for chosen in halves))
    assert text.count("SELECT") == 2  # the one around it
    assert "`ds` IN ('d0', 'd1', " in text
    assert all(f"'{day.partition[0][1]}'" in text for day in days)
    # Both halves are read at once.
    assert re.search(r"CASE WHEN LOWER\(MD5\(.*\)\) < '8000000000000' THEN 0 ELSE 1 END", text)
    assert "`ds` = 'd0'" in sql_of(sources_of(days[0]))


def test_partitions_that_differ_in_more_stay_apart():
    hours = [
        TableAddress(PROJECT, "clicks", (("ds", day), ("hour", hour)))
        for day, hour in (("1", "00"), ("1", "01"), ("2", "01"))
    ]
    text = sql_of(sources_of(*hours, TableAddress(PROJECT, "other")))
    assert text.count("UNION ALL") == 2
    assert "`ds` = '1' AND `hour` IN ('00', '01')" in text
    assert "`ds` = '2' AND `hour` = '01'" in text


def test_more_tables_than_a_query_combines_are_refused():
    tables = [TableAddress(PROJECT, f"clicks{n}") for n in range(257)]
    assert sql_of(sources_of(*tables[:256])).count("UNION ALL") == 255
    with pytest.raises(StatisticsError, match=r"257 tables .*UNION ALL combines 256.*Name fewer"):
        sql_of(sources_of(*tables))


def test_a_column_that_sql_reads_otherwise_is_refused(service, tmp_path):
    rows = pa.table({"label": [0, 1], "price": ["1", "2"]})
    with pytest.raises(StatisticsError, match=r"column 'price': has the type string but is used"):
        collect_there(service, rows, [number("price")], tmp_path)


def test_2000_columns_are_counted_in_eight_scans_that_the_service_can_parse():
    names = [f"c{n}" for n in range(2000)]
    schema = pa.schema([("label", pa.int64()), *((name, pa.string()) for name in names)])
    table = TableRows(TableAddress(PROJECT, "wide"))
    there = MaxComputeRows((table,), schema, ((0, None),), ("",))
    counted = CountedRows("label", dict.fromkeys(names, ColumnType.TEXT), (there,))
    queries = counting_queries(counted)
    assert len(queries) == -(-2000 // COLUMNS_A_SCAN) == 8
    # The labels are counted by the first scan.
    assert sum(query.count("NAMED_STRUCT") for query in queries) == 2001
    # https://www.alibabacloud.com/help/en/maxcompute/user-guide/maxcompute-sql-limits
    assert max(map(len, queries)) < 2 << 20
