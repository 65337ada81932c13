import os
import sqlite3
import subprocess
import sys
from contextlib import closing

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ctr_pipeline.config.models import DataConfig, SplitConfig
from ctr_pipeline.dataset.formats.databases import sqlite_file
from ctr_pipeline.dataset.formats.databases.table import engine_of
from ctr_pipeline.dataset.ingest import ingest
from ctr_pipeline.dataset.ingested import fingerprint_of
from ctr_pipeline.dataset.inspection import inspect_source
from ctr_pipeline.dataset.parts import read_columns
from ctr_pipeline.dataset.stream import stream_rows
from ctr_pipeline.errors import DataError
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.specs.columns import ColumnType

NUMBER, TEXT = ColumnType.NUMBER, ColumnType.TEXT
HOSTILE = "a\"b'; DROP TABLE t; -- ü\n点"


def run_duckdb(path, *statements):
    with duckdb.connect(str(path)) as connection:
        for statement in statements:
            connection.sql(statement)
    return f"duckdb://{path}/t"


def run_sqlite(path, *statements, rows=()):
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        if rows:
            marks = ", ".join("?" * len(rows[0]))
            connection.executemany(f"INSERT INTO t VALUES ({marks})", rows)
        connection.commit()
    return f"sqlite://{path}/t"


def inspect(*addresses, **options):
    train = addresses[0] if len(addresses) == 1 else addresses
    return inspect_source(DataConfig(train=train, **options))


def rows_of(address, types, folder, **options):
    data = DataConfig(train=address, split=SplitConfig(valid=0, test=0), **options)
    source = inspect_source(data)
    progress = SilentProgress()
    rows = ingest(data, source, types, folder / "in", seed=0, threads=2, progress=progress)
    return read_columns(rows.splits["train"].files, list(types)).to_pydict()


def refusal(*addresses, **options):
    with pytest.raises(DataError) as caught:
        inspect(*addresses, **options)
    assert caught.value.place
    assert caught.value.remedy
    return caught.value


def test_types_of_duckdb(tmp_path):
    address = run_duckdb(
        tmp_path / "a.duckdb",
        "CREATE TYPE mood AS ENUM ('bad', 'fine')",
        "CREATE TABLE t AS SELECT (i % 2)::UTINYINT AS label, i::HUGEINT * 10 AS huge, "
        "1.25::DECIMAL(5, 2) AS price, i = 1 AS flag, '00' || i AS code, 'fine'::mood AS mood, "
        "DATE '2024-03-31' AS day, NULLIF(i, 1)::FLOAT AS part, i AS user_id, ['x', 'y'] AS many "
        "FROM range(3) s(i)",
    )
    assert inspect(address).inferred_types == {
        **dict.fromkeys(("label", "huge", "price", "flag", "part", "user_id"), NUMBER),
        **dict.fromkeys(("code", "mood"), TEXT),
    }
    wanted = {"huge": NUMBER, "price": NUMBER, "flag": TEXT, "code": TEXT, "mood": TEXT}
    assert rows_of(address, wanted | {"day": TEXT, "part": NUMBER, "user_id": TEXT}, tmp_path) == {
        "huge": [0.0, 10.0, 20.0],
        "price": [1.25] * 3,
        "flag": ["false", "true", "false"],
        "code": ["000", "001", "002"],
        "mood": ["fine"] * 3,
        "day": ["2024-03-31"] * 3,
        "part": [0.0, None, 2.0],
        "user_id": ["0", "1", "2"],
    }


def test_types_of_sqlite(tmp_path):
    address = run_sqlite(
        tmp_path / "a.db",
        "CREATE TABLE t (label INTEGER, price DECIMAL(5, 2), code TEXT, day DATE, part REAL, "
        "user_id, none INT, big INT)",
        rows=[
            (0, 1, 7, "2024-03-31", 1, 10, None, 2**62 + 1),
            (1, 1.25, "007", None, None, 11, None, -1),
        ],
    )
    source = inspect(address)
    assert source.inferred_types == {
        **dict.fromkeys(("label", "price", "part", "user_id", "none"), NUMBER),
        **dict.fromkeys(("code", "day", "big"), TEXT),
    }
    types = source.inferred_types | {"user_id": TEXT}
    del types["label"]
    assert rows_of(address, types, tmp_path) == {
        "price": [1.0, 1.25],
        "code": ["7", "007"],
        "day": ["2024-03-31", None],
        "part": [1.0, None],
        "user_id": ["10", "11"],
        "none": [None, None],
        "big": [str(2**62 + 1), "-1"],
    }


