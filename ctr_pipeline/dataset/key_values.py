"""Sources in which a text of key-value pairs stands for columns of their own (`data.key_value`).

The rows become wider as they are parsed, so that all that follows sees ordinary columns.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from ctr_pipeline.config.models import DataConfig, KeyValueConfig
from ctr_pipeline.dataset.arrow_columns import column_type_of
from ctr_pipeline.dataset.columns import KeyColumns, ParsedBlock, ReadingPlan, missing_to_null
from ctr_pipeline.dataset.limits import check_num_columns
from ctr_pipeline.dataset.pairs import find_keys, split_pairs
from ctr_pipeline.dataset.source import Block, Place, Range, Source, SourceFile
from ctr_pipeline.dataset.text_columns import read_text_columns
from ctr_pipeline.dataset.value_texts import missing_texts
from ctr_pipeline.errors import DataError
from ctr_pipeline.specs.columns import ColumnType


@dataclass(frozen=True)
class KeyValueFile:
    """A file or table whose pairs are columns.

    Attributes:
        file: As it is kept.
        cut: Where the pairs are, and how they are cut.
        keys: The columns that they are.
    """

    file: SourceFile
    cut: KeyValueConfig
    keys: tuple[str, ...]

    @property
    def path(self) -> Place:
        """Where it is."""
        return self.file.path

    @property
    def column_names(self) -> tuple[str, ...]:
        """Keys stand in the place of their text."""
        return _with_keys(self.file.column_names, self.cut.column, self.keys)

    def size_bytes(self) -> int:
        """As `SourceFile.size_bytes`."""
        return self.file.size_bytes()

    def known_rows(self) -> int | None:
        """As `SourceFile.known_rows`."""
        return self.file.known_rows()

    def state(self) -> tuple[str | int, ...]:
        """As `SourceFile.state`."""
        return self.file.state()

    def ranges(self, unit_bytes: int | None) -> list[Range]:
        """As `SourceFile.ranges`."""
        return self.file.ranges(unit_bytes)

    def read(self, part: Range, plan: ReadingPlan, block_bytes: int) -> Iterator[Block]:
        """As `SourceFile.read`."""
        kept = _plan_as_kept(plan, self.cut, self.keys)
        for block in self.file.read(part, kept, block_bytes):
            yield KeyValueBlock(block, self.cut, self.keys)


@dataclass(frozen=True)
class KeyValueBlock:
    """Some consecutive rows whose pairs are columns; the attributes are those of `KeyValueFile`."""

    block: Block
    cut: KeyValueConfig
    keys: tuple[str, ...]

    @property
    def path(self) -> Place:
        """Where the rows are from."""
        return self.block.path

    @property
    def position_bytes(self) -> int:
        """As `Block.position_bytes`."""
        return self.block.position_bytes

    def parse(self, plan: ReadingPlan) -> ParsedBlock:
        """As `Block.parse`."""
        kept = _plan_as_kept(plan, self.cut, self.keys)
        parsed = self.block.parse(kept)
        if kept.key_columns is None:
            return parsed
        columns = dict(zip(parsed.table.column_names, parsed.table.columns, strict=True))
        pairs = columns.pop(self.cut.column)
        columns |= zip(kept.key_columns.plan.names, pairs.flatten(), strict=True)
        return replace(parsed, table=pa.table({name: columns[name] for name in plan.names}))


def as_kept(file: SourceFile) -> SourceFile:
    """A file or table without the columns that its pairs are."""
    return file.file if isinstance(file, KeyValueFile) else file


def with_key_columns(source: Source, data: DataConfig, cut: KeyValueConfig) -> Source:
    """A source whose pairs are columns, in the place of their text.

    Args:
        source: The rows as they are kept.
        data: How they are read.
        cut: Its `key_value`.

    Raises:
        DataError: The column is not there or holds no pairs, or a key has the name of another
            column.
    """
    source.require([cut.column], "data.key_value.column")
    first = str(next(iter(source.opened)))
    place = f"{first}, column '{cut.column}'"
    head = source.head.column(cut.column)
    if column_type_of(head.type) is not ColumnType.TEXT:
        raise DataError(
            f"has the type {head.type}, and key-value pairs are texts",
            place=place,
            remedy="Name the column of pairs in data.key_value.column",
        )
    missing = missing_texts(data.missing_values)
    texts = missing_to_null(head.cast(pa.string()).combine_chunks(), missing)
    keys = tuple(find_keys(texts, cut)) if cut.keys is None else cut.keys
    if not keys:
        raise DataError(
            f"no key with a '{cut.value}' behind it is in the first rows",
            place=place,
            remedy="Check data.key_value.pairs and data.key_value.value, or list the keys in "
            "data.key_value.keys",
        )
    check_num_columns(len(keys) + len(source.column_names), first)
    if both := [key for key in keys if key in source.column_names and key != cut.column]:
        raise DataError(
            f"the key '{both[0]}' has the name of another column",
            place=place,
            remedy="Rename the column, or list the other keys in data.key_value.keys",
        )
    values, _ = split_pairs(texts, cut, keys)
    known = [missing_to_null(value, missing) for value in values]
    read = read_text_columns(pa.table(known, names=list(keys)), missing)
    names = _with_keys(source.column_names, cut.column, keys)
    columns = {name: source.head.column(name) for name in source.column_names}
    columns |= dict(zip(keys, read.typed.columns, strict=True))
    own = {name: kind for name, kind in source.inferred_types.items() if name != cut.column}
    block = source.head_block
    return replace(
        source,
        column_names=names,
        inferred_types={**own, **read.types},
        head=pa.table({name: columns[name] for name in names}),
        opened={place: KeyValueFile(file, cut, keys) for place, file in source.opened.items()},
        head_block=None if block is None else KeyValueBlock(block, cut, keys),
        times={**source.times, **read.times},
        finds_keys=cut.keys is None,
    )


def _with_keys(names: tuple[str, ...], column: str, keys: tuple[str, ...]) -> tuple[str, ...]:
    place = names.index(column)
    return (*names[:place], *keys, *names[place + 1 :])


def _plan_as_kept(plan: ReadingPlan, cut: KeyValueConfig, keys: tuple[str, ...]) -> ReadingPlan:
    """The plan by which rows are read as they are kept, with the keys that are wanted."""
    wanted = {name: kind for name, kind in plan.types.items() if name in keys}
    others = {name: kind for name, kind in plan.types.items() if name not in keys}
    is_label = plan.label in keys
    if not wanted and not is_label:
        return plan
    of_keys = replace(plan, types=wanted, label=plan.label if is_label else None)
    sensitive = plan.sensitive
    if not sensitive.isdisjoint(keys):
        sensitive |= {cut.column}
    return replace(
        plan,
        types={**others, cut.column: ColumnType.TEXT},
        label=None if is_label else plan.label,
        sensitive=sensitive,
        key_columns=KeyColumns(cut, of_keys),
    )
