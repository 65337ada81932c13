"""Rows of a SELECT: their types, their order, and when they count as changed."""

import duckdb
import pytest

from ctr_pipeline.config.models import DataConfig, SplitConfig
from ctr_pipeline.dataset.ingest import ingest
from ctr_pipeline.dataset.ingested import fingerprint_of
from ctr_pipeline.dataset.inspection import format_of_address, inspect_source
from ctr_pipeline.dataset.parts import read_columns
from ctr_pipeline.errors import DataError
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.specs.columns import ColumnType

NUMBER, TEXT = ColumnType.NUMBER, ColumnType.TEXT
WHOLE = SplitConfig(valid=0, test=0)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Clicks in a CSV, items in Parquet, users in a database."""
    monkeypatch.chdir(tmp_path)
    clicks = [f"{time},u{time % 3},{time % 4},{int(time % 5 == 0)}" for time in range(40)]
    (tmp_path / "clicks.csv").write_text("time,user,item,label\n" + "\n".join(clicks) + "\n")
    items = "SELECT i AS item, 'brand ' || (i % 2) AS brand, i * 1.5 AS price FROM range(4) t(i)"
    with duckdb.connect() as connection:
        connection.sql(f"COPY ({items}) TO 'items.parquet'")
    with duckdb.connect("shop.duckdb") as connection:
        connection.sql(
            "CREATE TABLE users AS SELECT 'u' || i AS user, 'c' || i AS country FROM range(3) t(i)"
        )
    return tmp_path


def rows_of(query, types, folder, **options):
    data = DataConfig(query=query, split=WHOLE, **options)
    source = inspect_source(data)
    progress = SilentProgress()
    rows = ingest(data, source, types, folder / "in", seed=0, threads=2, progress=progress)
    return read_columns(rows.splits["train"].files, list(types)).to_pydict()


def state_of(query, **options):
    data = DataConfig(query=query, split=WHOLE, **options)
    return fingerprint_of(data, inspect_source(data), {"item": NUMBER}, seed=0, sensitive=())


JOIN = """
    SELECT label, time, item, brand, price, country
    FROM 'clicks.csv' JOIN 'items.parquet' USING (item) JOIN shop.users USING ("user")
    ORDER BY time DESC
"""


def test_a_join_of_files_and_a_database_in_its_order(folder):
    types = {"time": NUMBER, "brand": TEXT, "price": NUMBER, "country": TEXT}
    found = rows_of(JOIN, types, folder, attach={"shop": "shop.duckdb"})
    assert found == {
        "time": [float(time) for time in range(39, -1, -1)],
        "brand": [f"brand {time % 4 % 2}" for time in range(39, -1, -1)],
        "price": [time % 4 * 1.5 for time in range(39, -1, -1)],
        "country": [f"c{time % 3}" for time in range(39, -1, -1)],
    }


def test_types_are_those_of_the_query(folder):
    source = inspect_source(
        DataConfig(
            query="SELECT label, item, sum(price) AS total, max(brand) AS brand, "
            "TIMESTAMP '2026-01-01' AS day, count(*) > 3 AS often, NULL AS nothing "
            "FROM 'clicks.csv' JOIN 'items.parquet' USING (item) GROUP BY ALL ORDER BY ALL",
            split=WHOLE,
        )
    )
    assert source.inferred_types == {
        "label": NUMBER,
        "item": NUMBER,
        "total": NUMBER,
        "brand": TEXT,
        "often": NUMBER,
        "nothing": NUMBER,
    }
    assert source.times == {"day": "iso"}
    assert source.head.num_rows == 8


def test_rows_without_an_order_come_the_same_each_time(folder):
    query = (
        "SELECT label, item, avg(price * 0.1) OVER (PARTITION BY label) AS mean "
        "FROM 'clicks.csv' JOIN 'items.parquet' USING (item)"
    )
    types = {"item": NUMBER, "mean": NUMBER}
    first, *others = (rows_of(query, types, folder / str(turn)) for turn in range(3))
    assert all(other == first for other in others)


@pytest.mark.parametrize(
    ("change", "query", "is_noticed"),
    [
        ("items.parquet", "SELECT label, price FROM 'clicks.csv', 'it*.parquet'", True),
        ("items.parquet", "SELECT label, item FROM 'clicks.csv'", False),
        ("more.csv", "SELECT label, item FROM read_csv(['clicks.csv', '*ore.csv'])", True),
        ("shop.duckdb", "SELECT label, item FROM 'clicks.csv'", True),
    ],
)  # fmt: skip
def test_a_change_of_what_is_read_is_noticed(folder, change, query, is_noticed):
    (folder / "more.csv").write_text("time,user,item,label\n1,u1,2,0\n")
    before = state_of(query, attach={"shop": "shop.duckdb"})
    if change.endswith(".duckdb"):
        with duckdb.connect(change) as connection:
            connection.sql("INSERT INTO users VALUES ('u9', 'c9')")
    elif change.endswith(".csv"):
        (folder / change).write_text("time,user,item,label\n1,u1,2,0\n1,u1,3,0\n")
    else:
        with duckdb.connect() as connection:
            connection.sql("COPY (SELECT i AS price FROM range(9) t(i)) TO 'items.parquet'")
    assert (state_of(query, attach={"shop": "shop.duckdb"}) != before) == is_noticed


def test_another_text_is_another_source(folder):
    assert state_of("SELECT * FROM 'clicks.csv'") != state_of("SELECT  * FROM 'clicks.csv'")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT * FROM t", True),
        ("-- all\nwith a as (select 1) select * from a", True),
        ("(SELECT 1 AS a) UNION ALL SELECT 2", True),
        ("FROM 'x.parquet'", True),
        ("select.csv", False),
        ("from/data/*.csv", False),
        ("s3://bucket/select", False),
    ],
)
def test_a_select_is_told_from_a_path(text, expected):
    assert (format_of_address(text) is not None) == expected


def test_validation_rows_may_be_a_query_too(folder):
    of = "SELECT label, item FROM 'clicks.csv' WHERE time {} 30 ORDER BY time"
    data = DataConfig(
        query=of.format("<"), valid=of.format(">="), split=SplitConfig(valid=0, test=0)
    )
    source = inspect_source(data)
    assert [str(place) for places in source.files.values() for place in places] == [
        "data.query",
        "data.valid",
    ]


def test_a_file_beside_a_query_is_refused(folder):
    data = DataConfig(query="SELECT * FROM 'clicks.csv'", valid="clicks.csv", split=WHOLE)
    with pytest.raises(DataError, match="no table of a query"):
        inspect_source(data)


def test_nothing_is_left_in_the_temporary_folder(folder, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(folder / "tmp"))
    (folder / "tmp").mkdir()
    rows_of("SELECT label, item FROM 'clicks.csv' ORDER BY item", {"item": NUMBER}, folder)
    assert list((folder / "tmp").iterdir()) == []
