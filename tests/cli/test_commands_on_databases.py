"""`profile`, `drift` and `convert` of tables in database files: as of files of the same rows."""

import json
import sqlite3

import duckdb
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from ctr_pipeline.cli.main import main

NAMES = ("click", "price", "items", "city")


def rows(count, start=0):
    return [
        (
            number % 3 == 0,
            None if number % 7 == 0 else number / 4,
            number % 50,
            f"c{number % 11}'; DROP TABLE clicks; --" if number % 5 else None,
        )
        for number in range(start, start + count)
    ]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with duckdb.connect("shop.duckdb") as database:
        for name, start in (("clicks", 0), ("later", 900)):
            database.execute(
                f"CREATE TABLE {name} (click TINYINT, price DOUBLE, items BIGINT, city VARCHAR)"
            )
            database.executemany(f"INSERT INTO {name} VALUES (?, ?, ?, ?)", rows(300, start))
        database.execute("COPY clicks TO 'clicks.parquet'")
    with sqlite3.connect("shop.db") as database:
        database.execute(
            "CREATE TABLE clicks (click INTEGER, price REAL, items INTEGER, city TEXT)"
        )
        database.executemany("INSERT INTO clicks VALUES (?, ?, ?, ?)", rows(300))
        database.execute("CREATE TABLE mixed (click INTEGER, price REAL)")
        database.executemany("INSERT INTO mixed VALUES (1, ?)", [(1.5,)] * 30_000 + [("dear",)])
    database.close()
    return tmp_path


def call(capsys, *arguments):
    assert main([*arguments, "-q", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


ADDRESSES = ["duckdb://shop.duckdb/clicks", "sqlite://shop.db/clicks"]


@pytest.mark.parametrize("address", ADDRESSES)
def test_profile(folder, capsys, address):
    there = call(capsys, "profile", address, "--label", "click", "--output", "page.html")
    here = call(capsys, "profile", "clicks.parquet", "--label", "click")
    assert there["num_rows"] == 300
    assert there["columns"] == here["columns"]
    assert (folder / "page.html").exists()


@pytest.mark.parametrize("address", ADDRESSES)
def test_drift(folder, capsys, address):
    there = call(capsys, "drift", address, "duckdb://shop.duckdb/later")
    here = call(capsys, "drift", "clicks.parquet", "duckdb://shop.duckdb/later")
    assert there["columns"] == here["columns"]
    levels = {one["column"]: one["level"] for one in there["columns"]}
    assert (levels["price"], levels["items"]) == ("large", "stable")


@pytest.mark.parametrize("address", ADDRESSES)
def test_convert(folder, capsys, address):
    for output in ("copy.parquet", "copy.csv"):
        assert call(capsys, "convert", address, "--output", output)["num_rows"] == 300
    expected = [(int(click), price, items, city) for click, price, items, city in rows(300)]
    copied = pq.read_table("copy.parquet")
    assert copied.column_names == list(NAMES)
    assert list(zip(*(copied.column(name).to_pylist() for name in NAMES), strict=True)) == expected
    read = pa_csv.read_csv(
        "copy.csv", convert_options=pa_csv.ConvertOptions(strings_can_be_null=True)
    )
    assert list(zip(*(read.column(name).to_pylist() for name in NAMES), strict=True)) == expected


def test_a_value_of_another_type_is_told_and_nothing_is_written(folder, capsys):
    assert main(["convert", "sqlite://shop.db/mixed", "--output", "copy.parquet", "-q"]) == 1
    error = capsys.readouterr().err
    assert "mixed, column 'price': has values of the type string, and others of" in error
    assert not (folder / "copy.parquet").exists()
