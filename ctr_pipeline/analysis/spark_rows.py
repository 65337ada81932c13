"""Which rows of files are those of a split, and their columns, as SQL that Spark runs; pure.

Nothing is left to Spark's own reading of text, which differs in what quotes, blanks and missing
values are: Spark gives the lines of a file, and SQL cuts them as `formats.text.records` does. Rows
of Parquet files have numbers, so they may be divided by order; lines have none.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from sqlglot import exp

from ctr_pipeline.analysis.table_sql import (
    RowsInSql,
    TrainingTable,
    is_listed,
    present_text,
    typed_value,
    without_minus_zero,
)
from ctr_pipeline.config.models import DataConfig
from ctr_pipeline.dataset.formats.parquet.reading import ParquetFile, read_schema
from ctr_pipeline.dataset.formats.text.blocks import TextFile, read_head
from ctr_pipeline.dataset.formats.text.compression import Compression
from ctr_pipeline.dataset.formats.text.records import Dialect, find_first_end
from ctr_pipeline.dataset.partitions import Partition
from ctr_pipeline.dataset.source import Source
from ctr_pipeline.dataset.splits import SPLITS, Shares, plan_order_ranges
from ctr_pipeline.errors import DataError
from ctr_pipeline.specs.columns import ColumnType

LINE = "line"
"""The column of a view of lines."""
_FIELDS = "fields"
_ENGINE = "analysis.engine"
_LEAVE_OUT = "or leave analysis out: the rows that were read are then counted here"
_ENDINGS = {".gz": Compression.GZIP, ".zst": Compression.ZSTD}
# Endings that Hadoop takes for a compression.
_COMPRESSED_ENDINGS = (".gz", ".zst", ".bz2", ".deflate", ".lz4", ".snappy")
_LONGEST_HEADER_BYTES = 16 << 20
_EXACT_DIGITS = 15
"""Decimals of so many digits become the same float64 in Arrow and in Java."""
_BLANKS = (
    "\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007"
    "\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)
"""What may stand around a number: the white space of Unicode, as Arrow trims it."""


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
        """For messages."""
        return str(self.view.files[0])

    @property
    def schema(self) -> pa.Schema:
        """Texts all."""
        return pa.schema([(name, pa.string()) for name in self.column_names])

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
        """For messages."""
        return str(self.view.files[0])

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


def find_views(table: TrainingTable) -> tuple[FileView, ...]:
    """The views that the SQL of a table reads."""
    rows = table.sources
    return tuple(one.view for one in rows if isinstance(one, LineRows | ParquetRows))


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
    for file, opened in source.opened.items():
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
    if _shares(data, source).splits == ("train",):
        return
    is_by_order = split.by == "order"
    if is_by_order and source.format_name == "parquet":
        return
    why = "lines of text have no numbers there" if is_by_order else f"{split.by} is counted here"
    also = " or use Parquet files and by: order," if not is_by_order else " or use Parquet files,"
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


def _shares(data: DataConfig, source: Source) -> Shares:
    return Shares(
        valid=0.0 if "valid" in source.files else data.split.valid,
        test=0.0 if "test" in source.files else data.split.test,
    )


def plan_tables(
    data: DataConfig, source: Source, num_rows: Mapping[str, int]
) -> dict[str, TrainingTable]:
    """The rows of each split.

    Args:
        data: How the files are read and divided.
        source: The files, which `require_readable` let pass.

    Raises:
        DataError: A file cannot be read any more.
    """
    missing = tuple(dict.fromkeys(("", *data.missing_values)))
    shares = _shares(data, source)
    divided = {split: num_rows[split] for split in shares.splits if split in num_rows}
    ranges: dict[str, tuple[int, int] | None] = dict.fromkeys(num_rows)
    if shares.splits != ("train",):
        ranges |= plan_order_ranges(sum(divided.values()), shares)
    tables = {}
    for split in SPLITS:
        if split not in num_rows:
            continue
        files = source.files.get(split, source.files["train"])
        opened = [source.opened[file] for file in files]
        texts = [one for one in opened if isinstance(one, TextFile)]
        parquet = [one for one in opened if isinstance(one, ParquetFile)]
        rows: list[RowsInSql] = [
            *_group_lines(texts, f"ctrpipe_{split}_lines", missing),
            *_group_parquet(parquet, f"ctrpipe_{split}_files", missing, ranges[split]),
        ]
        tables[split] = TrainingTable(data.label, tuple(rows), weight=data.weight)
    return tables


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
        groups.setdefault((kinds, file.partition, cut), []).append(file)
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


def number_of_text(text: exp.Expr, missing_values: Sequence[str]) -> exp.Expr:
    """The number that a text is, NULL if it is missing; texts that are no numbers do not come."""
    trimmed = exp.Trim(this=text, expression=exp.Literal.string(_BLANKS), position="BOTH")
    number = without_minus_zero(exp.cast(trimmed, "double"))
    case = exp.Case().when(is_listed(text.copy(), missing_values), exp.null())
    return case.when(is_listed(trimmed.copy(), missing_values), exp.null()).else_(number)


@dataclass(frozen=True)
class FieldPatterns:
    """Regular expressions, as Java and Python have them, of fields that may be quoted.

    A quote opens at a field's start only, a doubled one is one quote, and after the one that closes
    the field goes on as an unquoted one. No step goes back over what it has taken, so that a long
    line costs no more than its length.

    Attributes:
        field: A delimiter and, as group 1, the field behind it.
        quoted: At the start of a field, its quoted part, what is within the quotes as group 1.
    """

    field: str
    quoted: str


def field_patterns(dialect: Dialect) -> FieldPatterns:
    """The patterns of a dialect with a quote."""
    quote, delimiter = re.escape(dialect.quote or ""), re.escape(dialect.delimiter)
    inner = f"[^{quote}]*+(?:{quote}{quote}[^{quote}]*+)*+"
    return FieldPatterns(
        f"{delimiter}((?:{quote}{inner}{quote})?+[^{delimiter}]*+)", f"^{quote}({inner}){quote}"
    )


def build_fields(line: exp.Expr, dialect: Dialect) -> exp.Expr:
    """The fields of a line as an array of texts; NULL if a quote is opened and not closed."""
    plain = exp.Split(this=line.copy(), expression=exp.Literal.string(dialect.delimiter))
    if dialect.quote is None:
        return plain
    patterns = field_patterns(dialect)
    quote = exp.Literal.string(dialect.quote)
    # With a delimiter in front every field has one, and no match is empty.
    whole = _call("CONCAT", exp.Literal.string(dialect.delimiter), line.copy())
    found = _call(
        "REGEXP_EXTRACT_ALL", whole, exp.Literal.string(patterns.field), exp.Literal.number(1)
    )
    field, quoted = exp.column("field"), exp.Literal.string(patterns.quoted)
    opens = _call("STARTSWITH", field, quote)
    inner = _call("REGEXP_EXTRACT", field, quoted, exp.Literal.number(1))
    doubled = exp.Literal.string(dialect.quote * 2)
    within = _call("REPLACE", inner, doubled, quote)
    behind = _call("REGEXP_REPLACE", field, quoted, exp.Literal.string(""))
    unquoted = exp.Case().when(opens.copy(), _call("CONCAT", within, behind)).else_(field.copy())
    is_closed = _call("REGEXP_LIKE", field, quoted)
    is_open = exp.And(this=opens.copy(), expression=exp.Not(this=is_closed))
    fields = _call("TRANSFORM", found.copy(), _each(unquoted))
    has_open = _call("EXISTS", found.copy(), _each(is_open))
    cut = exp.Case().when(has_open, exp.null()).else_(fields)
    has_quote = exp.GT(
        this=_call("INSTR", line.copy(), quote.copy()), expression=exp.Literal.number(0)
    )
    return exp.Case().when(has_quote, cut).else_(plain)


def _each(expression: exp.Expr) -> exp.Lambda:
    return exp.Lambda(this=expression, expressions=[exp.to_identifier("field")])


def _call(name: str, *arguments: exp.Expr) -> exp.Anonymous:
    """A function of Spark by its name: sqlglot's own would change what dialects share."""
    return exp.Anonymous(this=name, expressions=[one.copy() for one in arguments])
