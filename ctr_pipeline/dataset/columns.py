"""Which columns are read and as what, and how their values are understood.

Missing is what is empty, listed in `data.missing_values`, or NaN; it becomes NULL. A listed number
is missing however it is written. A text is kept exactly as it stands in the file, but for other
writings of a value (see `value_texts`). A number is a float64 and may be written as `7`, `-0.5`,
`.5`, `1e-05`, `inf` or `nan`, with a sign and surrounding blanks, or as `true` or `false`; digits
beyond float64 are rounded.
"""

import functools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ctr_pipeline.config.label_values import LabelValues
from ctr_pipeline.config.models import DataConfig, KeyValueConfig
from ctr_pipeline.dataset.bad_rows import BadRowReason, BlockFaults, Fault
from ctr_pipeline.dataset.lists import ListFault, find_list_faults
from ctr_pipeline.dataset.pairs import split_pairs
from ctr_pipeline.dataset.times import TimeColumn, points_in_time
from ctr_pipeline.dataset.value_texts import FALSE, TRUE, missing_texts, one_text
from ctr_pipeline.dataset.weights import LARGEST_WEIGHT
from ctr_pipeline.features import ListSpec
from ctr_pipeline.specs.columns import ColumnType

NUMBER = (
    r"(?i)^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$|^[+-]?(inf|infinity|nan(\([a-z0-9_]*\))?)$"
    rf"|^({TRUE}|{FALSE})$"
)

ARROW_TYPES = {ColumnType.NUMBER: pa.float64(), ColumnType.TEXT: pa.string()}


