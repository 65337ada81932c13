"""Rows of a SELECT that another database executes, through its ADBC driver.

A database tells no version of its rows. So all of them are fetched once, in one transaction that
only reads, into a temporary file that is gone when the command ends; their checksum is the version.
"""

import hashlib
import os
import re
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from ctr_pipeline.config.models import ConnectionConfig
from ctr_pipeline.dataset.formats.query.reading import SelectedRows
from ctr_pipeline.dataset.limits import check_num_columns, check_values
from ctr_pipeline.dataset.statement import Query, check_names
from ctr_pipeline.durable import os_errors_explained
from ctr_pipeline.errors import DataError

_READ_ONLY = {"postgresql": "SET TRANSACTION READ ONLY", "sqlite": "PRAGMA query_only = ON"}
"""Statements after which a connection writes nothing, by driver."""
_DIALECTS = {
    "bigquery": "bigquery",
    "postgresql": "postgres",
    "snowflake": "snowflake",
    "sqlite": "sqlite",
}
"""sqlglot's names of the SQL of drivers; that of others is read as standard SQL."""
_BATCH_ROWS = 32_768
_MESSAGE_CHARACTERS = 300


@dataclass(frozen=True)
class DatabaseRows(SelectedRows):
    """The rows of a SELECT of another database.

    Attributes:
        connection: Where it is executed.
    """

    connection: ConnectionConfig
    _fetched: "_FetchedRows" = field(repr=False, compare=False)

    def size_bytes(self) -> int:
        """Bytes of the rows once they are fetched; 0 before."""
        return self._fetched.size_bytes

    def state(self) -> tuple[str | int, ...]:
        """The text and a checksum of the rows; fetches them.

        Raises:
            DataError: The SELECT fails.
        """
        return (self.path.text, self.connection.driver, self._fetched.fetch().checksum)

    def batches(
        self, names: Sequence[str], most_rows: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows in order.

        Args:
            names: The columns.
            most_rows: Only the first ones, for which the rest is not fetched; None: all.

        Raises:
            DataError: The SELECT fails, or a value is too long.
        """
        left = most_rows
        for batch in self._fetched.read() if left is None else self._fetched.first():
            check_values(batch, self.path)
            wanted = batch if left is None else batch.slice(0, left)
            yield wanted.select(list(names))
            if left is not None:
                left -= wanted.num_rows
                if left == 0:
                    return


def describe(query: Query, connection: ConnectionConfig) -> DatabaseRows:
    """The columns of a SELECT; executes it for no row.

    Raises:
        DataError: The driver or the address of the database is missing, it is no SELECT or fails,
            or columns lack a name of their own.
    """
    query = replace(query, dialect=_DIALECTS.get(connection.driver, ""))
    query.require_reading()
    fetched = _FetchedRows(query, connection)
    schema = fetched.describe()
    check_names(query, schema.names)
    check_num_columns(len(schema.names), query)
    return DatabaseRows(query, schema, connection, fetched)


class _FetchedRows:
    """The rows of a SELECT in a temporary file, once they are asked for."""

    def __init__(self, query: Query, connection: ConnectionConfig) -> None:
        self._query = query
        self._connection = connection
        self._file: Path | None = None
        self._lock = threading.Lock()
        self.checksum = ""
        self.size_bytes = 0

    def fetch(self) -> "_FetchedRows":
        """Executes the SELECT, the first time."""
        with self._lock:
            if self._file is None:
                folder = Path(tempfile.mkdtemp(prefix="ctrpipe-query-"))
                weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
                file = folder / "rows.arrow"
                self._write(file)
                with file.open("rb") as written:
                    self.checksum = hashlib.file_digest(written, "sha256").hexdigest()
                self.size_bytes = file.stat().st_size
                self._file = file
        return self

    def _write(self, file: Path) -> None:
        with (
            self._executed() as rows,
            os_errors_explained(file),
            pa.ipc.new_file(str(file), _plain_schema(rows.schema)) as writer,
        ):
            for batch in rows:
                writer.write_batch(_plain(batch))

    def describe(self) -> pa.Schema:
        """The columns; fetches no row."""
        with self._executed() as rows:
            return _plain_schema(rows.schema)

    def first(self) -> Iterator[pa.RecordBatch]:
        """The rows as they come, for those who stop early."""
        with self._executed() as rows:
            yield from map(_plain, rows)

    def read(self) -> Iterator[pa.RecordBatch]:
        """All rows."""
        self.fetch()
        with pa.OSFile(str(self._file)) as file:
            reader = pa.ipc.open_file(file)
            for index in range(reader.num_record_batches):
                batch = reader.get_batch(index)
                for first in range(0, batch.num_rows, _BATCH_ROWS):
                    yield batch.slice(first, _BATCH_ROWS)

    @contextmanager
    def _executed(self) -> Iterator[pa.RecordBatchReader]:
        driver = _load_driver(self._connection)
        uri = _address_of(self._connection)
        if self._connection.driver == "sqlite":
            _require_file(uri, self._connection)
        error = import_module("adbc_driver_manager").Error
        try:
            with driver.connect(uri) as connection, connection.cursor() as cursor:
                if self._connection.driver in _READ_ONLY:
                    cursor.execute(_READ_ONLY[self._connection.driver])
                cursor.execute(self._query.text)
                yield cursor.fetch_record_batch()
        except (error, OSError, pa.ArrowException) as failure:
            # The cause is left out: it may hold the address.
            raise _explain(failure, self._query, self._connection, uri) from None


def _load_driver(connection: ConnectionConfig) -> Any:
    package = f"adbc_driver_{connection.driver}"
    try:
        return import_module(f"{package}.dbapi")
    except ImportError:
        raise DataError(
            f"there is no ADBC driver '{connection.driver}' here",
            place="data.connection.driver",
            remedy=f"Run: pip install {package.replace('_', '-')}; among the drivers are "
            "postgresql, sqlite, snowflake and flightsql",
        ) from None


def _address_of(connection: ConnectionConfig) -> str:
    uri = os.environ.get(connection.uri_env or "")
    if not uri:
        raise DataError(
            f"the variable {connection.uri_env} of the environment is not set, and it names the "
            "database",
            place="data.connection.uri_env",
            remedy=f"export {connection.uri_env}=…, such as postgresql://user@host:5432/database",
        )
    return uri


def _require_file(uri: str, connection: ConnectionConfig) -> None:
    """Raises DataError where SQLite would make the file that it does not find."""
    if not uri.startswith("file:") and not Path(uri).is_file():
        raise DataError(
            "there is no such file",
            place=f"data.connection, {connection.driver}",
            remedy=f"Check the path in {connection.uri_env}; it is relative to the folder that the "
            "command runs in",
        )


def _explain(failure: Exception, query: Query, connection: ConnectionConfig, uri: str) -> DataError:
    """What the database says, in a line and without the address."""
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
    said = re.sub(r"^[A-Z_]+: (\[\w+\] )?", "", lines[0] if lines else type(failure).__name__)
    for secret in (uri, urlsplit(uri).password or ""):
        said = said.replace(secret, "…") if secret else said
    said = said[:_MESSAGE_CHARACTERS].rstrip(". ")
    if re.search(r"connect|failed to open|unable to open|not a database", said, re.IGNORECASE):
        return DataError(
            f"the database does not answer ({said})",
            place=f"data.connection, {connection.driver}",
            remedy=f"Check the address in {connection.uri_env} and that the database runs",
        )
    return DataError(f"fails: {said}", place=query.key, remedy="Try it in a client of the database")


def _plain_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([(field.name, _plain_type(field.type)) for field in schema])


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """NUMERIC, which comes as a text, is a number; what else Arrow has no type for is a text."""
    if not isinstance(kind, pa.BaseExtensionType):
        return kind
    return pa.float64() if getattr(kind, "type_name", "") == "numeric" else kind.storage_type


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [
        (column.storage if isinstance(column, pa.ExtensionArray) else column).cast(
            _plain_type(column.type)
        )
        for column in batch.columns
    ]
    return pa.record_batch(columns, schema=_plain_schema(batch.schema))
