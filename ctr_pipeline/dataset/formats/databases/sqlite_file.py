"""Tables in SQLite files: rows in the order of their rowid, or primary key where there is none.

In SQLite a value has a type, a column has an affinity. A column is read as what the values of its
first rows are; a value of another type later comes as its text, and is a bad row where that does
not fit its use, as in text files.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from sqlglot import exp

from ctr_pipeline.dataset.formats.databases.table import (
    DatabaseAddress,
    DatabaseTable,
    is_view,
    no_table,
)
from ctr_pipeline.dataset.limits import (
    BATCH_BYTES,
    LONGEST_VALUE_BYTES,
    check_num_columns,
    value_too_long,
)
from ctr_pipeline.errors import DataError

_ROWID_NAMES = ("rowid", "_rowid_", "oid")
_LOOKED_AT_ROWS = 20_000
WAIT_SECONDS = 10.0
"""For another program that writes."""

_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""What damage leads to: names in the messages of SQLite need not be UTF-8."""

_SHORT_BYTES = 4 << 10
"""Rows whose values are no longer are fetched many at a time, others one by one."""


def describe(table: DatabaseAddress) -> DatabaseTable:
    """What the table is.

    Raises:
        DataError: It is not there, a view or a virtual table, or cannot be read.
    """
    try:
        with closing(_connect(table)) as connection:
            master = (
                exp.select(exp.column("name"), exp.column("type"), exp.column("sql"))
                .from_("sqlite_master")
                .where(
                    exp.In(
                        this=exp.column("type"),
                        expressions=[exp.Literal.string("table"), exp.Literal.string("view")],
                    )
                )
                .order_by("1")
            )
            named = {
                _text(name): (_text(kind), _text(sql or b""))
                for name, kind, sql in connection.execute(master.sql("sqlite"))
            }
            if table.name not in named:
                raise no_table(table, [name for name in named if not name.startswith("sqlite_")])
            kind, sql = named[table.name]
            if kind == "view":
                raise is_view(table)
            if sql.upper().startswith("CREATE VIRTUAL"):
                raise DataError(
                    "is a virtual table, whose rows are elsewhere",
                    place=str(table),
                    remedy="Make a table of it: CREATE TABLE … AS SELECT * FROM it",
                )
            found = connection.execute(
                "SELECT name, type, pk FROM pragma_table_xinfo(?) "
                "WHERE hidden IN (0, 2, 3) ORDER BY cid",
                (table.name,),
            ).fetchall()
            columns = {_text(name): _text(declared or b"") for name, declared, _ in found}
            keys = sorted((place, _text(name)) for name, _, place in found if place)
            order = _order(connection, table, list(columns), [name for _, name in keys])
            source = DatabaseTable(table, (table.name,), order, pa.schema([]))
            check_num_columns(len(columns), table)
            head = next(_fetch(connection, source, list(columns), _LOOKED_AT_ROWS), [])
            values = list(zip(*head, strict=True)) if head else [()] * len(columns)
            types = [
                (name, _type_of(declared, seen))
                for (name, declared), seen in zip(columns.items(), values, strict=True)
            ]
            return DatabaseTable(table, (table.name,), order, pa.schema(types))
    except _ERRORS as error:
        raise _explain(table, error) from error


def count_rows(source: DatabaseTable) -> int:
    """How many rows the table has.

    Raises:
        DataError: It cannot be read.
    """
    query = exp.select(exp.Count(this=exp.Star())).from_(_relation(source.path.name))
    try:
        with closing(_connect(source.path)) as connection:
            return int(connection.execute(query.sql("sqlite")).fetchone()[0])
    except _ERRORS as error:
        raise _explain(source.path, error) from error


