"""A watch on values that tell a model nothing: those that it does not know, and those missing.

Where new rows have far more of them than rows that training held out, their values are written
otherwise, come from elsewhere, or are of a later time: the scores of such rows rest on less.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ctr_pipeline.kernels.arrow_values import TextColumn, text_column
from ctr_pipeline.preprocessing.plan import FieldPlan, NumberPlan, PreprocessingPlan

Shares = Mapping[str, Mapping[str, float]]
"""`unknown_values` and `missing_values` of `metrics.json`: a share of each column."""

ROWS_OF_BATCH = 4096
"""Rows of each batch that are looked at."""
_EXAMPLES = 2
_LONGEST_EXAMPLE = 40
_FEWEST_VALUES = 20
_LEAST_MORE = 0.1
_LEAST_TIMES = 2.0
_STANDARD_ERRORS = 4.0


@dataclass
class UnknownValues:
    """What was seen of a column.

    Attributes:
        num_values: Values that were there; of a sequence, elements.
        num_unknown: Values that tell the model nothing: not in the vocabulary, or missing.
        examples: The first different texts that are, or hold, such a value.
    """

    num_values: int = 0
    num_unknown: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def share(self) -> float:
        """The share of unknown values."""
        return self.num_unknown / max(self.num_values, 1)

    def are_far_more_than(self, held_out: float) -> bool:
        """Whether this is another kind of values than one of which that share is unknown.

        Twice as many are unknown then, or half as many are known, beyond chance.
        """
        more = self.share - held_out
        if self.num_values < _FEWEST_VALUES or more < _LEAST_MORE:
            return False
        expected = max(held_out, 1 / self.num_values)
        error = np.sqrt(expected * (1 - expected) / self.num_values)
        is_twice = self.share >= _LEAST_TIMES * held_out
        is_half = 1 - self.share <= (1 - held_out) / _LEAST_TIMES
        return bool(more > _STANDARD_ERRORS * error and (is_twice or is_half))


class UnknownCounter:
    """Counts values that are in no vocabulary, or missing, in encoded rows.

    A time that cannot be read is missing.

    Args:
        plan: How they are encoded.
        show: Whether values may be shown.

    Attributes:
        plan: How they are encoded.
        unknown: What was seen, by column that has a vocabulary.
        missing: What was seen, by column that is no sequence, vector or cross.
    """

    def __init__(self, plan: PreprocessingPlan, *, show: bool) -> None:
        self.plan, self._show = plan, show
        self._places: list[tuple[FieldPlan, range, slice]] = []
        self._fields: dict[str, tuple[FieldPlan, int]] = {}
        self._numbers: dict[str, tuple[NumberPlan, int]] = {}
        position = 0
        for one in plan.fields:
            after = position + one.num_positions
            if (unknown := one.step.unknown_ids) is not None:
                self._places.append((one, unknown, slice(position, after)))
            if one.sequence is None and one.step.columns_read is None:
                self._fields.setdefault(one.column, (one, position))
            position = after
        for place, number in enumerate(plan.numbers):
            if number.vector is None and number.column not in self._fields:
                self._numbers.setdefault(number.column, (number, place))
        self.unknown = {one.column: UnknownValues() for one, _, _ in self._places}
        self.missing = {name: UnknownValues() for name in (*self._fields, *self._numbers)}

    def add(
        self,
        ids_BS: NDArray[np.int32],
        numbers_BC: NDArray[np.float32],
        batch: pa.RecordBatch | None = None,
    ) -> None:
        """Counts the first rows of a batch.

        Args:
            ids_BS: Ids of the plan's positions.
            numbers_BC: The plan's numbers.
            batch: The same rows as they were read, for examples. Without them, numbers that are 0
                count as missing, which becomes 0.
        """
        ids_BS, numbers_BC = ids_BS[:ROWS_OF_BATCH], numbers_BC[:ROWS_OF_BATCH]
        if batch is not None:
            batch = batch.slice(0, ROWS_OF_BATCH)
        for name, (one, position) in self._fields.items():
            self._add_missing(name, ids_BS[:, position] == one.missing_id, batch)
        for name, (number, place) in self._numbers.items():
            if batch is None:
                self._add_missing(name, numbers_BC[:, place] == 0, None)
            else:
                self._add_missing(name, _is_missing(number, batch.column(name)), batch)
        for one, unknown, positions in self._places:
            ids_BL = ids_BS[:, positions]
            is_value = ids_BL != one.missing_id
            if one.sequence is not None:
                is_value &= ids_BL != one.padding_id
            is_unknown = (ids_BL >= unknown.start) & (ids_BL < unknown.stop)
            seen = self.unknown[one.column]
            seen.num_values += int(is_value.sum())
            seen.num_unknown += int(is_unknown.sum())
            if self._show and batch is not None and len(seen.examples) < _EXAMPLES:
                rows = np.flatnonzero(is_unknown.any(axis=1))
                _add_examples(seen.examples, batch.column(one.column), rows)

    def _add_missing(
        self, name: str, is_missing_B: NDArray[np.bool_], batch: pa.RecordBatch | None
    ) -> None:
        seen = self.missing[name]
        seen.num_values += len(is_missing_B)
        seen.num_unknown += int(is_missing_B.sum())
        if self._show and batch is not None and len(seen.examples) < _EXAMPLES:
            is_there_B = np.asarray(pc.is_valid(batch.column(name)))
            rows = np.flatnonzero(is_missing_B & is_there_B)
            _add_examples(seen.examples, batch.column(name), rows)

    def shares(self) -> dict[str, dict[str, float]]:
        """The shares of unknown and of missing values of each column, as in `metrics.json`."""
        return {
            key: {name: one.share for name, one in seen.items() if one.num_values}
            for key, (seen, _) in self._watched().items()
        }

    def compare(self, held_out: Shares) -> list[str]:
        """A sentence for each column with far more such values than rows held out have.

        Args:
            held_out: `shares` of rows that training held out; empty if they are not known.
        """
        return [
            f"{seen.share:.1%} of the values of '{name}' {what}, and "
            f"{held_out[key][name]:.1%} of those that training held out{_such_as(seen.examples)}"
            for key, (columns, what) in self._watched().items()
            for name, seen in columns.items()
            if name in held_out.get(key, {}) and seen.are_far_more_than(held_out[key][name])
        ]

    def _watched(self) -> dict[str, tuple[dict[str, UnknownValues], str]]:
        return {
            "unknown_values": (self.unknown, "are unknown to the model"),
            "missing_values": (self.missing, "are missing or tell nothing"),
        }


def _is_missing(number: NumberPlan, values: pa.Array) -> NDArray[np.bool_]:
    """Whether a value is missing, or no time where its age is asked for; [N]."""
    if number.first is not None and not number.first.files:
        text = text_column(values, column=number.column)
        kernel = number.first.open_kernel(Path())
        ages = kernel(TextColumn(text.values, text.num_values, None))
        return np.isnan(ages if text.indices is None else ages[text.indices])
    is_missing: Any = pc.is_null(values, nan_is_null=number.first is None)
    return np.asarray(is_missing)


def _add_examples(examples: list[str], texts: pa.Array, rows: NDArray[np.int64]) -> None:
    for row in rows.tolist():
        text = str(texts[row].as_py())
        shown = text if len(text) <= _LONGEST_EXAMPLE else f"{text[:_LONGEST_EXAMPLE]}…"
        if shown not in examples:
            examples.append(shown)
        if len(examples) == _EXAMPLES:
            return


def _such_as(examples: list[str]) -> str:
    return f", such as {' and '.join(map(repr, examples))}" if examples else ""
