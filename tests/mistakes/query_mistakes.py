"""What users get wrong about a SELECT as the source of rows."""

import sqlite3
from collections.abc import Callable
from contextlib import closing

import duckdb

from tests.mistakes.spoiled_world import CHECK, Case, World

ORDERED = "SELECT * FROM 'rows.csv' ORDER BY city"


def query(text: str, **values: object) -> Callable[[World], None]:
    """The rows are those of a SELECT."""

    def spoil(world: World) -> None:
        world.config(**{"data__train": None, "data__query": text, **values})

    return spoil


def _database(world: World) -> None:
    """A database of a newer DuckDB is attached."""
    query("SELECT * FROM shop.rows ORDER BY city", data__attach={"shop": "shop.duckdb"})(world)
    with duckdb.connect(str(world.folder / "shop.duckdb")) as connection:
        connection.execute("CREATE TABLE rows AS FROM 'rows.csv'")
    path = world.folder / "shop.duckdb"
    content = path.read_bytes()
    path.write_bytes(content[:100] + b"x" * (len(content) - 100))


def _table(world: World) -> None:
    with duckdb.connect(str(world.folder / "shop.duckdb")) as connection:
        connection.execute("CREATE TABLE clicks AS FROM 'rows.csv'")


def _named_as_file(world: World) -> None:
    """A database is named without a table."""
    _table(world)
    world.config(data__train="shop.duckdb")


def _without_tables(world: World) -> None:
    duckdb.connect(str(world.folder / "shop.duckdb")).close()
    world.config(data__train="shop.duckdb")


def _sqlite(world: World) -> None:
    with closing(sqlite3.connect(world.folder / "shop.db")) as database:
        database.execute("CREATE TABLE clicks (click INT)")
    world.config(data__train="shop.db")


def _damaged_label(world: World) -> None:
    """A label in the table is neither 0 nor 1."""
    _table(world)
    with duckdb.connect(str(world.folder / "shop.duckdb")) as connection:
        connection.execute("UPDATE clicks SET click = 2 WHERE price = 7")
    query('SELECT * FROM "shop.duckdb".clicks ORDER BY rowid')(world)


CONFIG_MISTAKES = (
    Case("query_that_deletes", query("DELETE FROM rows"), ("data.query", "DELETE", "SELECT")),
    Case("query_blank", query("  "), ("data.query", "write a SELECT")),
    Case(
        "query_and_train",
        query(ORDERED, data__train="rows.csv"),
        ("data", "`train` or `query`, not both"),
    ),
)

ROW_MISTAKES = (
    Case(
        "query_with_two_statements",
        query(ORDERED + "; SELECT 1"),
        ("data.query", "2 statements", "Keep the SELECT"),
        CHECK,
    ),
    Case(
        "query_that_deletes_at_its_end",
        query("WITH a AS (SELECT 1) DELETE FROM t"),
        ("data.query", "no SELECT but DELETE"),
        CHECK,
    ),
    Case(
        "query_syntax",
        query("SELECT *\nFROM 'rows.csv' WHERE\nORDER BY city"),
        ("data.query", "at line 3", "syntax error"),
        CHECK,
    ),
    Case(
        "query_column_missing",
        query("SELECT clicks FROM 'rows.csv' ORDER BY city"),
        ("data.query", '"clicks" not found', "click"),
        CHECK,
    ),
    Case(
        "query_file_missing",
        query("SELECT * FROM 'row*.parquet' ORDER BY city"),
        ("data.query", "No files found", "row*.parquet", "relative"),
        CHECK,
    ),
    Case(
        "query_of_no_rows",
        query("SELECT * FROM 'rows.csv' WHERE price < -1 ORDER BY city"),
        ("data.query", "gives no rows", "conditions"),
        CHECK,
    ),
    Case(
        "query_column_twice",
        query("SELECT a.*, b.* FROM 'rows.csv' a JOIN 'rows.csv' b USING (price) ORDER BY 1"),
        ("data.query", "two columns named", "AS"),
        CHECK,
    ),
    Case(
        "query_column_unnamed",
        query("SELECT click, price, city, \"user\", price + 1 FROM 'rows.csv' ORDER BY city"),
        ("data.query", "price + 1 without a name", "AS name"),
        CHECK,
    ),
    Case(
        "query_without_order",
        query("SELECT * FROM 'rows.csv'"),
        ("data.split.by", "names none", "ORDER BY", "random"),
        CHECK,
        tried=("data.split.by=random",),
    ),
    Case(
        "query_by_the_clock",
        query("SELECT * FROM 'rows.csv' WHERE now() > TIMESTAMP '2020-01-01' ORDER BY city"),
        ("data.query", "asks for the time by now", "Write the time into the query"),
        CHECK,
    ),
    Case(
        "query_that_draws",
        query("SELECT * FROM 'rows.csv' ORDER BY random()"),
        ("data.query", "draws values by random", "hash(user_id)"),
        CHECK,
    ),
    Case(
        "query_extension_absent",
        query("SELECT *, st_point(1, 2) AS place FROM 'rows.csv' ORDER BY city"),
        ("data.query", "extension spatial", "INSTALL spatial"),
        CHECK,
    ),
    Case(
        "query_value_of_another_type",
        query("SELECT *, CAST(city AS INT) AS number FROM 'rows.csv' ORDER BY city"),
        ("data.query", "Could not convert"),
        CHECK,
    ),
    Case(
        "query_attached_file_missing",
        query("SELECT * FROM shop.rows ORDER BY city", data__attach={"shop": "nowhere.duckdb"}),
        ("data.attach.shop", "nowhere.duckdb", "relative"),
        CHECK,
    ),
    Case(
        "query_attached_name_unknown",
        query("SELECT * FROM shop.rows ORDER BY city"),
        ("data.query", "shop"),
        CHECK,
    ),
    Case(
        "query_database_missing",
        query('SELECT * FROM "nowhere.duckdb".rows ORDER BY city'),
        ("data.query", "no such file: 'nowhere.duckdb'", "relative"),
        CHECK,
    ),
    Case(
        "duckdb_without_table",
        _named_as_file,
        ("shop.duckdb", "is a DuckDB database", 'FROM "shop.duckdb".clicks'),
        CHECK,
        tried=("data.train=null", 'data.query=SELECT * FROM "shop.duckdb".clicks ORDER BY rowid'),
    ),
    Case("duckdb_of_no_tables", _without_tables, ("shop.duckdb", "without tables"), CHECK),
    Case("sqlite_file", _sqlite, ("shop.db", "is an SQLite database", "-csv"), CHECK),
    Case(
        "duckdb_label",
        _damaged_label,
        ("data.query", "label not 0 or 1: '2'"),
        unset="more rows are bad than data.max_bad_fraction lets",
    ),
    Case("query_attached_file_damaged", _database, ("data.query",), CHECK),
    Case(
        "query_with_columns",
        query(ORDERED, data__columns=["click", "price", "city", "user"]),
        ("data.columns", "have names", "Leave out data.columns"),
        CHECK,
    ),
    Case(
        "query_label_missing",
        query("SELECT price, city, \"user\" FROM 'rows.csv' ORDER BY city"),
        ("no column 'click'", "data.label"),
        CHECK,
    ),
    Case(
        "query_struct_as_feature",
        query("SELECT * REPLACE ({'a': 1} AS price) FROM 'rows.csv' ORDER BY city"),
        ("price", "struct"),
    ),
)