def test_a_value_of_another_type_is_a_bad_row_if_it_does_not_fit(tmp_path):
    rows = [(n % 2, n) for n in range(30_000)]
    rows[25_000] = (0, "many")
    rows[25_001] = (0, " 2.5 ")
    address = run_sqlite(tmp_path / "a.db", "CREATE TABLE t (label INTEGER, x INTEGER)", rows=rows)
    with pytest.raises(DataError, match="not a number: 'many'") as caught:
        rows_of(address, {"x": NUMBER}, tmp_path)
    assert caught.value.place == f"{address}, row 25001, column 'x'"
    found = rows_of(address, {"x": NUMBER}, tmp_path, bad_rows="skip")["x"]
    assert found == [*map(float, range(25_000)), 2.5, *map(float, range(25_002, 30_000))]


def test_texts_that_are_not_utf8_are_bad_rows(tmp_path):
    address = run_sqlite(
        tmp_path / "a.db",
        "CREATE TABLE t (label INTEGER, x TEXT)",
        "INSERT INTO t VALUES (1, 'ü'), (0, CAST(X'FF41' AS TEXT)), (1, 'a' || char(0) || 'b')",
        "INSERT INTO t VALUES (0, 'z')",
    )
    assert inspect(address).inferred_types["x"] is TEXT
    with pytest.raises(DataError, match=r"not UTF-8: '\\\\xffA'") as caught:
        rows_of(address, {"x": TEXT}, tmp_path)
    assert "row 2" in caught.value.place
    found = rows_of(address, {"x": TEXT}, tmp_path, bad_rows="skip", max_bad_fraction=0.5)
    assert found["x"] == ["ü", "a\0b", "z"]


def test_rows_keep_the_order_they_are_stored_in(tmp_path):
    n = 150_000
    made = f"CREATE TABLE t AS SELECT i % 2 AS label, (i * 7919) % {n} AS x FROM range({n}) s(i)"
    address = run_duckdb(tmp_path / "a.duckdb", made)
    expected = [float(i * 7919 % n) for i in range(n)]
    assert rows_of(address, {"x": NUMBER}, tmp_path)["x"] == expected


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        # An index of x and label would give the rows in its own order.
        ("(label INT, x INT)", [3.0, 1.0, 2.0]),
        ("(label INT, x INT PRIMARY KEY) WITHOUT ROWID", [1.0, 2.0, 3.0]),
        ("(label INT, x INT, rowid INT)", [3.0, 1.0, 2.0]),
        ("(label INT, x INT, rowid INT, oid INT, _rowid_ INT, PRIMARY KEY (x))", [1.0, 2.0, 3.0]),
    ],
)
def test_rows_of_sqlite_come_by_rowid_or_key(tmp_path, columns, expected):
    address = run_sqlite(
        tmp_path / "a.db",
        f"CREATE TABLE t {columns}",
        "CREATE INDEX i ON t (x, label)",
        "INSERT INTO t (label, x) VALUES (0, 3), (1, 1), (0, 2)",
    )
    assert rows_of(address, {"x": NUMBER}, tmp_path)["x"] == expected


