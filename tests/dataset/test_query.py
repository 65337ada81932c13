"""Rows of a SELECT: their types, their order, and when they count as changed."""

import json
import subprocess
import sys

import duckdb
import pytest
from obstore.fsspec import FsspecStore

from ctr_pipeline.config.models import DataConfig, SplitConfig
from ctr_pipeline.dataset.formats.query.csv_types import type_csv
from ctr_pipeline.dataset.ingest import RowsToRead, ingest
from ctr_pipeline.dataset.inspection import format_of_address, inspect_source
from ctr_pipeline.dataset.parts import read_columns
from ctr_pipeline.dataset.statement import Query
from ctr_pipeline.errors import DataError
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.specs.columns import ColumnType
from tests.storage.memory_buckets import MemoryBuckets

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
    rows = ingest(
        RowsToRead(data, source, types, seed=0), folder / "in", threads=2, progress=progress
    )
    return read_columns(rows.splits["train"].files, list(types)).to_pydict()


def state_of(query, **options):
    data = DataConfig(query=query, split=WHOLE, **options)
    return RowsToRead(data, inspect_source(data), {"item": NUMBER}, seed=0).origin


JOIN = """
    SELECT label, time, item, brand, price, country
    FROM 'clicks.csv' JOIN 'items.parquet' USING (item) JOIN shop.users USING ("user")
    ORDER BY time DESC
"""


@pytest.mark.parametrize(
    ("query", "attach"),
    [(JOIN, {"shop": "shop.duckdb"}), (JOIN.replace("shop.users", '"shop.duckdb".users'), {})],
)
def test_a_join_of_files_and_a_database_in_its_order(folder, query, attach):
    types = {"time": NUMBER, "brand": TEXT, "price": NUMBER, "country": TEXT}
    found = rows_of(query, types, folder, attach=attach)
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
        ("shop.duckdb", "SELECT label, item FROM 'clicks.csv', \"shop.duckdb\".users", True),
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


CHANGING = (
    ("random()", "draws values by random"),
    ("uuid()", "draws values by uuid"),
    ("gen_random_uuid()", "draws values by"),
    ("now()", "asks for the time by now"),
    ("CURRENT_TIMESTAMP", "asks for the time by current_timestamp"),
    ("today()", "asks for the time by current_date"),
    ("localtimestamp", "asks for the time by localtimestamp"),
    ("age(TIMESTAMP '2026-01-01')", "asks for the time by age"),
)


@pytest.mark.parametrize(("call", "message"), CHANGING)
@pytest.mark.parametrize(
    "query",
    [
        "SELECT label, item, {} AS extra FROM 'clicks.csv'",
        "SELECT label, item FROM 'clicks.csv' WHERE item IN (SELECT 1 WHERE {} IS NOT NULL)",
    ],
)
def test_a_query_that_gives_other_rows_each_time_is_refused(folder, query, call, message):
    with pytest.raises(DataError, match=f"data.query: {message}.* the same data gives other rows"):
        state_of(query.format(call))


def test_the_calls_that_are_refused_are_those_that_duckdb_calls_inconsistent():
    with duckdb.connect() as connection:
        changing = connection.sql(
            "SELECT DISTINCT function_name FROM duckdb_functions() "
            "WHERE stability IN ('VOLATILE', 'CONSISTENT_WITHIN_QUERY')"
        ).fetchall()
    # They tell of the connection, change a database, or give no value that a row could hold.
    harmless = {
        *("currval", "nextval", "setval", "setseed", "error", "sleep_ms", "write_log", "stats"),
        *("current_connection_id", "current_database", "current_query", "current_query_id"),
        *("current_schema", "current_schemas", "current_setting", "current_transaction_id"),
        *("getvariable", "in_search_path", "txid_current", "vector_type"),
    }
    for (name,) in set(changing) - {(name,) for name in harmless}:
        with pytest.raises(DataError, match="the same data gives other rows"):
            Query(f"SELECT {name}() AS value", "data.query").check_repeatable()


def test_a_sample_needs_a_seed(folder):
    sample = "SELECT label, item FROM 'clicks.csv' USING SAMPLE 50 PERCENT (bernoulli{})"
    with pytest.raises(DataError, match=r"samples rows without a seed.*USING SAMPLE"):
        state_of(sample.format(""))
    kept = [
        rows_of(sample.format(", 42"), {"item": NUMBER}, folder / str(turn)) for turn in range(2)
    ]
    assert kept[0] == kept[1]
    assert 0 < len(kept[0]["item"]) < 40


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


READS_ONLY = r"data\.query: is no SELECT but {}, and a source only reads\. Write a SELECT"


