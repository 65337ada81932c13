"""Which rows of files are those of a split, and their columns, as SQL that Spark runs; pure.

Nothing is left to Spark's own reading of text, which differs in what quotes, blanks and missing
values are: Spark gives the lines of a file, and SQL cuts them as `formats.text.records` does. Rows
of Parquet files have numbers, so they may be divided by order; lines have none. By the hash of a
text, rows of both are divided.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from sqlglot import exp

from ctr_pipeline.analysis.spark_text import (
    ELEMENT,
    build_fields,
    call,
    each,
    is_number,
    number_of_text,
    trimmed,
)
from ctr_pipeline.analysis.table_sql import CountedRows, RowsInSql
from ctr_pipeline.config.models import DataConfig, KeyValueConfig
from ctr_pipeline.dataset.formats.parquet.reading import ParquetFile, read_schema
from ctr_pipeline.dataset.formats.text.blocks import TextFile, read_head
from ctr_pipeline.dataset.formats.text.compression import Compression
from ctr_pipeline.dataset.formats.text.records import Dialect, find_first_end
from ctr_pipeline.dataset.key_values import KeyValueFile, as_kept
from ctr_pipeline.dataset.partitions import Partition
from ctr_pipeline.dataset.source import Source
from ctr_pipeline.dataset.splits import SPLITS, plan_hash_ranges, plan_order_ranges, shares_of
from ctr_pipeline.dataset.value_sql import (
    digest_of,
    is_in_range,
    is_listed,
    present_text,
    typed_value,
)
from ctr_pipeline.dataset.value_texts import missing_texts
from ctr_pipeline.errors import DataError
from ctr_pipeline.specs.columns import ColumnType

LINE = "line"
"""The column of a view of lines."""
_FIELDS = "fields"
_PAIRS, _KEYS, _VALUES = "ctrpipe_pairs", "ctrpipe_keys", "ctrpipe_values"
_HAS_NONE, _IS_CUT = "ctrpipe_has_no_pair", "ctrpipe_is_cut"
_ENGINE = "analysis.engine"
_LEAVE_OUT = "or leave analysis out: the rows that were read are then counted here"
_ENDINGS = {".gz": Compression.GZIP, ".zst": Compression.ZSTD}
# Endings that Hadoop takes for a compression.
_COMPRESSED_ENDINGS = (".gz", ".zst", ".bz2", ".deflate", ".lz4", ".snappy")
_LONGEST_HEADER_BYTES = 16 << 20
_EXACT_DIGITS = 15
"""Decimals of so many digits become the same float64 in Arrow and in Java."""


@dataclass(frozen=True)
class FileView:
    """Files that Spark offers as one view.

    Attributes:
        row_number: A column that numbers the rows of a Parquet file; None: not needed.
        is_text: Whether the view has the column `line` alone.
    """

    name: str
    files: tuple[Path, ...]
    row_number: str | None = None
    is_text: bool = False


@dataclass(frozen=True)
class LineRows:
    """Rows of text files with the same columns in the same order.

    Attributes:
        view: A view of their lines.
        column_names: In the order of the fields.
        dialect: How lines are cut.
        headers: First lines that are names.
        missing_values: Texts that mean missing, the empty one among them.
    """

    view: FileView
    column_names: tuple[str, ...]
    dialect: Dialect
    headers: tuple[str, ...]
    missing_values: tuple[str, ...]

    @property
    def place(self) -> str:
        """The rows' name in messages."""
        return str(self.view.files[0])

    @property
    def schema(self) -> pa.Schema:
        """Texts all."""
        return pa.schema([(name, pa.string()) for name in self.column_names])

    @property
    def sample(self) -> exp.Expr:
        """As `RowsInSql.sample`: each split has views of its own."""
        return exp.Literal.number(0)

    def is_readable(self, name: str, column_type: ColumnType) -> exp.Expr | None:
        """As `RowsInSql.is_readable`."""
        if column_type is not ColumnType.NUMBER:
            return None
        return is_number(self.value(name, ColumnType.TEXT), self.missing_values)

    def select(self, columns: Sequence[exp.Expr]) -> exp.Select:
        """As `RowsInSql.select`; all is NULL in a line that is not one whole row."""
        line = exp.column(LINE)
        cut = exp.select(exp.alias_(build_fields(line, self.dialect), _FIELDS)).from_(
            exp.to_table(self.view.name)
        )
        cut = cut.where(exp.NEQ(this=line.copy(), expression=exp.Literal.string("")))
        if self.headers:
            cut = cut.where(exp.Not(this=is_listed(line.copy(), self.headers)))
        is_whole = exp.EQ(
            this=exp.ArraySize(this=exp.column(_FIELDS)),
            expression=exp.Literal.number(len(self.column_names)),
        )
        whole = exp.Case().when(is_whole, exp.column(_FIELDS)).else_(exp.null())
        fields = exp.select(exp.alias_(whole, _FIELDS)).from_(cut.subquery("cut_lines"))
        return exp.select(*columns).from_(fields.subquery("whole_lines"))

    def value(self, name: str, column_type: ColumnType) -> exp.Expr:
        """As `RowsInSql.value`."""
        place = exp.Literal.number(self.column_names.index(name))
        field = exp.Bracket(this=exp.column(_FIELDS), expressions=[place])
        if column_type is ColumnType.NUMBER:
            return number_of_text(field, self.missing_values)
        return present_text(field, self.missing_values)