def test_hostile_names_and_values(tmp_path):
    quoted = '"' + HOSTILE.replace('"', '""') + '"'
    text = "'" + HOSTILE.replace("'", "''") + "'"
    statements = (
        f"CREATE TABLE {quoted} (label INT, {quoted} TEXT)",
        f"INSERT INTO {quoted} VALUES (0, {text}), (1, 'b')",
    )
    run_duckdb(tmp_path / "a.duckdb", *statements)
    run_sqlite(tmp_path / "a.db", *statements)
    for address in (
        f"duckdb://{tmp_path}/a.duckdb/{HOSTILE}",
        f"sqlite://{tmp_path}/a.db/{HOSTILE}",
    ):
        assert rows_of(address, {HOSTILE: TEXT}, tmp_path) == {HOSTILE: [HOSTILE, "b"]}


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.tuples(
            st.none() | st.text(st.characters(codec="utf-8"), max_size=5),
            st.none() | st.floats(allow_nan=False),
            st.none() | st.integers(-(2**63), 2**63 - 1),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_any_values_of_sqlite_come_back(tmp_path, rows):
    path = tmp_path / "any.db"
    path.unlink(missing_ok=True)
    address = run_sqlite(path, "CREATE TABLE t (t TEXT, r REAL, i INTEGER)", rows=rows)
    types = {"t": TEXT, "r": NUMBER, "i": TEXT}
    batches = stream_rows(DataConfig(train=address), address, types, label_required=False)
    found = pa.Table.from_batches(list(batches)).to_pylist()
    expected = [{"t": t or None, "r": r, "i": None if i is None else str(i)} for t, r, i in rows]
    assert found == expected


def state_of(address):
    data = DataConfig(train=address, label="label")
    return fingerprint_of(data, inspect_source(data), {"x": NUMBER}, seed=0, sensitive=())


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_a_changed_table_of_sqlite_is_noticed(tmp_path, mode):
    path = tmp_path / "a.db"
    address = run_sqlite(path, "CREATE TABLE t (label INT, x INT)", rows=[(0, 1), (1, 2)])
    writer = sqlite3.connect(path)
    with closing(writer):
        writer.execute(f"PRAGMA journal_mode={mode}")
        before = state_of(address)
        assert state_of(address) == before
        os.utime(path, ns=(0, 0))
        before = state_of(address)
        writer.execute("UPDATE t SET x = 5")
        writer.commit()
        assert state_of(address) != before
        batches = stream_rows(
            DataConfig(train=address), address, {"x": NUMBER}, label_required=False
        )
        assert pa.Table.from_batches(list(batches)).column("x").to_pylist() == [5.0, 5.0]


def test_a_changed_table_of_duckdb_is_noticed_in_its_log_too(tmp_path):
    path = tmp_path / "a.duckdb"
    address = run_duckdb(path, "CREATE TABLE t AS SELECT 0 AS label, 1 AS x")
    before = state_of(address)
    assert state_of(address) == before
    # A writer that dies leaves its log; the file itself stays as it was.
    body = (
        f"import duckdb, os; c = duckdb.connect({str(path)!r}); "
        "c.execute(\"SET wal_autocheckpoint='1GB'\"); c.execute('INSERT INTO t VALUES (1, 2)'); "
        "os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", body], check=True)
    assert path.with_name("a.duckdb.wal").stat().st_size
    assert state_of(address) != before
    assert rows_of(address, {"x": NUMBER}, tmp_path)["x"] == [1.0, 2.0]


def test_schemas_of_duckdb(tmp_path):
    path = tmp_path / "a.duckdb"
    address = run_duckdb(
        path,
        "CREATE TABLE t AS SELECT 0 AS label, 1 AS x",
        "CREATE SCHEMA ads",
        "CREATE TABLE ads.t AS SELECT 1 AS label, 2 AS x, 3 AS y",
        "CREATE TABLE ads.only AS SELECT 1 AS label, 2 AS z",
    )
    found = refusal(address)
    assert found.message == "several tables are named 't': ads.t, main.t"
    assert f"duckdb://{path}/ads.t" in found.remedy
    assert inspect(f"duckdb://{path}/ads.t").column_names == ("label", "x", "y")
    assert inspect(f"duckdb://{path}/main.t").column_names == ("label", "x")
    assert inspect(f"duckdb://{path}/only").column_names == ("label", "z")