def test_lists_of_a_query_are_those_of_a_file(folder):
    select = (
        "SELECT i % 2 AS label, [i % 5, i % 3] AS ids, ['t' || (i % 4)] AS tags, "
        "[0.5, i / 8]::DOUBLE[] AS vector, [[1]] AS nested FROM range(40) t(i) ORDER BY i"
    )
    with duckdb.connect() as connection:
        connection.sql(f"COPY ({select}) TO 'lists.parquet'")
    of_file = inspect_source(DataConfig(train="lists.parquet", split=WHOLE))
    data = DataConfig(query=select, split=WHOLE)
    of_query = inspect_source(data)
    assert of_query.lists == of_file.lists
    assert set(of_query.lists) == {"ids", "tags", "vector"}
    assert of_query.inferred_types == of_file.inferred_types


def test_rows_of_each_split_may_have_other_types_of_one_use(folder):
    select = "SELECT (i % 2)::{} AS label, i::{} AS item FROM range(9) t(i) ORDER BY i"
    data = DataConfig(
        query=select.format("INT", "INT"),
        valid=select.format("BIGINT", "DOUBLE"),
        test=select.format("BOOLEAN", "SMALLINT"),
    )
    source = inspect_source(data)
    assert source.inferred_types == {"label": NUMBER, "item": NUMBER}
    found = ingest_all(data, source, {"item": NUMBER}, folder / "in")
    assert found == {"item": [float(i) for i in range(9)]}


def write_ids(folder, *, num_rows=30, last=None):
    """Columns that DuckDB would read as other values than they are written as."""
    texts = "00078,2024-01-02 03:04:05"
    rows = [
        f"{i % 2},{'32813e21' if i % 2 else '007'},{texts},{i},{i / 4},true"
        for i in range(num_rows)
    ]
    names = "label,hex,zip,time,n,price,flag"
    (folder / "ids.csv").write_text("\n".join([names, *rows, *([last] if last else [])]) + "\n")


@pytest.mark.parametrize(
    "scan",
    [
        "'ids.csv'",
        '"ids.csv" AS ids',
        "read_csv('ids.csv') ids",
        "read_csv_auto(['ids.csv'], filename = true) ids",
        "read_csv('ids.csv', types = {'n': 'BIGINT'}) ids",
        "(FROM 'ids.csv') ids",
        "(WITH a AS (SELECT * FROM 'ids.csv') FROM a) ids",
    ],
)
def test_csv_has_the_values_in_a_query_that_it_has_alone(folder, scan):
    write_ids(folder)
    columns = "label, ids.hex, zip, time, n, price, flag"
    data = DataConfig(query=f"SELECT {columns} FROM {scan} WHERE n >= 0 ORDER BY n", split=WHOLE)
    alone = inspect_source(DataConfig(train="ids.csv", split=WHOLE))
    source = inspect_source(data)
    assert source.inferred_types == alone.inferred_types
    texts = {name: TEXT for name in alone.column_names if name not in {"label", "price"}}
    of_file = ingest_all(DataConfig(train="ids.csv", split=WHOLE), alone, texts, folder / "a")
    assert ingest_all(data, source, texts, folder / "b") == of_file
    numbers = {"n": NUMBER, "price": NUMBER}
    of_file = ingest_all(DataConfig(train="ids.csv", split=WHOLE), alone, numbers, folder / "c")
    assert ingest_all(data, source, numbers, folder / "d") == of_file


def ingest_all(data, source, types, folder):
    wanted = RowsToRead(data, source, types, seed=0)
    rows = ingest(wanted, folder, threads=2, progress=SilentProgress())
    return read_columns(rows.splits["train"].files, list(types)).to_pydict()


def test_numbers_and_texts_of_csv_are_used_as_such(folder):
    write_ids(folder)
    query = "SELECT label, n % 7 AS week, 'u' || n AS name, price * 2 AS twice FROM 'ids.csv'"
    found = rows_of(query, {"week": NUMBER, "name": TEXT, "twice": NUMBER}, folder)
    assert found == {
        "week": [float(i % 7) for i in range(30)],
        "name": [f"u{i}" for i in range(30)],
        "twice": [i / 2 for i in range(30)],
    }
    query = "SELECT label, hex FROM 'ids.csv' USING SAMPLE 50 PERCENT (bernoulli, 3)"
    assert 0 < len(rows_of(query, {"hex": TEXT}, folder / "sample")["hex"]) < 30


