"""Metrics and statistics as rows of files, objects and tables."""

import duckdb
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from ctr_pipeline.apps.results.figures import (
    FIGURES,
    FigureTable,
    figures_of_metrics,
    figures_of_statistics,
)
from ctr_pipeline.cli.main import main
from ctr_pipeline.config.models import DataConfig
from ctr_pipeline.dataset.formats.maxcompute.client import connect
from ctr_pipeline.dataset.formats.maxcompute.table import parse_address
from ctr_pipeline.errors import RunFolderError
from tests.maxcompute.maxcompute_service import service_in_environment

pytestmark = pytest.mark.usefixtures("here")

DATA = DataConfig(train="rows.csv")
METRICS = {
    "num_rows": 4,
    "auc": 0.75,
    "gauc": None,
    "calibration_interval": [0.5, 1.5],
    "findings": [{"text": "good"}],
    "by_column": {
        "city": {
            "num_values": 3,
            "groups": [{"value": "Oslo", "auc": 0.5}, {"value": None, "auc": None, "num_rows": 1}],
            "others": {"value": None, "num_rows": 2},
        }
    },
}
ROWS = [
    (None, None, "num_rows", 4.0),
    (None, None, "auc", 0.75),
    ("city", "Oslo", "auc", 0.5),
    ("city", None, "num_rows", 1.0),
    ("city", "(others)", "num_rows", 2.0),
]
ODPS = "odps://ads/figures/ds=1"
ADDRESSES = (ODPS, "f.parquet", "f.csv", "s3://bucket/f.parquet", "duckdb://a.db/f")


@pytest.fixture
def service(monkeypatch):
    with service_in_environment(monkeypatch) as running:
        running.add_partitions("figures", "ds", {"0": FIGURES.empty_table()})
        yield running


def rows_in(address):
    if address == ODPS:
        table = connect().open_table(parse_address(address, ""))
        batches = connect().read_range(table, 0, table.num_rows, None, address)
        found = pa.Table.from_batches(batches).select(FIGURES.names)
    elif address.startswith("duckdb:"):
        with duckdb.connect("a.db", read_only=True) as connection:
            return connection.sql("FROM f").fetchall()
    elif address.endswith("csv"):
        options = pa_csv.ConvertOptions(strings_can_be_null=True, null_values=[""])
        found = pa_csv.read_csv(address, convert_options=options)
    else:
        found = pq.read_table(address.replace("s3://bucket", "store"))
    return [tuple(row.values()) for row in found.to_pylist()]


def test_metrics_are_numbers_of_all_rows_and_of_groups():
    assert [tuple(figure) for figure in figures_of_metrics(METRICS)] == ROWS


@pytest.mark.parametrize("address", ADDRESSES)
def test_writing_again_replaces_and_never_doubles(address, request):
    if address == ODPS:
        request.getfixturevalue("service")
    FigureTable(address, DATA, overwrite=False).write(figures_of_metrics(METRICS))
    assert rows_in(address) == ROWS
    with pytest.raises(RunFolderError, match="already") as refused:
        FigureTable(address, DATA, overwrite=False)
    assert "--overwrite" in refused.value.remedy
    other = METRICS | {"auc": 0.25}
    FigureTable(address, DATA, overwrite=True).write(figures_of_metrics(other))
    assert rows_in(address) == [(None, None, "num_rows", 4.0), (None, None, "auc", 0.25), *ROWS[2:]]


def test_a_table_of_other_columns_and_the_rows_themselves_are_refused():
    with duckdb.connect("a.db") as connection:
        connection.sql("CREATE TABLE f AS SELECT 1 AS item")
    with pytest.raises(RunFolderError, match="other columns: item INTEGER"):
        FigureTable("duckdb://a.db/f", DATA, overwrite=True)
    data = DataConfig(train="duckdb://a.db/f")
    with pytest.raises(RunFolderError, match="is read by this command"):
        FigureTable("duckdb://a.db/f", data, overwrite=True)


def test_analyze_writes_the_statistics_it_shows(here, capsys):
    lines = [f"{n % 2},{n % 10},{'ab'[n % 3 == 0]}" for n in range(100)]
    (here / "rows.csv").write_text("click,n,city\n" + "\n".join(lines) + "\n")
    (here / "c.yaml").write_text(
        "data: {train: rows.csv, label: click, split: {valid: 0.2, test: 0}}\n"
        "features: [{columns: n, number: standardize}, {columns: city, id: vocabulary}]\n"
        "output: run\n"
    )
    assert main(["analyze", "c.yaml", "--output", "duckdb://a.db/f"]) == 0
    found = {
        (column, value, figure): number
        for column, value, figure, number in rows_in("duckdb://a.db/f")
    }
    cities = ["ab"[n % 3 == 0] for n in range(80)]
    assert found[None, None, "num_rows"] == 80
    assert found["n", None, "moments.mean"] == pytest.approx(sum(n % 10 for n in range(80)) / 80)
    assert found["city", "a", "count"] == cities.count("a")
    assert found["city", None, "num_distinct"] == 2
    assert main(["analyze", "c.yaml", "--output", "duckdb://a.db/f"]) != 0
    assert "exists already. Give --overwrite" in capsys.readouterr().err
    before = sorted(found.items(), key=str)
    assert main(["analyze", "c.yaml", "--output", "duckdb://a.db/f", "--overwrite"]) == 0
    again = {
        (column, value, figure): number
        for column, value, figure, number in rows_in("duckdb://a.db/f")
    }
    assert sorted(again.items(), key=str) == before


def test_statistics_name_the_column_of_each_figure():
    statistics = {
        "num_rows": 3,
        "label_rate": 0.5,
        "weighted_label_rate": None,
        "columns": {
            "n": {"column": "n", "count": 3, "summary": {"skew": 1.5}, "top_values": []},
            "c": {"count": 3, "top_values": [{"value": "a", "count": 2, "label_rate": 0.5}]},
        },
    }
    assert [tuple(figure) for figure in figures_of_statistics(statistics)] == [
        (None, None, "num_rows", 3.0),
        (None, None, "label_rate", 0.5),
        ("n", None, "count", 3.0),
        ("n", None, "summary.skew", 1.5),
        ("c", None, "count", 3.0),
        ("c", "a", "count", 2.0),
        ("c", "a", "label_rate", 0.5),
    ]
