"""Tables in DuckDB files: rows as DuckDB gives them to Arrow, in the order they are stored in.

The file is opened read-only, and no query may reach another one.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing

import duckdb
import pyarrow as pa
from sqlglot import exp

from ctr_pipeline.dataset.databases.table import DatabaseSource, DatabaseTable, is_view, no_table
from ctr_pipeline.errors import DataError

_CONFIG = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    # Several threads would give out the same rows in the same order, and hold more of them.
    "threads": "1",
    "preserve_insertion_order": "true",
}


def describe(table: DatabaseTable) -> DatabaseSource:
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
            query = exp.select("*").from_(_relation(found[0])).limit(0).sql("duckdb")
            schema = connection.sql(query).to_arrow_reader(1).schema
            return DatabaseSource(table, found[0], (), schema)
    except (duckdb.Error, pa.ArrowException) as error:
        raise _explain(table, error) from error


def count_rows(source: DatabaseSource) -> int:
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
    source: DatabaseSource, names: Sequence[str], num_rows: int
) -> Iterator[pa.RecordBatch]:
    """The rows, `num_rows` at most in a batch, with the columns `names`.

    Raises:
        DataError: The table cannot be read.
    """
    columns = [exp.column(name, quoted=True) for name in names]
    query = exp.select(*columns).from_(_relation(source.relation)).sql("duckdb")
    try:
        with (
            closing(_connect(source.path)) as connection,
            closing(connection.sql(query).to_arrow_reader(num_rows)) as reader,
        ):
            for batch in reader:
                yield pa.RecordBatch.from_arrays(batch.columns, names=list(names))
    except (duckdb.Error, pa.ArrowException) as error:
        raise _explain(source.path, error) from error


def _connect(table: DatabaseTable) -> duckdb.DuckDBPyConnection:
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


def _explain(table: DatabaseTable, error: Exception) -> DataError:
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