@pytest.mark.parametrize(
    ("last", "kind", "says", "mended"),
    [
        (
            "1,x,0,t,0.5,1,true",
            NUMBER,
            r"fails: 0\.5 is no whole number in column 'n' of a CSV file\. Its first rows hold "
            r"whole numbers alone: .* read_csv\('FILE', types = \{'n': 'DOUBLE'\}\)",
            "read_csv('ids.csv', types = {'n': 'DOUBLE'})",
        ),
        (
            "1,x,0,t,1,none,true",
            TEXT,
            "line 25002 of 'ids.csv', column 'price': Could not convert string \"none\" to 'DOUBLE'"
            r"\. Name its type, as in read_csv\('FILE', types = \{'price': 'VARCHAR'\}\)",
            "read_csv('ids.csv', types = {'price': 'VARCHAR'})",
        ),
    ],
)
def test_other_values_far_behind_in_csv_are_no_others_in_silence(folder, last, kind, says, mended):
    write_ids(folder, num_rows=25_000, last=last)
    query, types = "SELECT label, n, price FROM {}", {"n": NUMBER, "price": kind}
    with pytest.raises(DataError, match=says):
        rows_of(query.format("'ids.csv'"), types, folder)
    found = rows_of(query.format(mended), types, folder)
    assert [str(found["n"][-1]), str(found["price"][-1])] in (["0.5", "1.0"], ["1.0", "none"])


@pytest.mark.parametrize(
    ("column", "mended"),
    [
        ("date_trunc('hour', time)", "date_trunc('hour', CAST(time AS TIMESTAMP))"),
        ("CASE WHEN time > DATE '2020-01-01' THEN 1 END", None),
    ],
)
def test_texts_of_csv_are_cast_where_a_query_wants_times(folder, column, mended):
    write_ids(folder)
    query = "SELECT label, n, {} AS x FROM {}"
    with pytest.raises(DataError, match=r"write CAST\(column AS TIMESTAMP\), or name the type"):
        inspect_source(DataConfig(query=query.format(column, "'ids.csv'"), split=WHOLE))
    if mended is not None:
        inspect_source(DataConfig(query=query.format(mended, "'ids.csv'"), split=WHOLE))
    typed = "read_csv('ids.csv', types = {'time': 'TIMESTAMP'})"
    inspect_source(DataConfig(query=query.format(column, typed), split=WHOLE))


def test_a_statement_that_duckdb_cannot_write_down_reads_no_csv():
    answer = json.dumps({"error": True, "error_message": "not implemented"})
    with pytest.raises(DataError, match=r"cannot be told the types there \(not implemented\)"):
        type_csv("SELECT * FROM 'a.csv'", lambda *_: answer, pytest.fail, "data.query")
    text = "SELECT * FROM 'a.parquet'"
    assert type_csv(text, pytest.fail, pytest.fail, "data.query") is text


CLICKS = "FROM 'clicks.csv'"


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("WITH a AS (SELECT 1) INSERT INTO shop.users SELECT 1, 2", READS_ONLY.format("INSERT")),
        ("WITH a AS (SELECT 1) UPDATE shop.users SET user = 'x'", READS_ONLY.format("UPDATE")),
        ("SELECT 1; DROP TABLE shop.users", "has 2 statements, .*Keep the SELECT"),
        ("SELECT 1; SELECT 2; SELECT 3", "has 3 statements, .*Keep the SELECT"),
        (
            f"SELECT label, nextval('shop.ids') AS n {CLICKS}",
            "it changes a database, and a source only reads. Leave out .*nextval",
        ),
        (f"SELECT * {CLICKS} WHERE item = ?", "it has parameters, .*Write the values"),
        (f"SELECT * {CLICKS} WHERE item = $item", "it has parameters, .*Write the values"),
        (
            f"SELECT label, x {CLICKS}, sqlite_scan('a.db', 't')",
            "needs the extension sqlite_scanner .*Install it once .*INSTALL sqlite_scanner",
        ),
        (f"SELECT * {CLICKS} LIMIT 0", r"gives no rows\. Check its conditions"),
        (f"SELECT * {CLICKS} WHERE false", r"gives no rows\. Check its conditions"),
        (f"SELECT label, label {CLICKS}", "two columns named 'label'.*otherwise with AS"),
        (f"SELECT label, item AS LABEL {CLICKS}", "two columns named 'label'.*otherwise with AS"),
        (f"SELECT a.*, b.* {CLICKS} a, 'clicks.csv' b", "two columns named 'time'.*USING"),
        (f"SELECT count(*), label {CLICKS} GROUP BY label", r"COUNT\(\*\) AS name"),
        (f"SELECT label, (SELECT 1) {CLICKS}", r"selects \(SELECT 1\) without a name"),
        (f"SELECT label, label + 1 {CLICKS} UNION ALL SELECT 1, 2", r"label \+ 1 AS name"),
        (f'SELECT label, item AS "" {CLICKS}', "at line 1: zero-length .* identifier"),
        (f"SELECT label, error('boom') AS x {CLICKS}", r"fails: boom\. Try it with"),
        (f"SELECT label,\nitem +\n{CLICKS}", "at line 3: syntax error"),
        (f"SELECT label, price {CLICKS}", '"price" not found.*Candidate bindings: "'),
        ("SELECT * FROM clicks", r"Table with name clicks does not exist\. Did you mean"),
        ("SELECT * FROM shop.items", r"Table with name items does not exist\. Did you mean"),
        ("SELECT * FROM 'gone.csv'", 'No files found .*"gone.csv".*relative to the folder'),
    ],
)
def test_queries_that_are_no_source(folder, query, says):
    with duckdb.connect("shop.duckdb") as connection:
        connection.sql("CREATE SEQUENCE ids")
    before = (folder / "shop.duckdb").read_bytes()
    with pytest.raises(DataError, match=says) as caught:
        inspect_source(DataConfig(query=query, split=WHOLE, attach={"shop": "shop.duckdb"}))
    assert caught.value.place
    assert caught.value.remedy
    assert (folder / "shop.duckdb").read_bytes() == before


