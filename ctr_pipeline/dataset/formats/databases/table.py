"""Tables in database files: their names, and what is known of them.

`duckdb://data/shop.duckdb/clicks` and `sqlite:///var/data/shop.db/clicks`: what follows `://` is
the path of the file, relative or absolute, and then the table, in DuckDB `schema.table` where
several schemas have one of the name.
"""

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import pyarrow as pa

from ctr_pipeline.dataset.columns import ReadingPlan
from ctr_pipeline.dataset.data_files import stat_of
from ctr_pipeline.dataset.partitions import check_regular
from ctr_pipeline.dataset.source import WHOLE, Block, Range
from ctr_pipeline.errors import DataError

Engine = Literal["duckdb", "sqlite"]
SQLITE_MAGIC = b"SQLite format 3\0"
_DUCKDB_MAGIC = b"DUCK"
_DUCKDB_MAGIC_AT = 8
_DUCKDB_ZEROS = b"\0\0\0\0"
_DUCKDB_ZEROS_AT = 16
"""The upper half of the version, which a text that happens to hold the magic does not have."""
MAGIC_BYTES = 20
"""How many bytes of a file tell whether it is a database."""


@dataclass(frozen=True)
class DatabaseAddress:
    """A table in a database file.

    Attributes:
        engine: The database that wrote the file.
        file: The file.
        name: Name of the table, as the config has it.
    """

    engine: Engine
    file: Path
    name: str

    def __str__(self) -> str:
        return f"{self.engine}://{self.file}/{self.name}"


@dataclass(frozen=True)
class DatabaseTable:
    """A table, as inspection found it.

    Attributes:
        path: The table.
        relation: The parts of its name in the database.
        order: Columns that its rows are sorted by; empty: as they are stored.
    """

    path: DatabaseAddress
    relation: tuple[str, ...]
    order: tuple[str, ...]
    schema: pa.Schema

    @property
    def column_names(self) -> tuple[str, ...]:
        """Of all its columns, in its order."""
        return tuple(self.schema.names)

    def size_bytes(self) -> int:
        """Of the whole file.

        Raises:
            OSError: It is gone.
        """
        return self.path.file.stat().st_size

    def known_rows(self) -> int | None:
        """None: the database is not asked before rows are read."""
        return None

    def ranges(self, unit_bytes: int | None) -> list[Range]:
        """As `SourceFile.ranges`: always the whole."""
        return [WHOLE]

    def read(self, part: Range, plan: ReadingPlan, block_bytes: int) -> Iterator[Block]:
        """As `SourceFile.read`."""
        # sqlglot and DuckDB are imported only where a database is read.
        from ctr_pipeline.dataset.formats.databases.inspection import read_database_blocks

        return read_database_blocks(self, plan)

    def state(self) -> tuple[str | int, ...]:
        """Changes when the file or what is still in its log of writes does.

        Raises:
            DataError: The file is gone.
        """
        file = self.path.file
        log = file.with_name(f"{file.name}{'.wal' if self.path.engine == 'duckdb' else '-wal'}")
        stat = stat_of(file)
        facts = (str(file.resolve()), ".".join(self.relation), stat.st_size, stat.st_mtime_ns)
        try:
            written = log.stat()
        except FileNotFoundError:
            return facts
        # An empty log may be the reader's own.
        return (*facts, written.st_size, written.st_mtime_ns) if written.st_size else facts


def is_database_address(text: str) -> bool:
    """Whether a path of the config is meant as a table of a database file."""
    return text.startswith(tuple(f"{engine}://" for engine in get_args(Engine)))


def engine_of(magic: bytes) -> Engine | None:
    """Whose database a file is, by its first `MAGIC_BYTES` bytes; None if it is none."""
    if magic.startswith(SQLITE_MAGIC):
        return "sqlite"
    is_duckdb = (
        magic[_DUCKDB_MAGIC_AT:].startswith(_DUCKDB_MAGIC)
        and magic[_DUCKDB_ZEROS_AT:] == _DUCKDB_ZEROS
    )
    return "duckdb" if is_duckdb else None


def parse_database_address(text: str, key: str) -> DatabaseAddress:
    """The table that an address names; its file is a database of that kind.

    Args:
        text: As in the config.
        key: The config key, for messages.

    Raises:
        DataError: It names no file and table, or the file is missing or no such database.
    """
    scheme, _, rest = text.partition("://")
    engine: Engine = "sqlite" if scheme == "sqlite" else "duckdb"
    path, slash, name = rest.rpartition("/")
    if not (slash and path and name) or Path(rest).expanduser().is_file():
        raise DataError(
            f"'{text}' names no table",
            place=key,
            remedy=f"Write the file and the table, such as {engine}://data/shop.db/clicks",
        )
    file = Path(path).expanduser()
    if file.is_dir() or not file.exists():
        raise DataError(
            f"'{file}' is a folder, not a database" if file.is_dir() else f"no such file: '{file}'",
            place=key,
            remedy=f"Write the file and the table, such as {engine}://data/shop.db/clicks; paths "
            "are relative to the folder the command runs in",
        )
    check_regular(file, key)
    try:
        with file.open("rb") as stream:
            found = engine_of(stream.read(MAGIC_BYTES))
    except OSError as error:
        raise DataError(
            f"cannot be read ({error.strerror})",
            place=str(file),
            remedy="Check the file and its permissions",
        ) from error
    if found != engine:
        wanted = "DuckDB" if engine == "duckdb" else "SQLite"
        raise DataError(
            f"is not a {wanted} database" if found is None else f"is a database of {found}",
            place=str(file),
            remedy=f"Name a database of {wanted}"
            if found is None
            else f"Write {found}://{file}/{name}",
        )
    return DatabaseAddress(engine, file, name)


def no_table(table: DatabaseAddress, names: Sequence[str]) -> DataError:
    """The database has no such table, but these."""
    near = difflib.get_close_matches(table.name, names, n=3, cutoff=0.5)
    shown = ", ".join(f"'{name}'" for name in names[:8])
    dots = ", …" if len(names) > 8 else ""
    remedy = "Name one of its tables"
    if near:
        remedy = "Did you mean " + " or ".join(f"'{name}'" for name in near) + "?"
    return DataError(
        f"no table '{table.name}'; there are {shown}{dots}"
        if names
        else f"no table '{table.name}', and no other one",
        place=str(table.file),
        remedy=remedy,
    )


def is_view(table: DatabaseAddress) -> DataError:
    """The name is one of a view."""
    return DataError(
        "is a view, and rows of a view have no order that stays",
        place=str(table),
        remedy="Make a table of it: CREATE TABLE … AS SELECT * FROM the view",
    )