@dataclass(frozen=True)
class ParquetRows:
    """Rows of Parquet files with the same types in the same folders.

    Attributes:
        schema: Schema of their columns, those of their folders behind them.
        partition: Names and values of their `key=value` folders.
        missing_values: Texts that mean missing, the empty one among them.
        rows: Numbers of the first row and of that after the last; None: all rows.
    """

    view: FileView
    schema: pa.Schema
    partition: Partition
    missing_values: tuple[str, ...]
    rows: tuple[int, int] | None = None

    @property
    def place(self) -> str:
        """The rows' name in messages."""
        return str(self.view.files[0])

    @property
    def sample(self) -> exp.Expr:
        """As `RowsInSql.sample`: each split has views of its own."""
        return exp.Literal.number(0)

    def is_readable(self, name: str, column_type: ColumnType) -> exp.Expr | None:
        """As `RowsInSql.is_readable`."""
        is_text = pa.types.is_string(self.schema.field(name).type)
        if column_type is not ColumnType.NUMBER or not is_text:
            return None
        return is_number(present_text(exp.column(name), self.missing_values), self.missing_values)

    def select(self, columns: Sequence[exp.Expr]) -> exp.Select:
        """As `RowsInSql.select`."""
        table: exp.Expr = exp.to_table(self.view.name)
        if self.partition:
            texts = [exp.alias_(_text(value), name) for name, value in self.partition]
            table = exp.select(exp.Star(), *texts).from_(table).subquery("with_folders")
        query = exp.select(*columns).from_(table)
        if self.rows is None or self.view.row_number is None:
            return query
        number = exp.column(self.view.row_number)
        first, after = (exp.Literal.number(bound) for bound in self.rows)
        return query.where(
            exp.GTE(this=number, expression=first), exp.LT(this=number.copy(), expression=after)
        )

    def value(self, name: str, column_type: ColumnType) -> exp.Expr | None:
        """As `RowsInSql.value`."""
        kind = self.schema.field(name).type
        if pa.types.is_string(kind) and column_type is ColumnType.NUMBER:
            return number_of_text(exp.column(name), self.missing_values)
        is_exact = not pa.types.is_decimal(kind) or kind.precision <= _EXACT_DIGITS
        if not is_exact or pa.types.is_float16(kind):
            return None
        return typed_value(name, kind, column_type, self.missing_values)


