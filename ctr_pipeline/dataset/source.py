"""What the data files are, from a bounded look at each: format, columns, types.

Of the first file the first 4 MiB are read, of every other one 64 KiB, of Parquet files the footer,
of RecordIO files at least the first chunk.
Files of one source must agree: the same columns, in text files without a header the same number,
and the same kind of values in each. With a header the columns may stand in another order.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from ctr_pipeline.config.models import DataConfig
from ctr_pipeline.dataset.columns import missing_to_null, parse_numbers
from ctr_pipeline.dataset.data_files import DataFile, open_bytes, size_of
from ctr_pipeline.dataset.formats.databases.table import MAGIC_BYTES as DATABASE_MAGIC_BYTES
from ctr_pipeline.dataset.formats.databases.table import DatabaseTable, engine_of
from ctr_pipeline.dataset.formats.maxcompute.source import MaxComputeTable
from ctr_pipeline.dataset.formats.parquet.reading import (
    ParquetFile,
    column_type_of,
    is_time,
    read_first_rows,
    read_schema,
)
from ctr_pipeline.dataset.formats.recordio.chunks import MAGIC_BYTES
from ctr_pipeline.dataset.formats.recordio.head import (
    RecordKind,
    find_record_kind,
    look_at_examples,
    look_at_lines,
)
from ctr_pipeline.dataset.formats.recordio.rows import ExampleFile, LineFile
from ctr_pipeline.dataset.formats.text.head import (
    TextHead,
    check_dialect,
    find_names,
    look_at,
)
from ctr_pipeline.dataset.formats.text.parsing import TextBlock, TextFile, texts_of_block
from ctr_pipeline.dataset.formats.text.records import count_lines
from ctr_pipeline.dataset.inference import (
    holds_beyond_floats,
    infer_epoch,
    infer_list,
    infer_type,
    whole_numbers,
)
from ctr_pipeline.dataset.lists import is_list
from ctr_pipeline.dataset.partitions import partition_of, with_partition
from ctr_pipeline.dataset.paths import Place, names_database, names_table, paths_of, resolve_files
from ctr_pipeline.dataset.schema_checks import check_names, check_same_kinds, check_same_names
from ctr_pipeline.datetime_formats import ISO
from ctr_pipeline.errors import DataError
from ctr_pipeline.features import ListSpec
from ctr_pipeline.specs.columns import ColumnType

HEAD_BYTES = 4 << 20
_OTHER_HEAD_BYTES = 64 << 10
_HEAD_ROWS = 20_000
_HEAD_FILES = 20
_ROWS_OF_FORMS = 500
"""Enough to see how numbers are written: what makes `7.0` of 7 does so in all rows."""
_PARQUET_MAGIC = b"PAR1"

SourceFile = TextFile | ParquetFile | LineFile | ExampleFile | MaxComputeTable | DatabaseTable
Format = Literal["csv", "tsv", "parquet", "recordio", "table", "database"]


@dataclass(frozen=True)
class Source:
    """The data files and what is in them.

    Attributes:
        files: Files by split that has paths of its own: `train`, and `valid` and `test` if given.
        format: csv, tsv, parquet or recordio; table of MaxCompute, database of a database file.
        delimiter: Delimiter of text files and of lines.
        has_header: Whether names come from the files.
        column_names: All columns, in the order of the first file.
        inferred_types: Types of columns that fit a feature; others (lists, timestamps) are absent.
        head: The first rows, numbers as float64 and texts as strings, columns that fit no feature
            as they are.
        opened: How each file is read.
        record: What a record of RecordIO holds; None of other files.
        times: Columns of points in time that are no texts, and their `datetime` format: whole
            numbers that look like it, and columns of dates and timestamps.
        lists: Columns of lists that fit a feature, and how they are cut.
        head_block: The first rows as text files have them, bad ones among them; None otherwise.
        head_is_all: Whether the first rows are known to be all rows.
        floats: Columns of delimited text whose first numbers are written with a point, as `7.0`.
    """

    files: Mapping[str, tuple[Place, ...]]
    format: Format
    delimiter: str | None
    has_header: bool
    column_names: tuple[str, ...]
    inferred_types: Mapping[str, ColumnType]
    head: pa.Table
    opened: Mapping[Place, SourceFile]
    record: RecordKind | None = None
    times: Mapping[str, str] = field(default_factory=dict)
    lists: Mapping[str, ListSpec] = field(default_factory=dict)
    head_block: TextBlock | None = None
    head_is_all: bool = False
    floats: frozenset[str] = frozenset()

    @property
    def is_delimited(self) -> bool:
        """Whether rows are delimited text, in text files or in records."""
        return self.delimiter is not None

    def stores_floats(self, name: str) -> bool:
        """Whether a column is of floats, which have no unique text."""
        if self.is_delimited:
            return name in self.floats
        opened = next(iter(self.opened.values()))
        # What folders say is text, whatever the head makes of it.
        schema = opened.schema if isinstance(opened, ParquetFile) else self.head.schema
        kind = schema.field(name).type
        return bool(pa.types.is_floating(getattr(kind, "value_type", kind)))

    def size_bytes(self, place: Place) -> int:
        """What a file takes on disk, or a table at the service; 0 if that is not known.

        Raises:
            OSError: A file is gone.
        """
        opened = self.opened[place]
        if isinstance(opened, MaxComputeTable):
            return opened.facts.size_bytes
        if isinstance(opened, DatabaseTable):
            return opened.size_bytes
        return size_of(opened.path)

    def estimate_rows(self, split: str) -> int:
        """Rows of a split's files: those that Parquet files tell, others by their size."""
        of_head: int = self.head.num_rows
        if self.head_is_all:
            return of_head
        total = 0.0
        for place in self.files[split]:
            opened = self.opened[place]
            if isinstance(opened, ParquetFile):
                total += opened.num_rows
            else:
                total += of_head * self.size_bytes(place) / HEAD_BYTES
        return max(of_head, round(total))

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
        first = next(iter(self.opened))
        return DataError(
            f"no column '{name}', which {key} names; there are {shown}{dots}",
            place=str(first),
            remedy=remedy,
        )


