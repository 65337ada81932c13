"""All rows of files as tables, every column, for those who want the rows and not a training.

Text comes as texts. Whether a column of texts is one of numbers is found by reading all of it.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr_pipeline.dataset.bad_rows import BadRowLedger
from ctr_pipeline.dataset.columns import ReadingPlan, parse_numbers
from ctr_pipeline.dataset.data_files import DataFile, size_of
from ctr_pipeline.dataset.formats.databases.table import DatabaseTable
from ctr_pipeline.dataset.formats.maxcompute.source import MaxComputeTable
from ctr_pipeline.dataset.formats.parquet.reading import ParquetFile, read_batches
from ctr_pipeline.dataset.formats.recordio.examples import (
    ExampleColumns,
    ExampleKind,
    find_features,
    read_examples,
)
from ctr_pipeline.dataset.formats.recordio.rows import read_record_blocks
from ctr_pipeline.dataset.formats.text.blocks import BLOCK_BYTES
from ctr_pipeline.dataset.inference import is_numeric
from ctr_pipeline.dataset.rows import read_good_rows
from ctr_pipeline.dataset.source import Source
from ctr_pipeline.errors import DataError
from ctr_pipeline.specs.columns import ColumnType

OnBytes = Callable[[int], None]
_BATCH_ROWS = 16_384
_WHOLE = r"^(0|-?[1-9][0-9]{0,17})$"
_MANY_DIGITS = r"^[+-]?[0-9]{19,}$"


def paths_of(source: Source) -> list[DataFile]:
    """The files, in their order; tables of a service are none."""
    return [path for path in source.opened if isinstance(path, DataFile)]


def read_texts(source: Source, on_bytes: OnBytes, threads: int = 2) -> Iterator[pa.Table]:
    """All rows of delimited files or records, as texts.

    Raises:
        DataError: A file is damaged, or a row is bad.
    """
    names = source.column_names
    plan = ReadingPlan(
        None, dict.fromkeys(names, ColumnType.TEXT), frozenset(names), ("",), frozenset()
    )
    ledger = BadRowLedger("fail", 0.0, may_skip=False)
    with ThreadPoolExecutor(threads, thread_name_prefix="convert") as pool:
        yield from read_good_rows(
            source, paths_of(source), plan, ledger, pool, max_ahead=threads, on_bytes=on_bytes
        )


@dataclass
class TextTypes:
    """Finds which columns of texts are numbers that lose nothing as such.

    A whole number has no sign `+`, no leading zeros and at most 18 digits; others are float64.
    """

    kinds: dict[str, pa.DataType | None] = field(default_factory=dict)

    def look(self, table: pa.Table) -> None:
        """Takes more rows into account."""
        for name in table.column_names:
            kind = self.kinds.get(name)
            column = table.column(name).drop_null()
            if kind == pa.string() or not len(column):
                self.kinds.setdefault(name, None)
                continue
            if kind != pa.float64() and pc.all(pc.match_substring_regex(column, _WHOLE)).as_py():
                self.kinds[name] = pa.int64()
                continue
            is_float = (
                pc.all(is_numeric(column)).as_py()
                and pc.all(pc.equal(pc.utf8_trim_whitespace(column), column)).as_py()
                and not pc.any(pc.match_substring_regex(column, _MANY_DIGITS)).as_py()
            )
            self.kinds[name] = pa.float64() if is_float else pa.string()

    def typed(self, table: pa.Table) -> pa.Table:
        """The rows with numbers where all rows have them."""
        columns: dict[str, Any] = {}
        for name in table.column_names:
            column = table.column(name)
            kind = self.kinds[name] or pa.string()
            if kind == pa.float64():
                columns[name] = parse_numbers(column.combine_chunks(), ("",))[0]
            else:
                columns[name] = pc.cast(column, kind)
        return pa.table(columns)


def read_parquet(source: Source, on_bytes: OnBytes) -> Iterator[pa.Table]:
    """All rows of Parquet files, with the columns of the first file in its order.

    Raises:
        DataError: A file is damaged.
    """
    for file in source.opened.values():
        if not isinstance(file, ParquetFile):
            continue
        size = size_of(file.path)
        num_rows = max(file.num_rows, 1)
        done = 0
        for batch in read_batches(file, source.column_names, _BATCH_ROWS):
            yield pa.Table.from_batches([batch])
            before, done = done, done + batch.num_rows
            on_bytes(size * done // num_rows - size * before // num_rows)


def read_tables(source: Source, on_bytes: OnBytes) -> Iterator[pa.Table]:
    """All rows of tables of databases or of a service, with the types of the first one.

    Raises:
        DataError: The rows cannot be read, or a value does not have its column's type.
    """
    kinds: pa.Schema | None = None
    for place, opened in source.opened.items():
        # What a database needs is imported only where one is named.
        if isinstance(opened, DatabaseTable):
            from ctr_pipeline.dataset.formats.databases.inspection import read_rows

            batches = read_rows(opened)
        elif isinstance(opened, MaxComputeTable):
            from ctr_pipeline.dataset.formats.maxcompute import reading

            batches = reading.read_rows(opened)
        else:
            continue
        for batch in batches:
            table = pa.Table.from_batches([batch]).select(list(source.column_names))
            kinds = table.schema if kinds is None else kinds
            for name in kinds.names:
                found, expected = table.schema.field(name).type, kinds.field(name).type
                declared = opened.schema.field(name).type
                if pa.types.is_string(found) and pa.types.is_primitive(declared):
                    # SQLite: a value that is no number makes texts of all in its batch.
                    expected = declared
                if found != expected:
                    raise DataError(
                        f"has values of the type {found}, and others of the type {expected}",
                        place=f"{place}, column '{name}'",
                        remedy="Give all values of the column one type",
                    )
            yield table
        on_bytes(source.size_bytes(place))


@dataclass
class ExampleTypes:
    """Finds the features of all Examples and of which kind their values are."""

    names: tuple[str, ...] = ()
    kinds: dict[str, set[ExampleKind]] = field(default_factory=dict)
    not_utf8: set[str] = field(default_factory=set)

    def look(self, source: Source, on_bytes: OnBytes) -> None:
        """Reads all rows.

        Raises:
            DataError: A file is damaged, a record is no Example, or a feature has several values.
        """
        for path in paths_of(source):
            num_before, position = 0, 0
            for records, after in read_record_blocks(path, BLOCK_BYTES):
                self.names = find_features(records, self.names)
                columns = read_examples(records, self.names)
                _check(columns, path, num_before)
                for feature, name in enumerate(self.names):
                    kinds = columns.kinds_of(feature)
                    self.kinds.setdefault(name, set()).update(kinds)
                    if ExampleKind.BYTES in kinds and name not in self.not_utf8:
                        try:
                            pc.cast(columns.bytes_of(feature), pa.large_string())
                        except pa.ArrowInvalid:
                            self.not_utf8.add(name)
                num_before += len(records)
                on_bytes(after - position)
                position = after

    def read(self, source: Source, on_bytes: OnBytes) -> Iterator[pa.Table]:
        """All rows, typed by what `look` saw."""
        for path in paths_of(source):
            position = 0
            for records, after in read_record_blocks(path, BLOCK_BYTES):
                columns = read_examples(records, self.names)
                yield pa.table(
                    [self._typed(columns, feature) for feature in range(len(self.names))],
                    names=list(self.names),
                )
                on_bytes(after - position)
                position = after

    def _typed(self, columns: ExampleColumns, feature: int) -> pa.Array:
        name = self.names[feature]
        kinds = self.kinds[name]
        if kinds == {ExampleKind.INT64}:
            return columns.int64_of(feature)
        if kinds == {ExampleKind.FLOAT}:
            return columns.float_of(feature)
        if name in self.not_utf8 and kinds == {ExampleKind.BYTES}:
            return columns.bytes_of(feature)
        texts = [
            pc.cast(columns.bytes_of(feature), pa.large_string()),
            pc.cast(columns.int64_of(feature), pa.large_string()),
            pc.cast(columns.float_of(feature), pa.large_string()),
        ]
        if kinds == {ExampleKind.INT64, ExampleKind.FLOAT}:
            return pc.cast(pc.coalesce(*texts), pa.float64())
        return pc.coalesce(*texts)


def _check(columns: ExampleColumns, path: DataFile, num_before: int) -> None:
    wrong = np.flatnonzero(~columns.is_good_N)
    if len(wrong):
        raise DataError(
            "not a tf.train.Example",
            place=f"{path}, row {num_before + int(wrong[0]) + 1}",
            remedy="Write the record again",
        )
    for feature, name in enumerate(columns.names):
        several = np.flatnonzero(columns.counts_TN[feature] > 1)
        if len(several):
            raise DataError(
                "several values in one record",
                place=f"{path}, row {num_before + int(several[0]) + 1}, column '{name}'",
                remedy="Write one value a record",
            )
