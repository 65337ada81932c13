"""Rows of a SELECT that another database executes, through its ADBC driver."""

import os
import shutil
import socket
import sqlite3
import subprocess
import tempfile
from pathlib import Path

import adbc_driver_postgresql.dbapi
import pyarrow as pa
import pytest

from ctr_pipeline.config.models import DataConfig, SplitConfig
from ctr_pipeline.dataset.ingest import RowsToRead, ingest
from ctr_pipeline.dataset.inspection import inspect_source
from ctr_pipeline.dataset.parts import read_columns
from ctr_pipeline.errors import DataError
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.specs.columns import ColumnType

NUMBER, TEXT = ColumnType.NUMBER, ColumnType.TEXT
WHOLE = SplitConfig(valid=0, test=0)
JOIN = "SELECT label, price, city FROM clicks JOIN items USING (item) ORDER BY time"


def rows_of(query, driver, folder):
    data = data_of(query, driver)
    source = inspect_source(data)
    types = {"price": NUMBER, "city": TEXT}
    found = ingest(
        RowsToRead(data, source, types, seed=0), folder / "in", threads=1, progress=SilentProgress()
    )
    return read_columns(found.splits["train"].files, list(types)).to_pydict()


def data_of(query, driver):
    return DataConfig(
        query=query, connection={"driver": driver, "uri_env": "SHOP_URI"}, split=WHOLE
    )


def version_of(query, driver):
    data = data_of(query, driver)
    return RowsToRead(data, inspect_source(data), {"price": NUMBER}, seed=0).origin


EXPECTED = {
    "price": [time % 4 * 1.5 for time in range(40)],
    "city": [f"c{time % 4}" for time in range(40)],
}


@pytest.fixture
def sqlite(tmp_path, monkeypatch):
    file = tmp_path / "shop.db"
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE clicks (time INTEGER, item INTEGER, label INTEGER)")
        connection.execute("CREATE TABLE items (item INTEGER, price REAL, city TEXT)")
        clicks = [(time, time % 4, int(time % 5 == 0)) for time in range(40)]
        connection.executemany("INSERT INTO clicks VALUES (?, ?, ?)", clicks)
        items = [(item, item * 1.5, f"c{item}") for item in range(4)]
        connection.executemany("INSERT INTO items VALUES (?, ?, ?)", items)
    monkeypatch.setenv("SHOP_URI", str(file))
    return file


def test_a_join_in_sqlite(sqlite, tmp_path):
    assert rows_of(JOIN, "sqlite", tmp_path) == EXPECTED


def test_the_version_is_that_of_the_rows(sqlite):
    before = version_of(JOIN, "sqlite")
    assert version_of(JOIN, "sqlite") == before
    with sqlite3.connect(sqlite) as connection:
        connection.execute("UPDATE items SET price = 9 WHERE item = 3")
    assert version_of(JOIN, "sqlite") != before


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("SELECT price FROM clicks", "fails: .*no such column"),
        ("SELECT label, price + 1 FROM clicks JOIN items USING (item)", "without a name"),
        ("SELECT label, item AS label FROM clicks", "two columns named 'label'"),
        ("SELECT label, item FROM clicks WHERE item > 9", "gives no rows"),
        ("WITH gone AS (DELETE FROM clicks RETURNING *) SELECT * FROM gone", "only reads"),
        ("WITH a AS (SELECT 1) INSERT INTO clicks SELECT 1, 2, 3", "no SELECT but INSERT"),
        ("SELECT label FROM clicks; DELETE FROM clicks", "has 2 statements"),
        ("SELECT a.*, b.* FROM clicks a, clicks b", "two columns named 'time'"),
        ("SELECT label, item FROM clicks WHERE item = ?", "parameter count mismatch"),
        ("SELECT label, load_extension('x') AS x FROM clicks", "fails: .*not authorized"),
        ("SELECT label FROM", "cannot be understood .*Write it in plainer SQL"),
    ],
)
def test_queries_that_are_no_source(sqlite, query, says):
    with pytest.raises(DataError, match=says):
        inspect_source(data_of(query, "sqlite"))


def test_a_database_that_is_away_is_told_without_its_password(monkeypatch):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    monkeypatch.setenv("SHOP_URI", f"postgresql://me:secret-word@127.0.0.1:{port}/shop")
    with pytest.raises(DataError, match=r"does not answer .*refused.* SHOP_URI") as caught:
        inspect_source(data_of(JOIN, "postgresql"))
    assert "secret-word" not in str(caught.value)


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("postgresql://me:secret-word@no-such-host.invalid/shop", "could not translate host name"),
        ("secret-word", "does not answer"),
    ],
)
def test_an_address_that_leads_nowhere_is_told_without_its_password(monkeypatch, address, says):
    monkeypatch.setenv("SHOP_URI", address)
    with pytest.raises(DataError, match=f"{says}.* Check the address in SHOP_URI") as caught:
        inspect_source(data_of(JOIN, "postgresql"))
    assert "secret-word" not in str(caught.value)


