"""Tables in DuckDB files: rows as DuckDB gives them to Arrow, in the order they are stored in.

The file is opened read-only, and no query may reach another one.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing

import duckdb
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
    UNFOLDED_BYTES,
    check_num_columns,
    value_too_long,
)
from ctr_pipeline.errors import DataError

_CONFIG = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    # Several threads would give out the same rows in the same order, and hold more of them.
    "threads": "1",
    "preserve_insertion_order": "true",
    "memory_limit": f"{UNFOLDED_BYTES >> 20}MiB",
}
_VALUE_BYTES = 16
_VECTOR_ROWS = 2048
"""DuckDB gives out no fewer rows at once to Arrow."""


def describe(table: DatabaseAddress) -> DatabaseTable:
    """What the table is.

    Raises:
        DataError: It is not there, in several schemas, a view, or cannot be read.
    """
    try:
        with closing(_connect(table)) as connection:
            named = {
                (str(schema), str(name)): bool(viewed)
                for schema, name, viewed in connection.sql(_names().sql("duckdb")).fetchall()
            }
            found = [names for names in named if table.name in {names[1], f"{names[0]}.{names[1]}"}]
            if not found:
                raise no_table(table, [_shown(*names) for names in named])
            if len(found) > 1:
                shown = [f"{schema}.{name}" for schema, name in sorted(found)]
                raise DataError(
                    f"several tables are named '{table.name}': {', '.join(shown)}",
                    place=str(table.file),
                    remedy="Name the schema, such as "
                    + f"{table.engine}://{table.file}/{shown[0]}",
                )
            if named[found[0]]:
                raise is_view(table)
            _check_stored(connection, table, found[0])
            query = exp.select("*").from_(_relation(found[0])).limit(0).sql("duckdb")
            schema = connection.sql(query).to_arrow_reader(1).schema
            check_num_columns(len(schema), table)
            return DatabaseTable(table, found[0], (), schema)
    except (duckdb.Error, pa.ArrowException) as error:
        raise _explain(table, error) from error


def count_rows(source: DatabaseTable) -> int:
    """How many rows the table has.

    Raises:
        DataError: It cannot be read.
    """
    query = exp.select(exp.Count(this=exp.Star())).from_(_relation(source.relation))
    try:
        with closing(_connect(source.path)) as connection:
            return int(connection.sql(query.sql("duckdb")).fetchall()[0][0])
    except duckdb.Error as error:
        raise _explain(source.path, error) from error


def read_batches(
    source: DatabaseTable, names: Sequence[str], num_rows: int
) -> Iterator[pa.RecordBatch]:
    """The rows, `num_rows` at most in a batch, with the columns `names`.

    Raises:
        DataError: The table cannot be read.
    """
    columns = [exp.column(name, quoted=True) for name in names]
    query = exp.select(*columns).from_(_relation(source.relation)).sql("duckdb")
    try:
        with closing(_connect(source.path)) as connection:
            step = min(num_rows, BATCH_BYTES // _longest_row(connection, source, names))
            if step < min(num_rows, _VECTOR_ROWS):
                yield from _read_few(connection, query, source.schema, names, max(step, 1))
                return
            with closing(connection.sql(query).to_arrow_reader(step)) as reader:
                for batch in reader:
                    yield pa.RecordBatch.from_arrays(batch.columns, names=list(names))
    except (duckdb.Error, pa.ArrowException) as error:
        raise _explain(source.path, error) from error


def _check_stored(
    connection: duckdb.DuckDBPyConnection, table: DatabaseAddress, names: Sequence[str]
) -> None:
    """Raises DataError if an expression of the file computes values of a column."""
    schema, name = names
    query = (
        exp.select(exp.column("column_name"))
        .from_(exp.table_("columns", db="information_schema"))
        .where(
            exp.EQ(this=exp.column("table_schema"), expression=exp.Literal.string(schema)),
            exp.EQ(this=exp.column("table_name"), expression=exp.Literal.string(name)),
            exp.EQ(this=exp.column("is_generated"), expression=exp.Literal.string("ALWAYS")),
        )
        .limit(1)
    )
    for (column,) in connection.sql(query.sql("duckdb")).fetchall():
        raise DataError(
            "is computed by an expression in the file, which may make values of any size",
            place=f"{table}, column '{column}'",
            remedy="Make a table of it: CREATE TABLE … AS SELECT * FROM it",
        )


def _longest_row(
    connection: duckdb.DuckDBPyConnection, source: DatabaseTable, names: Sequence[str]
) -> int:
    """What a row takes at most, by the longest text of each column.

    Texts that repeat take little room in the file, so that its size bounds nothing.

    Raises:
        DataError: A text is too long.
    """
    kinds = {name: source.schema.field(name).type for name in names}
    texts = [
        name for name, kind in kinds.items() if pa.types.is_string(kind) or pa.types.is_binary(kind)
    ]
    longest = [0] * len(texts)
    if texts:
        lengths = [
            exp.Max(this=_length_of(name, is_bytes=pa.types.is_binary(kinds[name])))
            for name in texts
        ]
        query = exp.select(*lengths).from_(_relation(source.relation)).sql("duckdb")
        (found,) = connection.sql(query).fetchall()
        longest = [int(length or 0) for length in found]
    for name, length in zip(texts, longest, strict=True):
        if length > LONGEST_VALUE_BYTES:
            raise value_too_long(source.path, name, length)
    return sum(longest) + _VALUE_BYTES * len(names)


def _length_of(name: str, *, is_bytes: bool) -> exp.Expression:
    """The bytes of a text; of types that Arrow gets as texts, such as UUID, those of that text."""
    column = exp.column(name, quoted=True)
    if is_bytes:
        return exp.Anonymous(this="octet_length", expressions=[exp.cast(column, "BLOB")])
    return exp.Anonymous(this="strlen", expressions=[exp.cast(column, "TEXT")])


def _read_few(
    connection: duckdb.DuckDBPyConnection,
    query: str,
    schema: pa.Schema,
    names: Sequence[str],
    num_rows: int,
) -> Iterator[pa.RecordBatch]:
    """Rows in batches that are smaller than those DuckDB makes for Arrow."""
    result = connection.execute(query)
    wanted = pa.schema([schema.field(name) for name in names])
    while rows := result.fetchmany(num_rows):
        columns = [
            pa.array(values, kind)
            for values, kind in zip(zip(*rows, strict=True), wanted.types, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=wanted)


def _connect(table: DatabaseAddress) -> duckdb.DuckDBPyConnection:
    return duckdb.connect(str(table.file), read_only=True, config=_CONFIG)


def _names() -> exp.Expression:
    """Schema and name of every table and view of the file, and which are views."""
    return (
        exp.select(
            exp.column("table_schema"),
            exp.column("table_name"),
            exp.EQ(this=exp.column("table_type"), expression=exp.Literal.string("VIEW")),
        )
        .from_(exp.table_("tables", db="information_schema"))
        .order_by("1", "2")
    )


def _relation(names: Sequence[str]) -> exp.Table:
    schema, name = names
    return exp.table_(name, db=schema, quoted=True)


def _shown(schema: str, name: str) -> str:
    return name if schema == "main" else f"{schema}.{name}"


def _explain(table: DatabaseAddress, error: Exception) -> DataError:
    text = str(error).splitlines()[0].partition(" See also")[0].rstrip(". ")
    if "set lock" in text:
        return DataError(
            "is open in another program, which may write to it",
            place=str(table.file),
            remedy="Close it there, or name a copy of the file",
        )
    if "different configuration" in text:
        return DataError(
            "is open in this process already",
            place=str(table.file),
            remedy="Close that connection, or name a copy of the file",
        )
    return DataError(
        f"cannot be read as a DuckDB database ({text})",
        place=str(table),
        remedy="Copy or write the file again; a newer DuckDB may have written it",
    )