@dataclass(frozen=True)
class _ChangedRows:
    """Rows of a view that are read in another way; what a subclass does not change is as before."""

    rows: "LineRows | ParquetRows | KeyValueRows"

    @property
    def view(self) -> FileView:
        """What SQL reads."""
        return self.rows.view

    @property
    def place(self) -> str:
        """The rows' name in messages."""
        return self.rows.place

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self.rows.schema

    @property
    def sample(self) -> exp.Expr:
        """As `RowsInSql.sample`."""
        return self.rows.sample

    def is_readable(self, name: str, column_type: ColumnType) -> exp.Expr | None:
        """As `RowsInSql.is_readable`."""
        return self.rows.is_readable(name, column_type)

    def value(self, name: str, column_type: ColumnType) -> exp.Expr | None:
        """As `RowsInSql.value`."""
        return self.rows.value(name, column_type)


@dataclass(frozen=True)
class KeyValueRows(_ChangedRows):
    """Rows whose text of pairs is cut into columns, as `dataset.pairs` cuts it.

    Attributes:
        rows: As they are kept.
        cut: Where the pairs are, and how they are cut.
        keys: Keys that are read; a row that has one of them twice is bad.
    """

    rows: LineRows | ParquetRows
    cut: KeyValueConfig
    keys: tuple[str, ...]

    @property
    def schema(self) -> pa.Schema:
        """Keys are texts."""
        own = self.rows.schema
        return pa.schema([*own, *((key, pa.string()) for key in self.keys)])

    def is_readable(self, name: str, column_type: ColumnType) -> exp.Expr | None:
        """As `RowsInSql.is_readable`; no key is where the pairs cannot be cut."""
        if name not in self.keys:
            return self.rows.is_readable(name, column_type)
        is_cut: exp.Expr = exp.column(_IS_CUT)
        if column_type is not ColumnType.NUMBER:
            return is_cut
        missing = self.rows.missing_values
        return exp.and_(is_cut, is_number(present_text(self._value(name), missing), missing))

    def value(self, name: str, column_type: ColumnType) -> exp.Expr | None:
        """As `RowsInSql.value`."""
        if name not in self.keys:
            return self.rows.value(name, column_type)
        if column_type is ColumnType.NUMBER:
            return number_of_text(self._value(name), self.rows.missing_values)
        return present_text(self._value(name), self.rows.missing_values)

    def select(self, columns: Sequence[exp.Expr]) -> exp.Select:
        """As `RowsInSql.select`."""
        text = self.rows.value(self.cut.column, ColumnType.TEXT)
        pair, separator = exp.column(ELEMENT), exp.Literal.string(self.cut.value)
        one, none = exp.Literal.number(1), exp.Literal.number(0)
        place = call("INSTR", pair, separator)
        key = trimmed(call("SUBSTR", pair, one, exp.Sub(this=place, expression=one)))
        behind = exp.Add(this=place.copy(), expression=exp.Literal.number(len(self.cut.value)))
        # Lines that are not whole have no text either.
        parts = exp.Split(this=text, expression=exp.Literal.string(self.cut.pairs))
        is_there = exp.NEQ(this=trimmed(pair), expression=exp.Literal.string(""))
        pairs = call("FILTER", parts, each(is_there))
        has_separator = exp.GT(this=place.copy(), expression=none)
        has_key = exp.NEQ(this=key.copy(), expression=exp.Literal.string(""))
        is_none = exp.Not(this=exp.Paren(this=exp.and_(has_separator, has_key)))
        query = self.rows.select([exp.Star(), exp.alias_(pairs, _PAIRS)])
        wanted = call("FILTER", exp.column(_PAIRS), each(is_listed(key.copy(), self.keys)))
        query = exp.select(
            exp.Star(),
            exp.alias_(call("TRANSFORM", wanted, each(key)), _KEYS),
            exp.alias_(call("TRANSFORM", wanted, each(call("SUBSTR", pair, behind))), _VALUES),
            exp.alias_(call("EXISTS", exp.column(_PAIRS), each(is_none)), _HAS_NONE),
        ).from_(query.subquery("with_pairs"))
        keys = exp.column(_KEYS)
        is_once = exp.EQ(
            this=call("SIZE", keys), expression=call("SIZE", call("ARRAY_DISTINCT", keys))
        )
        is_cut = exp.and_(exp.Not(this=exp.column(_HAS_NONE)), is_once)
        query = exp.select(
            exp.Star(), exp.alias_(exp.Coalesce(this=is_cut, expressions=[exp.true()]), _IS_CUT)
        ).from_(query.subquery("with_keys"))
        return exp.select(*columns).from_(query.subquery("cut_pairs"))

    def _value(self, key: str) -> exp.Expr:
        """The value of the first pair with a key; NULL without one."""
        place = call("ARRAY_POSITION", exp.column(_KEYS), exp.Literal.string(key))
        is_there = exp.GT(this=place, expression=exp.Literal.number(0))
        return exp.Case().when(
            is_there, call("ELEMENT_AT", exp.column(_VALUES), exp.cast(place, "int"))
        )