def test_a_database_that_is_being_written_is_refused(tmp_path):
    path = tmp_path / "a.duckdb"
    address = run_duckdb(path, "CREATE TABLE t AS SELECT 0 AS label, 1 AS x")
    body = f"import duckdb; c = duckdb.connect({str(path)!r}); print(flush=True); input()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", body], stdin=pipe, stdout=pipe) as other:
        other.stdout.readline()
        assert "is open in another program" in refusal(address).message
        other.communicate(b"\n")
    assert inspect(address).column_names == ("label", "x")


def test_a_locked_sqlite_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.db"
    address = run_sqlite(path, "CREATE TABLE t (label INT, x INT)", rows=[(0, 1), (1, 2)])
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        monkeypatch.setattr(sqlite_file, "WAIT_SECONDS", 0.01)
        assert "is being written by another program" in refusal(address).message


@pytest.mark.parametrize("kind", ["duckdb", "sqlite"])
def test_what_is_no_table_is_refused(tmp_path, kind):
    run = run_duckdb if kind == "duckdb" else run_sqlite
    path = tmp_path / "a.db"
    run(
        path,
        "CREATE TABLE clicks (label INT, x INT)",
        "INSERT INTO clicks VALUES (0, 1), (1, 2)",
        "CREATE TABLE other (label INT, y INT)",
        "INSERT INTO other VALUES (0, 1)",
        "CREATE TABLE texts (label INT, x TEXT)",
        "INSERT INTO texts VALUES (0, 'a')",
        "CREATE TABLE vacant (label INT, x INT)",
        "CREATE VIEW seen AS SELECT * FROM clicks",
    )
    at = f"{kind}://{path}"
    found = refusal(f"{at}/click")
    assert "no table 'click'; there are 'clicks', " in found.message
    assert "Did you mean 'clicks'?" in found.remedy
    assert "is a view" in refusal(f"{at}/seen").message
    assert "has no rows" in refusal(f"{at}/vacant").message
    assert "lacks 'x'" in refusal(f"{at}/clicks", f"{at}/other").message
    assert "column 'x' has the type string" in refusal(f"{at}/clicks", f"{at}/texts").message
    assert "named twice" in refusal(f"{at}/clicks", f"{at}/clicks").message
    assert "names no table" in refusal(at).message
    assert "names no table" in refusal(f"{kind}://a.db").message
    assert "no such file" in refusal(f"{kind}://{tmp_path}/b.db/clicks").message
    assert "is a folder" in refusal(f"{kind}://{tmp_path}/clicks").message
    assert "files only" in refusal(f"{at}/clicks", "clicks.csv").remedy
    assert "data.columns is for files" in refusal(f"{at}/clicks", columns=("label", "x")).message
    assert "no column 'label_'" in refusal(f"{at}/clicks", label="label_").message
    other = "sqlite" if kind == "duckdb" else "duckdb"
    found = refusal(f"{other}://{path}/clicks")
    assert f"Write {kind}://{path}/clicks" in found.remedy
    # The file itself is not taken for text.
    assert f"Write {kind}://{path}/TABLE" in refusal(str(path)).remedy


@pytest.mark.parametrize("kind", ["duckdb", "sqlite"])
def test_damaged_files_are_refused(tmp_path, kind):
    run = run_duckdb if kind == "duckdb" else run_sqlite
    path = tmp_path / "a.db"
    values = ", ".join(f"({n % 2}, {n * 7919})" for n in range(20_000))
    run(path, "CREATE TABLE t (label INT, x INT)", f"INSERT INTO t VALUES {values}")
    content = path.read_bytes()
    for damaged in (content[:20] + b"x" * 500, content[: len(content) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="cannot be read as a"):
            rows_of(f"{kind}://{path}/t", {"x": NUMBER}, tmp_path)
    path.write_bytes(b"label,x\n0,1\n")
    assert "is not a" in refusal(f"{kind}://{path}/t").message


def test_a_virtual_table_is_refused(tmp_path):
    address = run_sqlite(tmp_path / "a.db", "CREATE VIRTUAL TABLE t USING fts5 (label, x)")
    assert "is a virtual table" in refusal(address).message


def test_a_text_that_holds_the_magic_of_a_database_is_still_a_text():
    assert engine_of(b"product,DUCK,label\na,b,1") is None