def inspect_source(data: DataConfig, *, seed: int = 0) -> Source:
    """Resolves the files or tables of a config and finds out what they hold.

    Args:
        data: The config's section.
        seed: Seed of the random split of a table.

    Raises:
        DataError: Files are missing, unreadable, empty, of another format, or do not agree; or a
            column that the config names does not exist.
    """
    groups = {"train": data.train, "valid": data.valid, "test": data.test}
    keys = {split: f"data.{split}" for split in groups}
    named = {split: paths for split, paths in groups.items() if paths is not None}
    source = inspect_paths(data, named, keys, seed=seed)
    source.require([data.label], "data.label")
    if data.weight is not None:
        source.require([data.weight], "data.weight")
    source.require(data.key_columns, "data.key_columns")
    if data.split.column is not None:
        source.require([data.split.column], "data.split.column")
    return source


def inspect_paths(
    data: DataConfig,
    groups: Mapping[str, str | Sequence[str]],
    keys: Mapping[str, str],
    *,
    seed: int | None = None,
    may_lack_label: bool = False,
) -> Source:
    """As `inspect_source`, for paths that need not be those of the config.

    Args:
        data: How they are read.
        groups: Paths or addresses by split.
        keys: Where they are named, by split, for messages.
        seed: Seed of the random split of a table; None: rows are not divided.
        may_lack_label: Files without a header may have all of `data.columns` but the label.

    Raises:
        DataError: As `inspect_source`, but for the columns that the config names.
    """
    if any(names_table(paths) for paths in groups.values()):
        addresses = {split: (paths_of(paths), keys[split]) for split, paths in groups.items()}
        return _inspect_tables(data, addresses, seed)
    if any(names_database(paths) for paths in groups.values()):
        addresses = {split: (paths_of(paths), keys[split]) for split, paths in groups.items()}
        return _inspect_databases(data, addresses, may_lack_label=may_lack_label)
    files = {split: resolve_files(paths, keys[split]) for split, paths in groups.items()}
    return inspect_files(data, files, may_lack_label=may_lack_label)