def test_an_sqlite_file_that_is_none_is_told_and_not_made(tmp_path, monkeypatch):
    monkeypatch.setenv("SHOP_URI", str(tmp_path / "none.db"))
    with pytest.raises(DataError, match=r"there is no such file\. Check the path in SHOP_URI"):
        inspect_source(data_of(JOIN, "sqlite"))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "none.db").write_text("no database at all\n" * 100)
    with pytest.raises(DataError, match=r"file is not a database.*Check the address in SHOP_URI"):
        inspect_source(data_of(JOIN, "sqlite"))


def test_ties_in_an_order_are_told(sqlite):
    query = "SELECT label, item FROM clicks ORDER BY {}"
    (note,) = inspect_source(data_of(query.format("item"), "sqlite")).notes
    assert "40 of the first 40 rows tie in ORDER BY item. The database gives them in any" in note
    assert inspect_source(data_of(query.format("time, item"), "sqlite")).notes == ()


def test_a_driver_or_an_address_that_is_missing(monkeypatch):
    monkeypatch.setenv("SHOP_URI", "db")
    with pytest.raises(DataError, match=r"no ADBC driver 'nosuch' here.*install adbc-driver"):
        inspect_source(data_of(JOIN, "nosuch"))
    monkeypatch.delenv("SHOP_URI")
    with pytest.raises(DataError, match="SHOP_URI of the environment is not set"):
        inspect_source(data_of(JOIN, "sqlite"))


def test_a_connection_needs_a_query():
    with pytest.raises(ValueError, match="`connection` belongs to `query`"):
        DataConfig(train="a.csv", connection={"driver": "sqlite", "uri_env": "SHOP_URI"})


@pytest.fixture
def postgresql(tmp_path, monkeypatch):
    """A server on loopback, run by an unprivileged user."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not programs or (os.getuid() == 0 and not shutil.which("runuser")):
        pytest.skip("there is no PostgreSQL here: apt-get install postgresql")
    folder = tmp_path / "server"
    folder.mkdir()
    become = []
    if os.getuid() == 0:
        shutil.chown(folder, "postgres")
        temporary = Path(tempfile.gettempdir())
        for parent in folder.parents:
            if temporary in parent.parents:
                parent.chmod(0o755)
        become = ["runuser", "-u", "postgres", "--"]
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]

    def call(program: str, *arguments: str) -> None:
        command = [*become, str(programs[-1].with_name(program)), *arguments]
        subprocess.run(command, check=True, capture_output=True, cwd="/", timeout=120)

    rows = str(folder / "rows")
    call("initdb", "-D", rows, "-A", "trust", "-U", "me", "-N")
    options = f"-c listen_addresses=127.0.0.1 -p {port} -k {folder}"
    call("pg_ctl", "-D", rows, "-l", str(folder / "log"), "-w", "-o", options, "start")
    uri = f"postgresql://me@127.0.0.1:{port}/postgres"
    monkeypatch.setenv("SHOP_URI", uri)
    try:
        with (
            adbc_driver_postgresql.dbapi.connect(uri, autocommit=True) as connection,
            connection.cursor() as cursor,
        ):
            for statement in (
                "CREATE TABLE clicks AS SELECT i AS time, i % 4 AS item, (i % 5 = 0)::int AS label "
                "FROM generate_series(0, 39) i",
                "CREATE TABLE items AS SELECT i AS item, i * 1.5 AS price, 'c' || i AS city "
                "FROM generate_series(0, 3) i",
            ):
                cursor.execute(statement)
        yield
    finally:
        call("pg_ctl", "-D", rows, "-w", "-m", "immediate", "stop")


@pytest.mark.slow
def test_a_join_in_postgresql(postgresql, tmp_path):
    # The price is NUMERIC there.
    assert rows_of(JOIN, "postgresql", tmp_path) == EXPECTED
    before = version_of(JOIN, "postgresql")
    assert version_of(JOIN, "postgresql") == before
    source = inspect_source(data_of("SELECT label, now() AS seen FROM clicks", "postgresql"))
    assert pa.types.is_timestamp(source.head.schema.field("seen").type)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("SELECT label FROM nowhere", 'fails: .*relation "nowhere" does not exist'),
        ("SELECT label, price::box AS box FROM items", "fails: "),
        ("SELECT label, nextval('s') AS n FROM clicks", "fails: "),
        ("WITH n AS (INSERT INTO items VALUES (9) RETURNING *) SELECT * FROM n", "only reads"),
        ("SELECT label, 1 / (item - 3) AS x FROM clicks", "fails: .*division by zero"),
    ],
)
def test_queries_that_postgresql_refuses(postgresql, query, says):
    with pytest.raises(DataError, match=says):
        inspect_source(data_of(query, "postgresql"))