@dataclass(frozen=True)
class ReadingPlan:
    """What a reading takes from the files.

    Attributes:
        label: Column read as the label, int8; None if no label is needed.
        label_values: What labels are written as; None: as 0 and 1.
        weight: Column of the weights, one of `types`; None if rows have none, or need none.
        types: The other columns, in the order of the output.
        carried: Columns among them that are only copied: any type that has a text is fine.
        missing_values: Texts that mean missing, the empty one among them.
        sensitive: Columns whose values are never shown.
        lists: Text columns that are lists, and how they are cut.
        time: The one of `types` that rows are divided by in the order of time; None without.
        as_dictionaries: Text columns that may come out as dictionaries of texts, where the file has
            them so; others come out plain.
        key_columns: What one of `types`, a text of pairs, comes out as: a struct of columns; None
            without such a text.
    """

    label: str | None
    types: Mapping[str, ColumnType]
    carried: frozenset[str]
    missing_values: tuple[str, ...]
    sensitive: frozenset[str]
    weight: str | None = None
    label_values: LabelValues | None = None
    lists: Mapping[str, ListSpec] = field(default_factory=dict)
    time: TimeColumn | None = None
    as_dictionaries: frozenset[str] = frozenset()
    key_columns: "KeyColumns | None" = None

    @property
    def names(self) -> list[str]:
        """All columns, the label first."""
        return [*([self.label] if self.label is not None else []), *self.types]

    @property
    def pairs_column(self) -> str | None:
        """The column that is a text of pairs."""
        return None if self.key_columns is None else self.key_columns.cut.column

    def holds_values(self, column: str) -> bool:
        """Whether each text of a column of such is one value of a feature."""
        return not (column in self.carried or column in self.lists or column == self.pairs_column)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the tables that come out."""
        label = [(self.label, pa.int8())] if self.label is not None else []
        typed = {name: ARROW_TYPES[kind] for name, kind in self.types.items()}
        if self.key_columns is not None:
            typed[self.key_columns.cut.column] = pa.struct(self.key_columns.plan.schema)
        return pa.schema([*label, *typed.items()])


@dataclass(frozen=True)
class KeyColumns:
    """Columns that a text of key-value pairs is read as.

    Attributes:
        cut: Where the text is, and how it is cut.
        plan: The columns, each a key.
    """

    cut: KeyValueConfig
    plan: ReadingPlan


def plan_columns(
    data: DataConfig,
    column_types: Mapping[str, ColumnType],
    *,
    label_required: bool,
    carried: Sequence[str],
    sensitive: Collection[str],
    lists: Mapping[str, ListSpec] | None = None,
    time: TimeColumn | None = None,
) -> ReadingPlan:
    """The label, then the typed columns, then those carried as text unless typed already.

    Weights are read where the label is: they count in loss and metrics alone.
    """
    label = data.label if label_required else None
    weight = data.weight if label_required else None
    types = {name: kind for name, kind in column_types.items() if name != label}
    if weight is not None:
        types[weight] = ColumnType.NUMBER
    extra = [name for name in dict.fromkeys(carried) if name not in types and name != label]
    return ReadingPlan(
        label=label,
        types={**types, **dict.fromkeys(extra, ColumnType.TEXT)},
        carried=frozenset(extra),
        missing_values=missing_texts(data.missing_values),
        sensitive=frozenset(sensitive),
        weight=weight,
        label_values=data.label_values,
        lists=dict(lists or {}),
        time=time,
    )


@dataclass(frozen=True)
class ParsedBlock:
    """The good rows of a block, and what was wrong with the others.

    Attributes:
        table: The good rows, by the plan's schema but for columns that are dictionaries.
        num_lines: Lines of a text block, records of another one.
        counts: Bad rows by reason.
        faults: The first bad rows, each with its row number in the block, from 1.
    """

    table: pa.Table
    num_lines: int
    counts: Mapping[BadRowReason, int]
    faults: Sequence[tuple[Fault, int]]


def is_binary_label(label: pa.ChunkedArray) -> bool:
    """Whether every float64 label is present and 0 or 1."""
    if label.null_count:
        return False
    values = label.to_numpy()
    return bool(((values == 0) | (values == 1)).all())


def reject_times(
    values: pa.Array,
    time: TimeColumn,
    faults: BlockFaults,
    records: npt.NDArray[np.int64],
    *,
    show: Any,
) -> None:
    """Condemns rows whose time is missing, or is none.

    Args:
        values: string or float64, NULL where the time is missing.
        time: The column.
        faults: Where bad times go.
        records: Their numbers in the block.
        show: From positions to a function from their index to the text of the value.
    """
    is_missing = pc.is_null(values).to_numpy(zero_copy_only=False)
    is_none = np.isnan(points_in_time(values, time.format))
    wrong = np.flatnonzero(is_none & ~is_missing)
    missing = np.flatnonzero(is_missing)
    faults.reject(records[missing], BadRowReason.TIME_MISSING, time.name, lambda _: "")
    faults.reject(records[wrong], BadRowReason.NOT_A_TIME, time.name, show(wrong))


@functools.cache
def missing_numbers(missing_values: tuple[str, ...]) -> tuple[float, ...]:
    """Numbers that mean missing beside NaN: those that texts which mean missing are.

    Args:
        missing_values: Texts that mean missing.
    """
    numbers, _ = _read_numbers(pc.utf8_trim_whitespace(pa.array(missing_values, pa.string())))
    return tuple(dict.fromkeys(_nan_to_null(numbers).drop_null().to_pylist()))


def present_numbers(numbers: Any, missing_values: Sequence[str]) -> Any:
    """Numbers that mean missing become NULL, NaN among them; the same array if there are none.

    Args:
        numbers: An array or chunked array of float64.
        missing_values: Texts that mean missing.
    """
    numbers = _nan_to_null(numbers)
    for listed in missing_numbers(tuple(missing_values)):
        is_missing = pc.equal(numbers, listed)
        if pc.any(is_missing).as_py():
            numbers = pc.if_else(is_missing, pa.scalar(None, pa.float64()), numbers)
    return numbers


def _nan_to_null(numbers: Any) -> Any:
    # One pass where there is nothing to do: a sum with NaN in it is NaN.
    total = pc.sum(numbers).as_py()
    if total is None or not math.isnan(total):
        return numbers
    is_nan = pc.is_nan(numbers)
    if not pc.any(is_nan).as_py():
        return numbers
    return pc.if_else(is_nan, pa.scalar(None, pa.float64()), numbers)


def missing_to_null(texts: Any, missing_values: Sequence[str]) -> Any:
    """Texts that mean missing become NULL; an array or chunked array of strings."""
    is_missing = pc.is_in(texts, value_set=pa.array(missing_values, pa.string()))
    if not pc.any(is_missing).as_py():
        return texts
    return pc.if_else(is_missing, pa.scalar(None, pa.string()), texts)


def known_texts(texts: pa.Array, missing_values: Sequence[str]) -> pa.Array:
    """Texts that are NULL where missing, each as the one of its value; the same array if each is.

    Args:
        texts: string.
        missing_values: Also the one text of each.
    """
    rewritten = one_text(texts)
    return texts if rewritten is texts else missing_to_null(rewritten, missing_values)


def parse_numbers(texts: pa.Array, missing_values: Sequence[str]) -> tuple[pa.Array, pa.Array]:
    """Numbers from texts, NULL where missing, and a mask of the texts that are no numbers."""
    trimmed = missing_to_null(
        pc.utf8_trim_whitespace(missing_to_null(texts, missing_values)), missing_values
    )
    numbers, invalid = _read_numbers(trimmed)
    return present_numbers(numbers, missing_values), invalid


def _read_numbers(trimmed: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Numbers from texts without blanks around them, NULL where they are none, and a mask of it."""
    is_number = pc.fill_null(pc.match_substring_regex(trimmed, NUMBER), True)
    invalid = pc.invert(is_number)
    if pc.any(invalid).as_py():
        trimmed = pc.if_else(is_number, trimmed, pa.scalar(None, pa.string()))
    return pc.cast(one_text(trimmed), pa.float64()), invalid


