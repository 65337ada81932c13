"""Executes a SELECT in an embedded DuckDB: what its columns are, and its rows.

DuckDB runs in one thread. Several would give rows without an order as they come, and sums of floats
with other last digits: a run would no longer be a function of its data. Nothing is written, no
extension is fetched, and what does not fit into memory is spilled into a temporary folder.
"""

import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
from sqlglot import exp

from ctr_pipeline.dataset.arrow_columns import RecordBlock, check_type
from ctr_pipeline.dataset.columns import ReadingPlan
from ctr_pipeline.dataset.data_files import DataFile, size_of, state_of
from ctr_pipeline.dataset.formats.query.csv_types import NOT_WHOLE, type_csv
from ctr_pipeline.dataset.limits import check_num_columns, check_values
from ctr_pipeline.dataset.source import WHOLE, Block, Range
from ctr_pipeline.dataset.statement import Query, check_names
from ctr_pipeline.errors import DataError
from ctr_pipeline.machine import memory_bytes
from ctr_pipeline.storage.opening import open_object_filesystem

_MEMORY_SHARE = 0.25
_BATCH_ROWS = 32_768
_CSV_VALUE = re.compile(
    r"CSV Error on Line: (\d+).*^Error when converting column \"(.+?)\"\. (.+?)\s*$.*"
    r"^  file = (.+?)$",
    re.DOTALL | re.MULTILINE,
)


def tables_of(file: Path) -> list[str]:
    """Names of the tables and views of a DuckDB database, quoted where SQL wants it.

    Raises:
        DataError: It cannot be opened.
    """
    try:
        with duckdb.connect(str(file), read_only=True) as connection:
            found = connection.execute(
                "SELECT table_schema, table_name FROM information_schema.tables ORDER BY ALL"
            ).fetchall()
    except duckdb.Error as error:
        raise DataError(
            f"is a DuckDB database that cannot be opened ({error})",
            place=str(file),
            remedy="Close what writes it, or write it again with this version of DuckDB",
        ) from error
    return [
        exp.Table(
            this=exp.to_identifier(name),
            db=None if schema == "main" else exp.to_identifier(schema),
        ).sql("duckdb")
        for schema, name in found
    ]


@dataclass(frozen=True)
class SelectedRows(ABC):
    """The rows of a SELECT.

    Attributes:
        path: The SELECT.
        schema: Its columns.
    """

    path: Query
    schema: pa.Schema

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the columns, in the order of the SELECT."""
        return tuple(self.schema.names)

    def known_rows(self) -> int | None:
        """None: only executing it tells."""
        return None

    @abstractmethod
    def size_bytes(self) -> int:
        """Bytes of what is read, as far as it is known."""

    @abstractmethod
    def batches(
        self, names: Sequence[str], most_rows: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows in order.

        Args:
            names: The columns.
            most_rows: Only the first ones; None: all.

        Raises:
            DataError: The SELECT fails, or a value is too long.
        """

    def ranges(self, unit_bytes: int | None) -> list[Range]:
        """As `SourceFile.ranges`: always the whole."""
        return [WHOLE]

    def read(self, part: Range, plan: ReadingPlan, block_bytes: int) -> Iterator[Block]:
        """As `SourceFile.read`; the position is an estimate, as only the end is known."""
        for name in plan.names:
            check_type(self.path, self.schema.field(name).type, name, plan)
        position, size = 0, None
        for batch in self.batches(plan.names):
            # Known at the latest once there is a batch.
            size = self.size_bytes() if size is None else size
            position = min(size, position + batch.nbytes)
            yield RecordBlock(self.path, batch, position)


