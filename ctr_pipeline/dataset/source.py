"""What a source of rows is, and what a format of sources answers.

A source is one or more files or tables of one format. The format inspects them; each one is then
read by itself, as a whole or in ranges. `inspection` finds the format; `formats` lists all formats.
"""

import difflib
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple, Protocol

import pyarrow as pa

from ctr_pipeline.config.models import DataConfig
from ctr_pipeline.dataset.columns import ParsedBlock, ReadingPlan
from ctr_pipeline.dataset.data_files import DataFile, size_of, state_of
from ctr_pipeline.errors import DataError
from ctr_pipeline.features import ListSpec
from ctr_pipeline.progress import Progress
from ctr_pipeline.specs.columns import ColumnType

HEAD_BYTES = 4 << 20
"""How much of the first file is looked at where rows are found by reading."""
OTHER_HEAD_BYTES = 64 << 10
"""How much of every other file."""
HEAD_ROWS = 20_000
"""How many rows are looked at, at most."""

Place = Hashable
"""Where rows are: a file, or rows of a table. Equal places hold the same rows; `str` names one."""


class Range(NamedTuple):
    """A part of a file or table that is read by itself.

    Attributes:
        first: Where it begins: a byte, row group or row, whichever the format counts.
        after: Where it ends, in the same count; None: at the end of the file or table.
    """

    first: int = 0
    after: int | None = None


WHOLE = Range()


def ranges_between(cuts: Sequence[int]) -> list[Range]:
    """Ranges from each cut to the next one, and from the last one to the end."""
    return [Range(*ends) for ends in zip(cuts, [*cuts[1:], None], strict=True)]


@dataclass(frozen=True)
class Unit:
    """A part of a split that is read by itself, by any process that sees the same files.

    Attributes:
        split: The split that its rows belong to.
        place: The file or table, as the config names it; relative paths stay relative.
        first: As of `Range`.
        after: As of `Range`.
    """

    split: str
    place: str
    first: int = 0
    after: int | None = None


class Block(Protocol):
    """Some consecutive rows that are read and not parsed yet."""

    @property
    def path(self) -> Place:
        """The file or table that they are from."""

    @property
    def position_bytes(self) -> int:
        """How many bytes of it are read once the block is."""

    def parse(self, plan: ReadingPlan) -> ParsedBlock:
        """The good rows, and what is wrong with the others; may run in any thread."""


class SourceFile(Protocol):
    """A file or table of a source, as its format's inspection found it."""

    @property
    def path(self) -> Place:
        """Where it is."""

    @property
    def column_names(self) -> tuple[str, ...]:
        """All of its columns, in its order."""

    def size_bytes(self) -> int:
        """What it takes where it is kept; 0 if that is not known.

        Raises:
            OSError: It is gone.
        """

    def known_rows(self) -> int | None:
        """How many rows it has; None if only reading tells."""

    def state(self) -> tuple[str | int, ...]:
        """Asks anew where it is kept; changes when its rows do.

        Raises:
            DataError: It is gone.
        """

    def ranges(self, unit_bytes: int | None) -> list[Range]:
        """Ranges that hold all rows in order, each once.

        Args:
            unit_bytes: About how long each is; None: one range, the whole.

        Raises:
            DataError: It cannot be read.
        """

    def read(self, part: Range, plan: ReadingPlan, block_bytes: int) -> Iterator[Block]:
        """The rows of a range in order, with the columns of the plan.

        Args:
            part: One of `ranges`.
            plan: Which columns.
            block_bytes: About how long a block is, where the format has no blocks of its own.

        Raises:
            DataError: It is damaged, or a column's type does not fit its use.
        """


class _HasDataFile(Protocol):
    @property
    def path(self) -> DataFile: ...


class OneFile:
    """What a `SourceFile` that is one file on disk or in an object store answers."""

    def size_bytes(self: _HasDataFile) -> int:
        """Bytes of the file, compressed if it is."""
        return size_of(self.path)

    def known_rows(self) -> int | None:
        """None: only reading tells."""
        return None

    def state(self: _HasDataFile) -> tuple[str | int, ...]:
        """Path, size and time of the last change, or what the store calls its version."""
        return state_of(self.path)