def parse_labels(
    texts: Any, values: LabelValues, missing_values: Sequence[str]
) -> tuple[pa.Array, pa.Array]:
    """0 and 1 from labels written otherwise, NULL where missing, and a mask of other texts.

    Args:
        texts: An array or chunked array of strings.
        values: What labels are written as.
        missing_values: Texts that mean missing.
    """
    whole = pa.concat_arrays(texts.chunks) if isinstance(texts, pa.ChunkedArray) else texts
    trimmed = pc.utf8_trim_whitespace(missing_to_null(whole, missing_values))
    found = missing_to_null(trimmed, missing_values).dictionary_encode()
    known = [values.read(text) for text in found.dictionary.to_pylist()]
    numbers = pc.take(pa.array(known, pa.float64()), found.indices)
    return numbers, pc.and_(pc.is_valid(found), pc.is_null(numbers))


def convert_texts(
    texts: pa.Array,
    column: str,
    plan: ReadingPlan,
    faults: BlockFaults,
    records: npt.NDArray[np.int64],
) -> pa.Array:
    """One column of texts as the plan wants it; `records` are their numbers in the block.

    Values that do not fit are rejected in `faults` and come out as NULL.
    """

    def show(positions: npt.NDArray[np.int64]) -> Any:
        return lambda index: texts[int(positions[index])].as_py()

    if column != plan.label and plan.types[column] is ColumnType.TEXT:
        known = missing_to_null(texts, plan.missing_values)
        if plan.holds_values(column):
            known = known_texts(known, plan.missing_values)
        if plan.key_columns is not None and column == plan.pairs_column:
            return _convert_pairs(known, plan.key_columns, faults, records)
        if column in plan.lists:
            reject_lists(find_list_faults(known, plan.lists[column]), column, faults, records)
        if plan.time is not None and column == plan.time.name:
            reject_times(known, plan.time, faults, records, show=show)
        return known
    if column == plan.label and plan.label_values is not None:
        numbers, invalid = parse_labels(texts, plan.label_values, plan.missing_values)
    else:
        numbers, invalid = parse_numbers(texts, plan.missing_values)
    wrong = np.flatnonzero(invalid.to_numpy(zero_copy_only=False))
    if column == plan.label:
        return convert_label(numbers, plan, faults, records, wrong=wrong, show=show)
    faults.reject(records[wrong], BadRowReason.NOT_A_NUMBER, column, show(wrong))
    if column == plan.weight:
        reject_weights(numbers, column, faults, records, show=show)
    if plan.time is not None and column == plan.time.name:
        reject_times(numbers, plan.time, faults, records, show=show)
    return numbers