@dataclass(frozen=True)
class HashedRows(_ChangedRows):
    """The rows of one split, of rows that are divided by the hash of a text.

    Attributes:
        rows: The rows of all splits.
        text: The text, an expression over the columns that the rows select from.
        hashes: The hashes of this split, as of `plan_hash_ranges`.
    """

    text: exp.Expr
    hashes: tuple[int, int]

    def select(self, columns: Sequence[exp.Expr]) -> exp.Select:
        """As `RowsInSql.select`."""
        return self.rows.select(columns).where(*is_in_range(digest_of(self.text), self.hashes))


FileRows = LineRows | ParquetRows | KeyValueRows | HashedRows


def find_views(table: CountedRows) -> tuple[FileView, ...]:
    """The views that the SQL of a table reads."""
    rows = table.sources
    return tuple(one.view for one in rows if isinstance(one, FileRows))


def require_readable(data: DataConfig, source: Source) -> None:
    """Raises DataError where Spark could not read the rows that are read here, or not divide them.

    Args:
        data: How they are read and divided.
        source: The files, inspected.
    """
    if source.format_name not in {"csv", "tsv", "parquet"}:
        what = {"recordio": "RecordIO files", "table": "tables of MaxCompute"}
        raise DataError(
            f"Spark reads CSV, TSV and Parquet files, and data.train names "
            f"{what.get(source.format_name, 'tables of a database file')}",
            place=_ENGINE,
            remedy=f"Convert them to Parquet with 'ctrpipe convert', {_LEAVE_OUT}",
        )
    if data.positive is not None:
        raise DataError(
            "Spark takes labels of 0 and 1 only",
            place="data.positive",
            remedy=f"Write the label as 0 and 1, {_LEAVE_OUT}",
        )
    for file, as_columns in source.opened.items():
        opened = as_kept(as_columns)
        if not isinstance(file, Path):
            raise DataError(
                "is an object in a store, and Spark reads files that its machines see as this one "
                "does",
                place=str(file),
                remedy=f"Name a file, {_LEAVE_OUT}",
            )
        if file.name.startswith(("_", ".")):
            raise DataError(
                "Spark passes over files whose names begin with a dot or '_'",
                place=str(file),
                remedy=f"Rename the file, {_LEAVE_OUT}",
            )
        if ":" in str(file.absolute()):
            raise DataError(
                "has a colon in its path, which Spark takes for the end of a scheme",
                place=str(file),
                remedy=f"Rename the file or its folder, {_LEAVE_OUT}",
            )
        if isinstance(opened, TextFile):
            _require_lines(file, opened)
    split = data.split
    if shares_of(split, source.files).splits == ("train",):
        return
    is_by_order = split.by == "order"
    if split.by == "hash" or (is_by_order and source.format_name == "parquet"):
        return
    why = "lines of text have no numbers there" if is_by_order else f"{split.by} is counted here"
    also = " or use by: hash," if not is_by_order else " or use Parquet files, or by: hash,"
    raise DataError(
        f"Spark cannot divide these rows by {split.by}: {why}",
        place="data.split.by",
        remedy=f"Name the rows of each split in data.train, data.valid and data.test,{also} "
        f"{_LEAVE_OUT}",
    )