def _inspect_tables(
    data: DataConfig, addresses: Mapping[str, tuple[Sequence[str], str]], seed: int | None
) -> Source:
    # PyODPS and sqlglot are imported only where a table is named.
    from ctr_pipeline.dataset.formats.maxcompute.inspection import find_tables, head_of

    files, opened = find_tables(data, addresses, seed=seed)
    return _source_of_tables("table", files, {**opened}, head_of(opened, _HEAD_ROWS))


def _inspect_databases(
    data: DataConfig,
    addresses: Mapping[str, tuple[Sequence[str], str]],
    *,
    may_lack_label: bool,
) -> Source:
    # sqlglot and DuckDB are imported only where a database is named.
    from ctr_pipeline.dataset.formats.databases.inspection import find_tables, head_of

    files, opened = find_tables(data, addresses, may_lack_label=may_lack_label)
    return _source_of_tables("database", files, {**opened}, head_of(opened, _HEAD_ROWS))


def _source_of_tables(
    kind: Format,
    files: Mapping[str, tuple[Place, ...]],
    opened: Mapping[Place, MaxComputeTable | DatabaseTable],
    head: pa.Table,
) -> Source:
    """Tables have names and types of their own, of which all of a source have the same."""
    first = next(iter(opened.values()))
    return Source(
        files=files,
        format=kind,
        delimiter=None,
        has_header=True,
        column_names=first.column_names,
        inferred_types=_types_of(first.schema, head),
        head=head,
        opened={**opened},
        times=_times_of(first.schema, head),
    )


def inspect_files(
    data: DataConfig, files: Mapping[str, tuple[DataFile, ...]], *, may_lack_label: bool = False
) -> Source:
    """As `inspect_source`, for files that are resolved already.

    Args:
        data: How they are read.
        files: By split.
        may_lack_label: Files without a header may have all of `data.columns` but the label.

    Raises:
        DataError: As `inspect_source`, but for the columns that the config names.
    """
    all_files = [file for group in files.values() for file in group]
    formats = {file: _format_of(file, data) for file in all_files}
    first = all_files[0]
    for file, kind in formats.items():
        if kind != formats[first] and not {kind, formats[first]} <= {"csv", "tsv"}:
            raise DataError(
                f"is {kind}, but '{first}' is {formats[first]}",
                place=str(file),
                remedy="Give files of one format",
            )
    if formats[first] == "parquet":
        return _inspect_parquet(data, files, all_files, may_lack_label=may_lack_label)
    if formats[first] == "recordio" and _record_kind(data, all_files) == "example":
        return _inspect_examples(data, files, all_files, may_lack_label=may_lack_label)
    return _inspect_text(data, files, all_files, may_lack_label=may_lack_label)


def _format_of(file: DataFile, data: DataConfig) -> Format:
    try:
        size = size_of(file)
        with open_bytes(file) as stream:
            magic = stream.read(DATABASE_MAGIC_BYTES)
    except OSError as error:
        raise DataError(
            f"cannot be read ({error.strerror})",
            place=str(file),
            remedy="Check the file and its permissions",
        ) from error
    if size == 0:
        raise DataError("is empty", place=str(file), remedy="Leave it out, or write it again")
    engine = engine_of(magic)
    if engine is not None:
        raise DataError(
            "is a database, and which of its tables is meant is not said",
            place=str(file),
            remedy=f"Write {engine}://{file}/TABLE",
        )
    plain_name = file.name.lower().removesuffix(".gz").removesuffix(".zst")
    if magic.startswith(MAGIC_BYTES):
        return _expect("recordio", "RecordIO", data, file)
    if data.format == "recordio" or (
        data.format == "auto" and plain_name.endswith((".recordio", ".rio"))
    ):
        raise DataError(
            "is not a RecordIO file: it does not begin with RecordIO's magic number "
            f"{MAGIC_BYTES.hex(' ')}",
            place=str(file),
            remedy="Write it again, or set data.format to what it is",
        )
    is_parquet = magic.startswith(_PARQUET_MAGIC)
    wants_parquet = data.format == "parquet" or (
        data.format == "auto" and plain_name.endswith((".parquet", ".pq"))
    )
    if is_parquet:
        return _expect("parquet", "Parquet", data, file)
    if wants_parquet:
        raise DataError(
            "is not a Parquet file",
            place=str(file),
            remedy="Write it again, or set data.format to what it is",
        )
    if data.format != "auto":
        return data.format
    return "tsv" if plain_name.endswith((".tsv", ".tab")) else "csv"