def reject_lists(
    found: Sequence[ListFault],
    column: str,
    faults: BlockFaults,
    records: npt.NDArray[np.int64],
) -> None:
    """Condemns rows with what is wrong in a column of lists or of pairs.

    Args:
        found: What is wrong.
        column: The column.
        faults: Where it goes.
        records: Numbers of the rows in the block.
    """
    for fault in found:
        note = None if fault.notes is None else fault.notes.__getitem__
        shown = fault.shown.__getitem__
        faults.reject(records[fault.rows], fault.reason, column, shown, note)


def _convert_pairs(
    texts: pa.Array, into: KeyColumns, faults: BlockFaults, records: npt.NDArray[np.int64]
) -> pa.StructArray:
    """Texts of pairs as the columns that their keys are; the arguments are of `convert_texts`."""
    values, found = split_pairs(texts, into.cut, into.plan.names)
    reject_lists(found, into.cut.column, faults, records)
    columns = [
        convert_texts(value, name, into.plan, faults, records)
        for name, value in zip(into.plan.names, values, strict=True)
    ]
    return pa.StructArray.from_arrays(columns, fields=list(into.plan.schema))


def is_weight(numbers: Any) -> npt.NDArray[np.bool_]:
    """Which float64 values can be weights; an array or chunked array."""
    values = pc.fill_null(numbers, -1.0).to_numpy()
    # NaN is neither.
    return np.asarray((values >= 0) & (values <= LARGEST_WEIGHT), dtype=np.bool_)


def reject_weights(
    numbers: pa.Array,
    column: str,
    faults: BlockFaults,
    records: npt.NDArray[np.int64],
    *,
    show: Any,
) -> None:
    """Condemns rows whose weight is missing, negative or too large.

    Args:
        numbers: NULL where the weight is missing or no number.
        column: The column of weights.
        faults: Where bad weights go.
        records: Their numbers in the block.
        show: From positions to a function from their index to the text of the value.
    """
    missing = np.flatnonzero(pc.is_null(numbers).to_numpy(zero_copy_only=False))
    wrong = np.flatnonzero(~is_weight(pc.fill_null(numbers, 0.0)))
    faults.reject(records[missing], BadRowReason.WEIGHT_MISSING, column, lambda _: "")
    faults.reject(records[wrong], BadRowReason.WEIGHT_OUT_OF_RANGE, column, show(wrong))


def convert_label(
    numbers: pa.Array,
    plan: ReadingPlan,
    faults: BlockFaults,
    records: npt.NDArray[np.int64],
    *,
    wrong: npt.NDArray[np.int64],
    show: Any,
) -> pa.Array:
    """The label as int8 from float64; bad ones are rejected and come out as NULL.

    Args:
        numbers: NULL where the label is missing or no number.
        plan: Names the label, and says what it is written as.
        faults: Where bad labels go.
        records: Their numbers in the block.
        wrong: Positions of those that are neither missing nor a number.
        show: From positions to a function from their index to the text of the value.
    """
    is_present = pc.is_valid(numbers).to_numpy(zero_copy_only=False)
    values = pc.fill_null(numbers, 0.0).to_numpy(zero_copy_only=False)
    is_binary = (values == 0) | (values == 1)
    is_wrong = is_present & ~is_binary
    is_wrong[wrong] = True
    is_missing = ~is_present & ~is_wrong
    missing, not_binary = np.flatnonzero(is_missing), np.flatnonzero(is_wrong)
    is_as_01 = plan.label_values is None
    reason = BadRowReason.LABEL_NOT_BINARY if is_as_01 else BadRowReason.LABEL_OF_NEITHER
    faults.reject(records[missing], BadRowReason.LABEL_MISSING, plan.label, lambda _: "")
    faults.reject(records[not_binary], reason, plan.label, show(not_binary))
    return pa.array(np.where(is_binary, values, 0).astype(np.int8), mask=is_wrong | is_missing)