@dataclass(frozen=True)
class ServiceAccess:
    """Whether a service that holds rows can be used from this machine.

    Attributes:
        is_set_up: Whether anything is there for it, such as a variable of the environment.
        missing: Variables of the environment that it still needs.
        failure: Why it cannot be used; None if it answers, or is not asked.
    """

    is_set_up: bool
    missing: tuple[str, ...] = ()
    failure: str | None = None


class SourceFormat(ABC):
    """How sources of one format are recognised, inspected and read.

    Files are recognised by their first bytes, tables by their address.

    Args:
        keys: The values of `data.format` that stand for it; none for tables.

    Attributes:
        name: The name in messages.
        endings: Endings of file names that promise it, in lower case; not those of a compression.
        magic: The first bytes of every file; empty if files have no mark.
        rows_have_order: Whether rows can be divided by their order.
        is_remote: Whether a look at the data asks a service.
        driver: The `data.connection.driver` whose queries it has executed; empty: none.
    """

    name: ClassVar[str]
    endings: ClassVar[tuple[str, ...]] = ()
    magic: ClassVar[bytes] = b""
    rows_have_order: ClassVar[bool] = True
    is_remote: ClassVar[bool] = False
    driver: ClassVar[str] = ""

    def __init__(self, keys: tuple[str, ...] = ()) -> None:
        self.keys = keys

    def is_address(self, text: str) -> bool:
        """Whether a path of the config names a table of this format."""
        return False

    def find(self, address: str, key: str) -> Place:
        """The table that an address names; called where `is_address` is true.

        Args:
            address: As in the config.
            key: The config key, for messages.

        Raises:
            DataError: It names none.
        """
        raise NotImplementedError(f"{self.name} has no addresses")

    def title_of(self, address: str) -> str:
        """What rows of a table of `find` are called."""
        return address.partition("://")[2]

    def local_files(self, place: Place) -> tuple[Path, ...]:
        """The files on this machine that a table of `find` is kept in."""
        return ()

    def find_access(self) -> ServiceAccess | None:
        """Asks the service that holds the rows whether it can be used; None if there is none."""
        return None

    def begins(self, first_bytes: bytes, file: DataFile) -> bool:
        """Whether a file has this format, by its first bytes.

        Args:
            first_bytes: 64 of them, or all if there are fewer.
            file: The file, for messages.

        Raises:
            DataError: It does, and cannot be read as it is named.
        """
        return bool(self.magic) and first_bytes.startswith(self.magic)

    @abstractmethod
    def inspect(
        self,
        data: DataConfig,
        places: Mapping[str, tuple[Place, ...]],
        *,
        seed: int | None,
        are_new: bool,
    ) -> "Source":
        """What files or tables hold, from a bounded look at each.

        Args:
            data: How they are read.
            places: By split, none twice in one.
            seed: Seed of the random split, where the format itself divides rows; None: rows are not
                divided.
            are_new: `data` is of other files: what it says of format, record and delimiter is a
                first guess, and files without a header may have all of `data.columns` but the
                label.

        Raises:
            DataError: They cannot be read, have no rows, or do not agree.
        """

    @abstractmethod
    def read_typed(self, source: "Source", progress: Progress) -> Iterator[pa.Table]:
        """All rows of a source in order, every column with a type that fits all of its values.

        Args:
            source: What `inspect` gave.
            progress: Has a task for each reading.

        Raises:
            DataError: A file is damaged, or values of a column have no common type.
        """