def _expect(found: Format, name: str, data: DataConfig, file: DataFile) -> Format:
    """The format that a file's first bytes tell, which is to be the one of the config."""
    if data.format not in {"auto", found}:
        raise DataError(
            f"is {name}, but data.format is {data.format}",
            place=str(file),
            remedy="Set data.format: auto",
        )
    return found


def _record_kind(data: DataConfig, all_files: Sequence[DataFile]) -> RecordKind:
    """What the records of all files hold."""
    first = all_files[0]
    kinds = {file: find_record_kind(file, data) for file in all_files}
    for file, kind in kinds.items():
        if kind != kinds[first]:
            raise DataError(
                f"holds records of the kind {kind}, but '{first}' of the kind {kinds[first]}",
                place=str(file),
                remedy="Give files of one kind",
            )
    return kinds[first]


def _inspect_parquet(
    data: DataConfig,
    files: Mapping[str, tuple[DataFile, ...]],
    all_files: Sequence[DataFile],
    *,
    may_lack_label: bool,
) -> Source:
    first = all_files[0]
    # New rows to predict may come in another format than the rows of training.
    if data.columns is not None and not may_lack_label:
        raise DataError(
            "data.columns is for files without a header, and Parquet files have names",
            place=str(first),
            remedy="Remove data.columns",
        )
    opened: dict[DataFile, ParquetFile] = {}
    for file in all_files:
        own, num_rows = read_schema(file)
        check_names(own.names, file)
        partition = partition_of(file)
        schema = with_partition(own, partition, file)
        opened[file] = ParquetFile(file, schema, num_rows, partition)
    schema = opened[first].schema
    for file in all_files:
        other = opened[file].schema
        check_same_names(other.names, file, schema.names, first)
        for name in schema.names:
            expected, found = schema.field(name).type, other.field(name).type
            if column_type_of(expected) is not column_type_of(found) or (
                column_type_of(found) is None and expected != found
            ):
                raise DataError(
                    f"column '{name}' has the type {found}, but {expected} in '{first}'",
                    place=str(file),
                    remedy="Give files with the same types",
                )
    with_rows = [file for file in opened.values() if file.num_rows]
    if not with_rows:
        raise DataError("has no rows", place=str(first), remedy="Give files with rows")
    of_folders = _partition_types(list(opened.values()))
    head = _parquet_head(with_rows, of_folders)
    return Source(
        files=files,
        format="parquet",
        delimiter=None,
        has_header=True,
        column_names=tuple(schema.names),
        inferred_types=_types_of(schema, head) | of_folders,
        head=head.select(schema.names),
        opened={file: opened[file] for file in all_files},
        times=_times_of(schema, head),
        lists=_lists_of(head),
        head_is_all=len(all_files) == 1 and opened[first].num_rows == head.num_rows,
    )


def _times_of(schema: pa.Schema, head: pa.Table) -> dict[str, str]:
    """Points in time by their type, and integers that look like it."""
    found = {}
    for name in schema.names:
        kind = schema.field(name).type
        if is_time(kind):
            found[name] = ISO
        elif pa.types.is_integer(kind):
            format = infer_epoch(head.column(name).cast(pa.int64(), safe=False))
            if format is not None:
                found[name] = format
    return found


def _lists_of(head: pa.Table) -> dict[str, ListSpec]:
    """Columns of lists that fit a feature."""
    lists = {
        name: infer_list(head.column(name).combine_chunks())
        for name in head.schema.names
        if is_list(head.schema.field(name).type)
    }
    return {name: cut for name, cut in lists.items() if cut is not None}