def read_batches(
    source: DatabaseTable, names: Sequence[str], num_rows: int
) -> Iterator[pa.RecordBatch]:
    """The rows, `num_rows` at most in a batch, with the columns `names`.

    Texts come as bytes, which need not be UTF-8.

    Raises:
        DataError: The table cannot be read.
    """
    kinds = [source.schema.field(name).type for name in names]
    try:
        with closing(_connect(source.path)) as connection:
            for rows in _fetch(connection, source, names, num_rows):
                columns = [
                    _array(values, kind)
                    for values, kind in zip(zip(*rows, strict=True), kinds, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(columns, names=list(names))
    except _ERRORS as error:
        raise _explain(source.path, error) from error


def _fetch(
    connection: sqlite3.Connection, source: DatabaseTable, names: Sequence[str], num_rows: int
) -> Iterator[list[tuple[Any, ...]]]:
    """The rows in order, as many at a time as fit into memory.

    SQLite gives rows out without a look at their size, and a column that is computed may make texts
    of any size from nothing. It is therefore told how long a value may be: as many rows are taken
    at once as fit if all values are so long, and one by one where some are longer.
    """
    query = _select(source, names)
    # Both statements below see the same rows.
    connection.execute("BEGIN")
    # Reads the schema, the text of which may be longer than a value.
    connection.execute(exp.select("1").from_(_relation(source.path.name)).limit(0).sql("sqlite"))
    step = max(1, min(num_rows, BATCH_BYTES // (_SHORT_BYTES * max(len(names), 1))))
    num_done = 0
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _SHORT_BYTES)
    cursor: sqlite3.Cursor | None = None
    while True:
        try:
            cursor = connection.execute(query) if cursor is None else cursor
            rows = cursor.fetchmany(step)
        except sqlite3.DataError:
            break
        if not rows:
            return
        num_done += len(rows)
        yield rows
    # All values of a row come at once.
    most = min(LONGEST_VALUE_BYTES, BATCH_BYTES // max(len(names), 1))
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, most)
    rows, num_bytes = [], 0
    try:
        for row in connection.execute(f"{query} LIMIT -1 OFFSET {num_done}"):
            rows.append(row)
            num_bytes += sum(len(value) for value in row if isinstance(value, bytes))
            if len(rows) == num_rows or num_bytes > BATCH_BYTES:
                num_done += len(rows)
                yield rows
                rows, num_bytes = [], 0
    except sqlite3.DataError as error:
        number = num_done + len(rows)
        name = _long_column(connection, source, names, number)
        raise value_too_long(source.path, name, most=most) from error
    if rows:
        yield rows


def _long_column(
    connection: sqlite3.Connection, source: DatabaseTable, names: Sequence[str], number: int
) -> str:
    """The first column whose value in a row, counted from 0, is too long."""
    for name in names:
        try:
            connection.execute(f"{_select(source, [name])} LIMIT 1 OFFSET {number}").fetchone()
        except sqlite3.DataError:
            return name
    return names[0]


def _connect(table: DatabaseAddress) -> sqlite3.Connection:
    path = quote(str(table.file.resolve()))
    # Blocks may be asked for by another thread than the one that began, never by two at a time.
    connection = sqlite3.connect(
        f"file:{path}?mode=ro", uri=True, check_same_thread=False, timeout=WAIT_SECONDS
    )
    connection.text_factory = bytes
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_VALUE_BYTES)
    # Expressions in the file call no function that could do harm.
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


def _order(
    connection: sqlite3.Connection,
    table: DatabaseAddress,
    names: Sequence[str],
    keys: Sequence[str],
) -> tuple[str, ...]:
    """What sorts the rows: one of the names of the rowid, or the columns of the primary key."""
    taken = {name.lower() for name in names}
    free = next((name for name in _ROWID_NAMES if name not in taken), None)
    if free is not None:
        query = exp.select(exp.column(free)).from_(_relation(table.name)).limit(0)
        try:
            connection.execute(query.sql("sqlite"))
        except sqlite3.OperationalError:
            # WITHOUT ROWID: there is a primary key.
            if not keys:
                raise
        else:
            return (free,)
    if not keys:
        raise DataError(
            f"all of {', '.join(_ROWID_NAMES)} are columns of it, so nothing tells the order of "
            "its rows",
            place=str(table),
            remedy="Give it a primary key, or rename one of them",
        )
    return tuple(keys)


def _select(source: DatabaseTable, names: Sequence[str]) -> str:
    # A quoted name that is no column would be a text: the rowid is not quoted.
    is_rowid = len(source.order) == 1 and source.order[0] in _ROWID_NAMES
    order = [exp.column(name, quoted=not is_rowid) for name in source.order]
    columns = [exp.column(name, quoted=True) for name in names]
    return exp.select(*columns).from_(_relation(source.path.name)).order_by(*order).sql("sqlite")


def _relation(name: str) -> exp.Table:
    return exp.table_(name, quoted=True)


def _type_of(declared: str, values: Sequence[Any]) -> pa.DataType:
    """A column's type by the values of its first rows; by its declaration if it has none there."""
    kinds = {type(value) for value in values if value is not None}
    if bytes in kinds:
        return pa.string()
    if float in kinds:
        return pa.float64()
    if int in kinds:
        return pa.int64()
    # No value: SQLite's own rules of affinity, in their order.
    name = declared.upper()
    if "INT" in name:
        return pa.int64()
    is_text = any(word in name for word in ("CHAR", "CLOB", "TEXT", "BLOB"))
    is_real = any(word in name for word in ("REAL", "FLOA", "DOUB"))
    return pa.float64() if is_real and not is_text else pa.string()


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """The values as numbers if all are; else, or if the column is one of texts, as bytes."""
    if pa.types.is_string(kind):
        return _texts(values)
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return _texts(values)


def _texts(values: Sequence[Any]) -> pa.Array:
    return pa.array(
        [
            value if value is None or isinstance(value, bytes) else repr(value).encode()
            for value in values
        ],
        pa.binary(),
    )


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _explain(table: DatabaseAddress, error: Exception) -> DataError:
    if "locked" in str(error):
        return DataError(
            "is being written by another program",
            place=str(table.file),
            remedy="Wait until it is done, or name a copy of the file",
        )
    return DataError(
        f"cannot be read as a SQLite database ({error})",
        place=str(table),
        remedy="Copy or write the file again",
    )