def test_objects_are_read_by_globs(folder, monkeypatch):
    buckets = MemoryBuckets(monkeypatch)
    for day in ("1", "2"):
        file = folder / f"{day}.parquet"
        duckdb.sql(f"COPY (SELECT {day} AS day, 1 AS label) TO '{file}'")
        buckets.put(f"s3://bucket/days/{day}.parquet", file.read_bytes())
    query = "SELECT day, label FROM 's3://bucket/days/*.parquet' ORDER BY day"
    source = inspect_source(DataConfig(query=query))
    assert source.head.column("day").to_pylist() == [1, 2]
    with pytest.raises(DataError, match=r"no such object: 's3://bucket/none\.parquet'"):
        inspect_source(DataConfig(query="SELECT * FROM 's3://bucket/none.parquet'"))


def test_an_error_of_a_store_is_its_last_line(folder, monkeypatch):
    MemoryBuckets(monkeypatch).put("s3://bucket/clicks.parquet", bytes(100))
    monkeypatch.setattr(FsspecStore, "_open", refuse)
    with pytest.raises(DataError) as caught:
        inspect_source(DataConfig(query="SELECT * FROM 's3://bucket/clicks.parquet'"))
    assert str(caught.value) == (
        "data.query: fails: the store is away. Check the address, the network and the store's "
        "credentials"
    )


def refuse(*_arguments, **_options):
    raise ConnectionError("the store is away")


@pytest.mark.parametrize(
    ("order", "says"),
    [
        ("item", "data.query: 40 of the first 40 rows tie in ORDER BY item. The same data gives"),
        ("label DESC, 3", "40 of the first 40 rows tie in ORDER BY label, item"),
        ("c.TIME // 1, item", ""),
        ("time", ""),
        ("item, TIME", ""),
        ("ALL", ""),
    ],
)
def test_ties_in_an_order_are_told(folder, order, says):
    query = f"SELECT label, time, item {CLICKS} c ORDER BY {order}"
    notes = inspect_source(DataConfig(query=query)).notes
    assert len(notes) == bool(says)
    assert says in "".join(notes)


def test_ties_are_told_only_where_the_order_divides_rows(folder):
    query = f"SELECT label, item {CLICKS} ORDER BY item"
    assert inspect_source(DataConfig(query=query, split={"by": "random"})).notes == ()
    assert inspect_source(DataConfig(query=query, split=WHOLE)).notes == ()


def test_temporary_folder_is_empty_after_a_query(folder, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(folder / "tmp"))
    (folder / "tmp").mkdir()
    rows_of("SELECT label, item FROM 'clicks.csv' ORDER BY item", {"item": NUMBER}, folder)
    assert list((folder / "tmp").iterdir()) == []


def test_wal_file_of_a_dead_writer_is_noticed_beside_a_database(folder):
    query = 'SELECT rowid % 2 AS label, 1 AS item, * FROM "shop.duckdb".users ORDER BY rowid'
    before = state_of(query)
    assert state_of(query) == before
    body = (
        "import duckdb, os; c = duckdb.connect('shop.duckdb'); "
        "c.execute(\"SET wal_autocheckpoint='1GB'\"); "
        "c.execute(\"INSERT INTO users VALUES ('u9', 'c9')\"); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", body], check=True)
    assert (folder / "shop.duckdb.wal").stat().st_size
    assert state_of(query) != before
    assert rows_of(query, {"user": TEXT}, folder)["user"] == ["u0", "u1", "u2", "u9"]


def test_a_database_that_is_being_written_is_refused(folder):
    body = "import duckdb; c = duckdb.connect('shop.duckdb'); print(flush=True); input()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", body], stdin=pipe, stdout=pipe) as other:
        other.stdout.readline()
        with pytest.raises(DataError, match="is open in another program"):
            inspect_source(DataConfig(query='SELECT * FROM "shop.duckdb".users'))
        other.communicate(b"\n")