def _partition_types(files: Sequence[ParquetFile]) -> dict[str, ColumnType]:
    """Of the columns that folders give, by the values of all files: as of columns of a text."""
    return {
        name: infer_type(
            pa.chunked_array([[dict(file.partition)[name] for file in files]], pa.string())
        )
        for name, _ in files[0].partition
    }


def _parquet_head(files: Sequence[ParquetFile], types: Mapping[str, ColumnType]) -> pa.Table:
    """The first rows of the first file; of several folders, the first rows of some of each.

    What a folder says is the same for all rows of a file: one file would show constants.

    Args:
        files: Files that have rows.
    """
    first = files[0]
    if not first.partition:
        return read_first_rows(first, _HEAD_ROWS)
    alike = [file for file in files if file.schema.equals(first.schema)]
    num_seen = min(len(alike), _HEAD_FILES)
    seen = [alike[index * len(alike) // num_seen] for index in range(num_seen)]
    head = pa.concat_tables([read_first_rows(file, _HEAD_ROWS // num_seen) for file in seen])
    for name, _ in first.partition:
        if types[name] is ColumnType.NUMBER:
            numbers, _ = parse_numbers(head.column(name).combine_chunks(), ("",))
            head = head.set_column(head.schema.get_field_index(name), name, numbers)
    return head


def _inspect_examples(
    data: DataConfig,
    files: Mapping[str, tuple[DataFile, ...]],
    all_files: Sequence[DataFile],
    *,
    may_lack_label: bool,
) -> Source:
    """The columns are the features of the first records of all files together."""
    first = all_files[0]
    if data.columns is not None and not may_lack_label:
        raise DataError(
            "data.columns is for files without names, and Examples have them",
            place=str(first),
            remedy="Remove data.columns",
        )
    heads = {
        file: look_at_examples(file, _HEAD_ROWS, HEAD_BYTES if file == first else _OTHER_HEAD_BYTES)
        for file in all_files
    }
    fields: dict[str, tuple[pa.DataType, DataFile]] = {}
    for file, head in heads.items():
        check_names(head.schema.names, file)
        for name in head.schema.names:
            found = head.schema.field(name).type
            expected, other = fields.get(name, (found, file))
            if pa.types.is_null(expected):
                fields[name] = found, file
                continue
            if not pa.types.is_null(found) and column_type_of(found) is not column_type_of(
                expected
            ):
                raise DataError(
                    f"column '{name}' has the type {found}, but {expected} in '{other}'",
                    place=str(file),
                    remedy="Give files with the same types",
                )
            fields[name] = expected, other
    schema = pa.schema([(name, kind) for name, (kind, _) in fields.items()])
    head = heads[first]
    for name, kind in zip(schema.names, schema.types, strict=True):
        if name not in head.schema.names:
            head = head.append_column(name, pa.nulls(head.num_rows, kind))
    return Source(
        files=files,
        format="recordio",
        delimiter=None,
        has_header=True,
        column_names=tuple(schema.names),
        inferred_types=_types_of(schema, head),
        head=head.select(schema.names),
        times=_times_of(schema, head),
        opened={file: ExampleFile(file, heads[file].schema) for file in all_files},
        record="example",
    )


def _types_of(schema: pa.Schema, head: pa.Table) -> dict[str, ColumnType]:
    """By the schema; whole numbers beyond 2^53 are texts, as in a CSV."""
    types = {}
    for name in schema.names:
        kind = schema.field(name).type
        own = column_type_of(kind)
        if own is not None:
            is_text = own is ColumnType.NUMBER and holds_beyond_floats(head.column(name))
            types[name] = ColumnType.TEXT if is_text else own
    return types


def _inspect_text(
    data: DataConfig,
    files: Mapping[str, tuple[DataFile, ...]],
    all_files: Sequence[DataFile],
    *,
    may_lack_label: bool,
) -> Source:
    check_dialect(data)
    first = all_files[0]
    opened: dict[Place, SourceFile] = {}
    heads: dict[DataFile, pa.Table] = {}
    blocks: dict[DataFile, TextBlock] = {}
    delimiter: str | None = None
    is_recordio = _format_of(first, data) == "recordio"
    for file in all_files:
        num_bytes = HEAD_BYTES if file == first else _OTHER_HEAD_BYTES
        if is_recordio:
            head = look_at_lines(file, data, _HEAD_ROWS, num_bytes, delimiter)
        else:
            head = look_at(file, data, num_bytes, delimiter)
        delimiter = head.dialect.delimiter
        dialect = head.dialect
        names = find_names(head, data, may_lack_label=may_lack_label)
        check_names(names, file)
        text_file = TextFile(file, head.compression, dialect, names, data.columns is None)
        if file != first:
            check_same_names(names, file, opened[first].column_names, first)
        opened[file] = LineFile(text_file) if is_recordio else text_file
        blocks[file] = _head_block(text_file, head)
        heads[file] = _read_texts(blocks[file], data)
    kinds = {name: infer_type(heads[first].column(name)) for name in heads[first].schema.names}
    numbers = [name for name, kind in kinds.items() if kind is ColumnType.NUMBER]
    for file in all_files[1:]:
        check_same_kinds(heads[file], file, numbers, first)
    head_file = next((file for file, table in heads.items() if table.num_rows), None)
    if head_file is None:
        raise DataError(
            "has a header but no rows" if data.columns is None else "has no rows that can be read",
            place=str(first),
            remedy="Give a file with rows; if its first line is a row, list the columns in "
            "data.columns"
            if data.columns is None
            else "Check data.columns and data.delimiter",
        )
    texts = heads[head_file].select(opened[first].column_names)
    types = kinds
    if head_file != first:
        types = {name: infer_type(texts.column(name)) for name in texts.column_names}
    return Source(
        files=files,
        format="recordio" if is_recordio else "tsv" if delimiter == "\t" else "csv",
        delimiter=delimiter,
        has_header=data.columns is None,
        column_names=opened[first].column_names,
        inferred_types=types,
        head=_typed(texts, types, data),
        opened=opened,
        record="line" if is_recordio else None,
        head_block=None if is_recordio else blocks[head_file],
        head_is_all=head.is_whole and len(all_files) == 1 and not is_recordio,
        times=_times_of_texts(texts, types),
        floats=frozenset(
            name
            for name, kind in types.items()
            if kind is ColumnType.NUMBER and _has_points(texts.column(name))
        ),
    )


def _has_points(texts: pa.ChunkedArray) -> bool:
    """Whether some of the first numbers of a column have a point."""
    first = texts.slice(0, _ROWS_OF_FORMS)
    return bool(pc.any(pc.match_substring(first, ".")).as_py())


def _times_of_texts(texts: pa.Table, types: Mapping[str, ColumnType]) -> dict[str, str]:
    """Columns of whole numbers that are points in time."""
    found = {}
    for name, kind in types.items():
        is_whole = kind is ColumnType.NUMBER or holds_beyond_floats(texts.column(name))
        numbers = whole_numbers(texts.column(name)) if is_whole else None
        format = None if numbers is None else infer_epoch(numbers)
        if format is not None:
            found[name] = format
    return found


def _head_block(file: TextFile, head: TextHead) -> TextBlock:
    """The head's rows as they are read."""
    skipped = count_lines(head.data[: head.first_end]) if file.has_header else 0
    body = head.records(has_header=file.has_header)
    return TextBlock(file, body, 0, head.num_lines_before + skipped)


def _read_texts(block: TextBlock, data: DataConfig) -> pa.Table:
    """The head's rows as texts, missing values NULL."""
    table = texts_of_block(block).combine_chunks()
    missing = ("", *data.missing_values)
    return pa.table(
        {name: missing_to_null(table.column(name), missing) for name in table.column_names}
    )


def _typed(texts: pa.Table, types: Mapping[str, ColumnType], data: DataConfig) -> pa.Table:
    columns = {}
    for name in texts.column_names:
        column = texts.column(name).combine_chunks()
        if types[name] is ColumnType.NUMBER:
            column, _ = parse_numbers(column, ("", *data.missing_values))
        columns[name] = column
    return pa.table(columns)