def _require_lines(path: Path, file: TextFile) -> None:
    suffix = path.suffix.lower()
    expected = _ENDINGS.get(suffix, Compression.NONE)
    if file.compression is Compression.ZSTD:
        raise DataError(
            "is compressed with zstd, which Spark reads only where Hadoop's own libraries are",
            place=str(path),
            remedy=f"Compress it with gzip, {_LEAVE_OUT}",
        )
    if file.compression is not expected or suffix in _COMPRESSED_ENDINGS[2:]:
        found = "not compressed" if file.compression is Compression.NONE else "compressed with gzip"
        raise DataError(
            f"is {found}, and Spark goes by the ending '{suffix}' of its name",
            place=str(path),
            remedy=f"Rename the file, {_LEAVE_OUT}",
        )
    if file.dialect.escape is not None:
        raise DataError(
            "is read with data.escape, which is not done in Spark",
            place=str(path),
            remedy=f"Write it with doubled quotes, {_LEAVE_OUT}",
        )
    if file.num_skipped:
        raise DataError(
            "begins with lines that are no rows, and Spark reads all lines",
            place=f"{path}, row 1",
            remedy=f"Delete them, {_LEAVE_OUT}",
        )
    if file.has_header and re.search(r"[\r\n]", _header_of(file)):
        raise DataError(
            "a column's name holds a line end, and Spark reads lines",
            place=f"{path}, row 1",
            remedy=f"Rename the column, {_LEAVE_OUT}",
        )


def _header_of(file: TextFile) -> str:
    """The first record, as it stands in the file, without its line end."""
    num_bytes = 64 << 10
    while True:
        head, is_whole = read_head(file.path, file.compression, num_bytes)
        head = head.lstrip(b"\r\n")
        end = find_first_end(head, file.dialect)
        if end is not None or is_whole or num_bytes > _LONGEST_HEADER_BYTES:
            return head[:end].decode("utf-8", "replace").rstrip("\r\n")
        num_bytes *= 4


def plan_tables(
    data: DataConfig, source: Source, columns: Mapping[str, ColumnType]
) -> dict[str, CountedRows]:
    """The rows of each split.

    Args:
        data: How the files are read and divided.
        source: The files, which `require_readable` let pass.
        columns: Which columns are counted, and how they are read.

    Raises:
        DataError: A file cannot be read any more, or rows are divided by the hash of numbers.
    """
    missing = missing_texts(data.missing_values)
    shares = shares_of(data.split, source.files)
    splits = {*source.files, *shares.splits}
    is_divided, by_hash = shares.splits != ("train",), data.split.by == "hash"
    ranges: dict[str, tuple[int, int] | None] = dict.fromkeys(splits)
    if is_divided and not by_hash:
        # They are Parquet files, which know how many rows they have.
        known = [source.opened[file].known_rows() for file in source.files["train"]]
        ranges |= plan_order_ranges(sum(one or 0 for one in known), shares)
    tables = {}
    for split in SPLITS:
        if split not in splits:
            continue
        files = source.files.get(split, source.files["train"])
        opened = [as_kept(source.opened[file]) for file in files]
        texts = [one for one in opened if isinstance(one, TextFile)]
        parquet = [one for one in opened if isinstance(one, ParquetFile)]
        rows: list[LineRows | ParquetRows] = [
            *_group_lines(texts, f"ctrpipe_{split}_lines", missing),
            *_group_parquet(parquet, f"ctrpipe_{split}_files", missing, ranges[split]),
        ]
        sources: tuple[RowsInSql, ...] = tuple(rows)
        if data.key_value is not None:
            named = {data.label, data.weight, data.split.column, *columns}
            keys = tuple(key for key in _keys_of(source) if key in named)
            sources = tuple(KeyValueRows(one, data.key_value, keys) for one in rows)
        if is_divided and by_hash and files is source.files["train"]:
            hashes = plan_hash_ranges(shares)[split]
            sources = tuple(_hashed(one, data.split.column, hashes, columns) for one in sources)
        tables[split] = CountedRows(data.label, columns, sources, weight=data.weight)
    return tables