@dataclass(frozen=True)
class Source:
    """The data files and what is in them.

    Attributes:
        files: Files by split that has paths of its own: `train`, and `valid` and `test` if given.
        format: What inspected them.
        format_name: csv, tsv, parquet or recordio; table of MaxCompute
            file.
        column_names: All columns, in the order of the first file.
        inferred_types: Types of columns that fit a feature; others (lists, timestamps) are absent.
        head: The first rows, numbers as float64 and texts as strings, columns that fit no feature
            as they are.
        opened: How each file is read.
        delimiter: Delimiter of text files and of lines; None of other files.
        has_header: Whether names come from the files.
        record: What a record of RecordIO holds; None of other files.
        times: Columns of points in time that are no texts, and their `datetime` format: whole
            numbers that look like it, and columns of dates and timestamps.
        lists: Columns of lists that fit a feature, and how they are cut.
        head_block: The first rows as text files have them, bad ones among them; None otherwise.
        head_is_all: Whether the first rows are known to be all rows.
        may_lack_columns: Whether files may lack a column of which all values are missing.
        finds_keys: Whether columns are keys that were found in the first rows; later rows may have
            more of them.
        notes: What to know about the rows, a sentence each.
    """

    files: Mapping[str, tuple[Place, ...]]
    format: SourceFormat
    format_name: str
    column_names: tuple[str, ...]
    inferred_types: Mapping[str, ColumnType]
    head: pa.Table
    opened: Mapping[Place, SourceFile]
    delimiter: str | None = None
    has_header: bool = True
    record: Literal["line", "example"] | None = None
    times: Mapping[str, str] = field(default_factory=dict)
    lists: Mapping[str, ListSpec] = field(default_factory=dict)
    head_block: Block | None = None
    head_is_all: bool = False
    may_lack_columns: bool = False
    finds_keys: bool = False
    notes: tuple[str, ...] = ()

    @property
    def is_delimited(self) -> bool:
        """Whether rows are delimited text, in text files or in records."""
        return self.delimiter is not None

    @property
    def size_bytes(self) -> int:
        """What all files and tables take where they are kept.

        Raises:
            OSError: A file is gone.
        """
        places = [place for group in self.files.values() for place in group]
        return sum(self.opened[place].size_bytes() for place in places)

    def units(self, split: str, unit_bytes: int | None = None) -> list[Unit]:
        """The rows of a split in ranges, in order.

        Args:
            split: One of `files`.
            unit_bytes: About how long each range is, where the format can cut files; None: a range
                for each file or table.

        Raises:
            DataError: A file cannot be read.
        """
        return [
            Unit(split, str(place), *part)
            for place in self.files[split]
            for part in self.opened[place].ranges(unit_bytes)
        ]

    def read(self, unit: Unit, plan: ReadingPlan, block_bytes: int) -> Iterator[Block]:
        """The rows of one of `units`, as `SourceFile.read` gives them.

        Raises:
            DataError: A file is damaged, or a column's type does not fit its use.
        """
        place = next(place for place in self.files[unit.split] if str(place) == unit.place)
        return self.opened[place].read(Range(unit.first, unit.after), plan, block_bytes)

    def estimate_rows(self, split: str) -> int:
        """Rows of a split's files: those that files tell, others by their size."""
        of_head: int = self.head.num_rows
        at_least = of_head if split == "train" else 0
        if at_least and self.head_is_all:
            return of_head
        # A short first file is in the head as a whole.
        of_first = self.opened[self.files["train"][0]].size_bytes()
        head_bytes = min(HEAD_BYTES, of_first) or HEAD_BYTES
        total = 0.0
        for place in self.files[split]:
            known = self.opened[place].known_rows()
            if known is not None:
                total += known
            else:
                total += of_head * self.opened[place].size_bytes() / head_bytes
        return max(at_least, round(total))

    def require(self, names: Sequence[str], key: str) -> None:
        """Raises DataError unless all columns exist.

        Args:
            key: The config key that names them.
        """
        for name in names:
            if name not in self.column_names:
                raise self._no_column(name, key)

    def _no_column(self, name: str, key: str) -> DataError:
        near = difflib.get_close_matches(name, self.column_names, n=3)
        shown = ", ".join(f"'{column}'" for column in self.column_names[:8])
        dots = ", …" if len(self.column_names) > 8 else ""
        if near:
            remedy = "Did you mean " + " or ".join(f"'{column}'" for column in near) + "?"
        elif self.has_header and self.is_delimited:
            remedy = (
                "Name the right column; if the file has no header, list all its columns in "
                "data.columns"
            )
        else:
            remedy = "Name one of the columns"
        if self.finds_keys:
            remedy += "; if it is a key that the first rows lack, list all keys in "
            remedy += "data.key_value.keys"
        first = next(iter(self.opened))
        return DataError(
            f"no column '{name}', which {key} names; there are {shown}{dots}",
            place=str(first),
            remedy=remedy,
        )
