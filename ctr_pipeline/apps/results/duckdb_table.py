"""Rows of results as a table of a DuckDB file: `duckdb://shop.duckdb/scores`."""

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from sqlglot import exp

from ctr_pipeline import durable
from ctr_pipeline.apps.results.target import ResultPlan
from ctr_pipeline.errors import DataError, RunFolderError

_CONFIG = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}
_TYPES = {pa.string(): "VARCHAR", pa.float32(): "FLOAT", pa.float64(): "DOUBLE"}
_ROWS = "rows_of_results"
_BATCH_ROWS = 65_536


class DuckDbTarget:
    """A table, in a file that is made where it is absent.

    Rows wait in a temporary file beside the database until all are known; then one transaction
    makes the table. So the data may be another table of the same file, and the database is locked
    for a moment only.
    """

    def __init__(self, address: str) -> None:
        path, slash, self._table = address.removeprefix("duckdb://").rpartition("/")
        if not (slash and path and self._table):
            raise DataError(
                f"'{address}' names no table",
                place="--output",
                remedy="Write the file and the table, such as duckdb://data/shop.duckdb/scores",
            )
        self._address = address
        self._file = Path(path).expanduser()

    def check(self, results: ResultPlan) -> None:
        """As `ResultTarget.check`; a table that exists must have the columns of the results."""
        results.require_other_data(self._address)
        if not self._file.parent.is_dir():
            raise RunFolderError(
                "its folder does not exist",
                place=str(self._file),
                remedy="Name a file in a folder that exists",
            )
        if not self._file.exists():
            return
        with self._connected(read_only=True) as connection:
            self._check_table(connection, results)

    def _check_table(self, connection: duckdb.DuckDBPyConnection, results: ResultPlan) -> None:
        tables = exp.select("table_type").from_("information_schema.tables")
        tables = tables.where("table_schema = 'main'", exp.column("table_name").eq(self._table))
        found = connection.sql(tables.sql("duckdb")).fetchall()
        if not found:
            return
        is_view = found[0] != ("BASE TABLE",)
        query = exp.select("*").from_(self._relation()).limit(0).sql("duckdb")
        described = connection.sql(query)
        there = list(zip(described.columns, map(str, described.types), strict=True))
        wanted = [(field.name, _TYPES[field.type]) for field in results.schema]
        if is_view or there != wanted:
            shown = ", ".join(f"{name} {kind}" for name, kind in there[:8])
            raise RunFolderError(
                "is a view" if is_view else f"is a table of other columns: {shown}",
                place=self._address,
                remedy="Name another table, or drop it first",
            )
        results.require_overwrite(self._address)

    def write(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """As `ResultTarget.write`."""
        with (
            durable.os_errors_explained(self._file),
            tempfile.NamedTemporaryFile(dir=self._file.parent, prefix=".results-") as waiting,
        ):
            with pq.ParquetWriter(waiting, schema) as writer:
                for batch in batches:
                    writer.write_batch(batch)
            waiting.flush()
            with self._connected(read_only=False) as connection:
                self._make_table(connection, schema, pq.ParquetFile(waiting.name))

    def _make_table(
        self, connection: duckdb.DuckDBPyConnection, schema: pa.Schema, rows: pq.ParquetFile
    ) -> None:
        columns = [
            exp.ColumnDef(
                this=exp.to_identifier(field.name, quoted=True),
                kind=exp.DataType.build(_TYPES[field.type]),
            )
            for field in schema
        ]
        made = exp.Create(
            this=exp.Schema(this=self._relation(), expressions=columns), kind="TABLE", replace=True
        )
        filled = exp.insert(exp.select("*").from_(_ROWS), self._relation())
        connection.begin()
        connection.execute(made.sql("duckdb"))
        for batch in rows.iter_batches(_BATCH_ROWS):
            connection.register(_ROWS, pa.Table.from_batches([batch]))
            connection.execute(filled.sql("duckdb"))
            connection.unregister(_ROWS)
        connection.commit()

    def _relation(self) -> exp.Table:
        return exp.table_(exp.to_identifier(self._table, quoted=True))

    @contextmanager
    def _connected(self, *, read_only: bool) -> Iterator[duckdb.DuckDBPyConnection]:
        """Raises DataError if the file is no database, or another process writes it."""
        try:
            with closing(
                duckdb.connect(str(self._file), read_only=read_only, config=_CONFIG)
            ) as connection:
                yield connection
        except duckdb.Error as error:
            reason = str(error).splitlines()[0]
            is_locked = "lock" in reason.lower()
            raise DataError(
                "another process uses the database"
                if is_locked
                else f"the database does not take the results ({reason})",
                place=str(self._file),
                remedy="Close what has it open, and try again"
                if is_locked
                else "Check the file, or name another output",
            ) from error