def _hashed(
    rows: RowsInSql,
    column: str | None,
    hashes: tuple[int, int],
    columns: Mapping[str, ColumnType],
) -> HashedRows:
    assert column is not None  # noqa: S101  by: hash has one
    assert isinstance(rows, LineRows | ParquetRows | KeyValueRows)  # noqa: S101
    is_text = columns.get(column, ColumnType.TEXT) is ColumnType.TEXT
    text = rows.value(column, ColumnType.TEXT) if is_text else None
    if text is None:
        raise DataError(
            "is read as a number, and Spark writes numbers otherwise than they are hashed here",
            place=f"data.split.column '{column}'",
            remedy=f"Divide rows by a column of texts or whole numbers that is no number feature, "
            f"{_LEAVE_OUT}",
        )
    return HashedRows(rows, text, hashes)


def _keys_of(source: Source) -> tuple[str, ...]:
    (keys,) = {one.keys for one in source.opened.values() if isinstance(one, KeyValueFile)}
    return keys


def _on_disk(file: TextFile | ParquetFile) -> Path:
    if not isinstance(file.path, Path):
        raise TypeError(f"{file.path} should have been refused before")
    return file.path


def _group_lines(files: Sequence[TextFile], name: str, missing: tuple[str, ...]) -> list[LineRows]:
    groups: dict[tuple[str, ...], list[TextFile]] = {}
    for file in files:
        groups.setdefault(file.column_names, []).append(file)
    return [
        LineRows(
            FileView(f"{name}_{number}", tuple(_on_disk(one) for one in group), is_text=True),
            column_names,
            group[0].dialect,
            tuple(dict.fromkeys(_header_of(one) for one in group if one.has_header)),
            missing,
        )
        for number, (column_names, group) in enumerate(groups.items())
    ]


def _group_parquet(
    files: Sequence[ParquetFile],
    name: str,
    missing: tuple[str, ...],
    wanted: tuple[int, int] | None,
) -> list[ParquetRows]:
    """Whole files with the same types and folders together, those cut by the range alone."""
    groups: dict[tuple[str, Partition, int | None], list[ParquetFile]] = {}
    cuts: dict[int, tuple[int, int]] = {}
    first = 0
    for index, file in enumerate(files):
        cut = None
        if wanted is not None:
            _, num_rows = read_schema(file.path)
            own = max(wanted[0] - first, 0), min(wanted[1] - first, num_rows)
            first += num_rows
            if own[0] >= own[1]:
                continue
            if own != (0, num_rows):
                cut = index
                cuts[index] = own
        kinds = str(list(zip(file.schema.names, file.schema.types, strict=True)))
        groups.setdefault((kinds, file.constants, cut), []).append(file)
    found = []
    for number, ((_, partition, cut), group) in enumerate(groups.items()):
        schema = _plain_schema(group[0].schema)
        row_number = None if cut is None else _free_name("ctrpipe_row", schema.names)
        view = FileView(f"{name}_{number}", tuple(_on_disk(one) for one in group), row_number)
        rows = None if cut is None else cuts[cut]
        found.append(ParquetRows(view, schema, partition, missing, rows))
    return found


def _plain_schema(schema: pa.Schema) -> pa.Schema:
    """Types without what Arrow alone knows of them: how texts lie in memory."""

    def plain(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_dictionary(kind):
            return plain(kind.value_type)
        is_text = pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
        return pa.string() if is_text else kind

    return pa.schema([(field.name, plain(field.type)) for field in schema])


def _text(value: str | None) -> exp.Expr:
    return exp.cast(exp.null() if value is None else exp.Literal.string(value), "text")


def _free_name(name: str, names: Sequence[str]) -> str:
    while name in names:
        name += "_"
    return name
