"""A watch on values that a model does not know.

Where new rows have far more of them than rows that training held out, their values are written
otherwise, come from elsewhere, or are of a later time: the scores of such rows rest on less.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ctr_pipeline.preprocessing.plan import FieldPlan, PreprocessingPlan
from ctr_pipeline.transforms.vocabulary import VocabularyStep

ROWS_OF_BATCH = 4096
"""So many of each batch are looked at."""
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
        num_unknown: Those that are not in the column's vocabulary.
        examples: The first different texts that are, or hold, such a value.
    """

    num_values: int = 0
    num_unknown: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Of the values, those that are unknown."""
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
    """Counts values that are in no vocabulary, in encoded rows.

    Args:
        plan: How they are encoded.
        show: Whether values may be shown.

    Attributes:
        columns: What was seen, by column that has a vocabulary.
    """

    def __init__(self, plan: PreprocessingPlan, *, show: bool) -> None:
        self._show = show
        self._places: list[tuple[FieldPlan, VocabularyStep, slice]] = []
        position = 0
        for one in plan.fields:
            after = position + one.num_positions
            if isinstance(one.step, VocabularyStep):
                self._places.append((one, one.step, slice(position, after)))
            position = after
        self.columns = {one.column: UnknownValues() for one, _, _ in self._places}

    def add(self, ids_BS: NDArray[np.int32], batch: pa.RecordBatch | None = None) -> None:
        """Counts the first rows of a batch.

        Args:
            ids_BS: Ids of the plan's positions.
            batch: The same rows as they were read, for examples.
        """
        ids_BS = ids_BS[:ROWS_OF_BATCH]
        for one, step, positions in self._places:
            ids_BL = ids_BS[:, positions]
            is_value = ids_BL != step.missing_id
            if one.sequence is not None:
                is_value &= ids_BL != one.padding_id
            is_unknown = (ids_BL >= step.size) & (ids_BL < step.size + step.oov_buckets)
            seen = self.columns[one.column]
            seen.num_values += int(is_value.sum())
            seen.num_unknown += int(is_unknown.sum())
            if self._show and batch is not None and len(seen.examples) < _EXAMPLES:
                rows = np.flatnonzero(is_unknown.any(axis=1))
                _add_examples(seen.examples, batch.column(one.column), rows)

    def shares(self) -> dict[str, float]:
        """The share of unknown values of each column."""
        return {name: seen.share for name, seen in self.columns.items() if seen.num_values}

    def compare(self, held_out: Mapping[str, float]) -> list[str]:
        """A sentence for each column with far more unknown values than rows held out have.

        Args:
            held_out: `shares` of rows that training held out; empty if they are not known.
        """
        return [
            f"{seen.share:.1%} of the values of '{name}' are unknown to the model, and "
            f"{held_out[name]:.1%} of those that training held out{_such_as(seen.examples)}"
            for name, seen in self.columns.items()
            if name in held_out and seen.are_far_more_than(held_out[name])
        ]


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