@dataclass(frozen=True)
class QueryRows(SelectedRows):
    """The rows of a SELECT that DuckDB executes.

    Attributes:
        attached: Database files by the name that the SELECT gives them.
        files: What it reads, as far as it names it, and the databases.
        typed: The SELECT with the types of CSV files.
    """

    attached: Mapping[str, Path]
    files: tuple[DataFile, ...]
    typed: str

    def size_bytes(self) -> int:
        """Bytes of the files that it names.

        Raises:
            OSError: One is gone.
        """
        return sum(size_of(file) for file in self.files)

    def state(self) -> tuple[str | int, ...]:
        """Changes with its text and with any of the files it reads.

        Raises:
            DataError: One is gone.
        """
        # Asked anew: a glob may match more by now.
        read = _files_of(self.path, self.attached)
        paths = [file for file in read if isinstance(file, Path)]
        # Beside a database lies what DuckDB has not yet written into it.
        logs = [file.with_name(f"{file.name}.wal") for file in paths]
        files = [*read, *(log for log in logs if log.exists())]
        return (self.path.text, *(fact for file in files for fact in state_of(file)))

    def batches(
        self, names: Sequence[str], most_rows: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """As `SelectedRows.batches`."""
        with _opened(self.path, self.attached) as connection:
            rows = connection.sql(self.typed)
            chosen = rows.select(*[duckdb.ColumnExpression(name) for name in names])
            wanted = chosen if most_rows is None else chosen.limit(most_rows)
            for batch in wanted.to_arrow_reader(_BATCH_ROWS):
                check_values(batch, self.path)
                yield batch


def describe(query: Query, attached: Mapping[str, Path]) -> QueryRows:
    """The columns of a SELECT; executes it for no row.

    Raises:
        DataError: It is no single SELECT, cannot be executed or repeated, or columns lack a name of
            their own.
    """
    with _opened(query, attached) as connection:
        # First: what DuckDB would say of an object that cannot be read is a traceback.
        files = _files_of(query, attached)
        typed = type_csv(
            query.text,
            lambda text, values: connection.execute(text, values).fetchall()[0][0],
            lambda text: connection.sql(text).to_arrow_table(),
            query.key,
        )
        rows = connection.sql(typed)
        query.check_repeatable()
        names = list(rows.columns)
        check_names(query, names)
        check_num_columns(len(names), query)
        schema = rows.limit(0).to_arrow_reader(1).schema
    return QueryRows(query, schema, attached, files, typed)


def _files_of(query: Query, attached: Mapping[str, Path]) -> tuple[DataFile, ...]:
    return tuple(dict.fromkeys((*query.files(), *attached.values())))


@contextmanager
def _opened(query: Query, attached: Mapping[str, Path]) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection that sees all that the SELECT reads; what fails within is its failure."""
    # `memory_bytes` is what this process may use; the rest of the run needs the larger part.
    memory = round(memory_bytes() * _MEMORY_SHARE) >> 20
    with (
        tempfile.TemporaryDirectory(prefix="ctrpipe-query-") as spill_folder,
        duckdb.connect(
            config={
                "threads": "1",
                "preserve_insertion_order": "true",
                "autoinstall_known_extensions": "false",
                "memory_limit": f"{memory}MiB",
                "temp_directory": spill_folder,
            }
        ) as connection,
    ):
        try:
            _require_select(connection, query)
            for name, file in (query.databases() | {**attached}).items():
                connection.execute(_attach(name, file))
            for address in query.objects():
                connection.register_filesystem(open_object_filesystem(address))
            yield connection
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            # An OSError is what Arrow makes of an error amid the rows.
            raise _explain(query, error) from error


def _require_select(connection: duckdb.DuckDBPyConnection, query: Query) -> None:
    """Raises DataError unless DuckDB reads one SELECT; duckdb.Error where it can read nothing."""
    statements = connection.extract_statements(query.text)
    if len(statements) != 1:
        raise DataError(
            f"has {len(statements)} statements, and one SELECT is a source of rows",
            place=query.key,
            remedy="Keep the SELECT; prepare tables and views before the run",
        )
    if statements[0].type is not duckdb.StatementType.SELECT:
        raise DataError(
            f"is no SELECT but {statements[0].type.name}, and a source only reads",
            place=query.key,
            remedy="Write a SELECT",
        )


def _attach(name: str, file: Path) -> str:
    named = exp.alias_(
        exp.Literal.string(str(file)), exp.to_identifier(name, quoted=True), table=False
    )
    read_only = exp.AttachOption(this=exp.var("READ_ONLY"))
    return exp.Attach(this=named, expressions=[read_only]).sql("duckdb")


def _explain(query: Query, error: Exception) -> DataError:
    """What DuckDB says, in a line, and where in the text."""
    lines = str(error).splitlines()
    is_of_store = "Traceback (most recent call last)" in lines[0]
    if is_of_store:
        # The last line is the error.
        lines = [line for line in lines if line.strip()][-1:]
    message = lines[0].partition(": ")[2] or lines[0]
    near = re.search(r"^LINE (\d+):", str(error), re.MULTILINE)
    # DuckDB also numbers lines of its own, where it rewrote the query.
    is_own = near is not None and int(near[1]) <= len(query.text.splitlines())
    where = f" at line {near[1]}" if near is not None and is_own else ""
    hint = next((line for line in lines[1:] if line.startswith(("Candidate", "Did you"))), "")
    remedy = hint.strip() or "Try it with the command line of DuckDB"
    if NOT_WHOLE in message:
        message, _, remedy = message.partition(". ")
    elif found := _CSV_VALUE.search(str(error)):
        message = f"line {found[1]} of '{found[4]}', column '{found[2]}': {found[3]}"
        remedy = f"Name its type, as in read_csv('FILE', types = {{'{found[2]}': 'VARCHAR'}})"
    elif re.search("explicit (type )?cast", str(error)):
        remedy = (
            "Texts of CSV files are texts here: write CAST(column AS TIMESTAMP), or name the type, "
            "as in read_csv('FILE', types = {'column': 'TIMESTAMP'})"
        )
    elif "extension" in str(error):
        extension = re.search(r"INSTALL (\w+)", str(error))
        name = extension[1] if extension else ""
        message = f"needs the extension {name} of DuckDB, which is not installed"
        remedy = f"Install it once with the command line of DuckDB: INSTALL {name}"
    elif "No files found" in message:
        remedy = "Paths are relative to the folder that the command runs in"
    elif "set lock" in message:
        message = "a database of data.attach is open in another program, which may write to it"
        remedy = "Close it there, or attach a copy of the file"
    elif is_of_store:
        remedy = "Check the address, the network and the store's credentials"
    elif "read-only mode" in message:
        message = "it changes a database, and a source only reads"
        remedy = "Leave out what changes it, such as nextval"
    elif "Values were not provided" in message:
        message = "it has parameters, and nothing gives them values"
        remedy = "Write the values into the query"
    elif isinstance(error, duckdb.OutOfMemoryException):
        remedy = "Select fewer columns or rows, or give the machine more memory or disk"
    return DataError(f"fails{where}: {message.rstrip('.!')}", place=query.key, remedy=remedy)
