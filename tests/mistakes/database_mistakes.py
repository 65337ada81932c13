"""What users get wrong about tables in database files."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import duckdb
from spoiled_world import CHECK, PREDICT_AGAIN, Case, World, lines

SHOP = "duckdb://shop.duckdb/clicks"
LITE = "sqlite://shop.db/clicks"
INIT = ("init", "sqlite://shop.db/click", "--label", "click", "-o", "new.yaml")


def databases(
    change: Callable[[World], object] = lambda _: None, /, **values: Any
) -> Callable[[World], None]:
    """The rows are in a table of both databases; then this is changed."""

    def spoil(world: World) -> None:
        values_of_rows = [line.split(",") for line in lines()]
        create = "CREATE TABLE clicks (click INT, price INT, city TEXT, user TEXT)"
        with closing(sqlite3.connect(world.folder / "shop.db")) as database:
            database.execute(create)
            database.executemany("INSERT INTO clicks VALUES (?, ?, ?, ?)", values_of_rows)
            database.commit()
        with duckdb.connect(str(world.folder / "shop.duckdb")) as connection:
            connection.execute(create.replace("user", '"user"'))
            connection.executemany("INSERT INTO clicks VALUES (?, ?, ?, ?)", values_of_rows)
        world.config(**{"data__train": SHOP, **values})
        change(world)

    return spoil


def changed(*statements: str) -> Callable[[World], None]:
    """These statements ran in both databases."""

    def change(world: World) -> None:
        with closing(sqlite3.connect(world.folder / "shop.db")) as database:
            for statement in statements:
                database.execute(statement)
            database.commit()
        with duckdb.connect(str(world.folder / "shop.duckdb")) as connection:
            for statement in statements:
                connection.execute(statement)

    return change


def _schemas(world: World) -> None:
    with duckdb.connect(str(world.folder / "shop.duckdb")) as connection:
        connection.execute("CREATE SCHEMA ads")
        connection.execute("CREATE TABLE ads.clicks AS FROM clicks")


def _half(name: str) -> Callable[[World], None]:
    def change(world: World) -> None:
        path = world.folder / name
        content = path.read_bytes()
        path.write_bytes(content[:30] + b"x" * (len(content) - 30))

    return change


MANY = changed("UPDATE clicks SET click = 2 WHERE price = 7")
VIEW = changed("CREATE VIEW seen AS SELECT * FROM clicks")


def changed_in_sqlite(world: World, statement: str) -> None:
    """The statement ran in SQLite alone."""
    with closing(sqlite3.connect(world.folder / "shop.db")) as database:
        database.execute(statement)
        database.commit()


ROW_MISTAKES = (
    Case(
        "duckdb_table_missing",
        databases(data__train="duckdb://shop.duckdb/click"),
        ("shop.duckdb", "no table 'click'", "Did you mean 'clicks'?"),
        CHECK,
    ),
    Case(
        "duckdb_table_ambiguous",
        databases(_schemas),
        ("several tables are named 'clicks'", "ads.clicks, main.clicks", "Name the schema"),
        CHECK,
    ),
    Case(
        "duckdb_view",
        databases(VIEW, data__train="duckdb://shop.duckdb/seen"),
        ("is a view", "CREATE TABLE"),
    ),
    Case(
        "sqlite_view",
        databases(VIEW, data__train="sqlite://shop.db/seen"),
        ("is a view", "CREATE TABLE"),
    ),
    Case(
        "database_file_missing",
        databases(data__train="duckdb://shops.duckdb/clicks"),
        ("data.train", "no such file: 'shops.duckdb'"),
        CHECK,
    ),
    Case(
        "file_no_database",
        databases(data__train="duckdb://rows.csv/clicks"),
        ("rows.csv", "is not a DuckDB database"),
        CHECK,
    ),
    Case(
        "sqlite_named_duckdb",
        databases(data__train="duckdb://shop.db/clicks"),
        ("shop.db", "Write sqlite://shop.db/clicks"),
        CHECK,
    ),
    Case(
        "database_without_table",
        databases(data__train="shop.db"),
        ("shop.db", "is a database", "Write sqlite://shop.db/TABLE"),
        CHECK,
    ),
    Case(
        "database_address_without_table",
        databases(data__train="duckdb://shop.duckdb"),
        ("data.train", "names no table"),
        CHECK,
    ),
    Case("duckdb_damaged", databases(_half("shop.duckdb")), (SHOP, "DuckDB", "Copy or write")),
    Case(
        "sqlite_damaged",
        databases(_half("shop.db"), data__train=LITE),
        (LITE, "SQLite", "Copy or write"),
    ),
    Case(
        "sqlite_empty_table",
        databases(changed("DELETE FROM clicks"), data__train=LITE),
        (LITE, "has no rows"),
        CHECK,
    ),
    Case("duckdb_label", databases(MANY), (SHOP, "label not 0 or 1: '2'")),
    Case("sqlite_label", databases(MANY, data__train=LITE), (LITE, "label not 0 or 1: '2'")),
    Case(
        "sqlite_text_in_a_number",
        databases(
            lambda world: changed_in_sqlite(world, "UPDATE clicks SET price = 'x' WHERE rowid = 9"),
            data__train=LITE,
        ),
        (f"{LITE}, row 9, column 'price'", "not a number: 'x'"),
    ),
    Case(
        "database_column_missing",
        databases(data__label="clicked"),
        (SHOP, "no column 'clicked'", "'click'"),
        CHECK,
    ),
    Case(
        "database_and_file",
        databases(data__train=[SHOP, "rows.csv"]),
        ("data.train", "'rows.csv' is no table of a database", "files only"),
        CHECK,
    ),
    Case(
        "database_twice",
        databases(data__train=[SHOP, SHOP]),
        ("data.train", "named twice"),
        CHECK,
    ),
)

COMMAND_MISTAKES = (
    Case("sqlite_table_missing", databases(), ("shop.db", "no table 'click'", "'clicks'?"), INIT),
    Case(
        "database_predict_column_missing",
        databases(
            changed("CREATE TABLE few AS SELECT click, price FROM clicks"), data__train="rows.csv"
        ),
        ("shop.db", "no column 'city'", "the model"),
        (*PREDICT_AGAIN[:3], "sqlite://shop.db/few", *PREDICT_AGAIN[4:]),
        trained=True,
    ),
)
