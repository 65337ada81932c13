"""Record batches to ids and numbers, the way training takes them."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numba import njit

from ctr_pipeline.features import ColumnType
from ctr_pipeline.preprocessing.arrow_values import (
    NumberColumn,
    TextColumn,
    number_column,
    text_column,
)
from ctr_pipeline.preprocessing.crosses import CrossValues, number_part, text_part
from ctr_pipeline.preprocessing.faces import ID_FACES, NUMBER_FACES
from ctr_pipeline.preprocessing.fitted import FittedCross, PreprocessingPlan
from ctr_pipeline.preprocessing.number_kernels import finish_numbers
from ctr_pipeline.preprocessing.text_kernels import fingerprint_values

_ROWS_AT_ONCE = 1024


@dataclass(frozen=True)
class EncodedBatch:
    """What the model takes.

    Attributes:
        ids: int32 [N, F]; field f has ids in [0, num_ids of field f).
        numbers: float32 [N, D], finite.
    """

    ids: np.ndarray
    numbers: np.ndarray


class ColumnEncoder:
    """Runs a plan's kernels over record batches.

    It holds no state between batches, and its kernels release the interpreter's lock: threads may
    share one and encode a batch each.

    Args:
        plan: What to compute.
        folder: The run folder, which vocabulary files are below.
        threads: That open vocabularies.

    Raises:
        PreprocessingError: A vocabulary file is missing or is not the one the plan was fitted with.
    """

    def __init__(self, plan: PreprocessingPlan, folder: Path, *, threads: int = 1) -> None:
        self._plan = plan
        with ThreadPoolExecutor(threads, thread_name_prefix="open-vocabularies") as pool:
            self._id_kernels = list(
                pool.map(
                    lambda field: ID_FACES[field.step.kind].open_kernel(field.step, folder),
                    plan.fields,
                )
            )

    def encode(self, batch: pa.RecordBatch, out: EncodedBatch | None = None) -> EncodedBatch:
        """Encodes the plan's columns; others are ignored.

        Values of a dictionary are transformed once each and then spread over the rows.

        Args:
            batch: Text columns are string, large_string or dictionary of either; number columns
                float64, another number type, or a dictionary of one. NULL, '' and NaN are missing.
            out: Where to write, any strides; None makes arrays of their own.

        Returns:
            `out`.

        Raises:
            ValueError: A column is not there, or holds another type.
        """
        if out is None:
            out = EncodedBatch(
                ids=np.empty((batch.num_rows, len(self._plan.fields)), np.int32),
                numbers=np.empty((batch.num_rows, len(self._plan.numbers)), np.float32),
            )
        ids, numbers = _Spreading(out.ids), _Spreading(out.numbers.view(np.int32))
        number_columns: dict[str, NumberColumn] = {}
        for d, number in enumerate(self._plan.numbers):
            column = self._numbers(batch, number.column, number_columns)
            values = column.values
            for step in number.steps:
                values = NUMBER_FACES[step.kind].kernel(step, values)
            numbers.add(d, finish_numbers(values).view(np.int32), column.indices)
        for f, (field, kernel) in enumerate(zip(self._plan.fields, self._id_kernels, strict=True)):
            if isinstance(field.step, FittedCross):
                values = np.empty(batch.num_rows, np.int32)
                kernel(self._parts(batch, field.step, number_columns), values)
                ids.add(f, values, None)
            elif field.column_type is ColumnType.TEXT:
                text = text_column(_column(batch, field.column), column=field.column)
                values = np.empty(text.num_values, np.int32)
                kernel(TextColumn(text.values, text.num_values, None), values)
                ids.add(f, values, text.indices)
            else:
                column = self._numbers(batch, field.column, number_columns)
                values = np.empty(len(column.values), np.int32)
                kernel(column.values, values)
                ids.add(f, values, column.indices)
        ids.finish()
        numbers.finish()
        return out

    def _parts(
        self, batch: pa.RecordBatch, cross: FittedCross, seen: dict[str, NumberColumn]
    ) -> list[CrossValues]:
        """The values of each column of a cross."""
        parts = []
        for part in cross.parts:
            if part.step is None:
                parts.append(text_part(_column(batch, part.column), column=part.column))
            else:
                numbers = self._numbers(batch, part.column, seen)
                parts.append(number_part(numbers, part.step))
        return parts

    def _numbers(
        self, batch: pa.RecordBatch, column: str, seen: dict[str, NumberColumn]
    ) -> NumberColumn:
        if column not in seen:
            seen[column] = number_column(_column(batch, column), column=column)
        return seen[column]


class _Spreading:
    """Words of the distinct values of each column, to be spread over the rows.

    Args:
        words_NC: int32 [N, C], what is written.
    """

    def __init__(self, words_NC: np.ndarray) -> None:
        self._words_NC = words_NC
        self._positions_CN = np.empty(words_NC.shape[::-1], np.int32)
        self._words: list[np.ndarray] = []
        self._num_words = 0

    def add(self, column: int, words: np.ndarray, indices: np.ndarray | None) -> None:
        """Row n of the column is word `indices[n]`, or word n without indices."""
        positions_N = self._positions_CN[column]
        positions_N[:] = np.arange(len(words)) if indices is None else indices
        positions_N += np.int32(self._num_words)
        self._words.append(words)
        self._num_words += len(words)

    def finish(self) -> None:
        """Writes all columns, each of which was added."""
        if self._words:
            _spread(np.concatenate(self._words), self._positions_CN, self._words_NC)


@njit(cache=True, nogil=True)
def _spread(words: np.ndarray, positions_CN: np.ndarray, words_NC: np.ndarray) -> None:
    num_columns, num_rows = positions_CN.shape
    # Some rows at a time, so that they stay in a core's cache while their columns are filled.
    for first in range(0, num_rows, _ROWS_AT_ONCE):
        last = min(first + _ROWS_AT_ONCE, num_rows)
        for column in range(num_columns):
            for row in range(first, last):
                words_NC[row, column] = words[positions_CN[column, row]]


def wake_kernels() -> None:
    """Runs a kernel once: the first one of a process makes Numba load what all of them need."""
    fingerprint_values(pa.array(["a"]))


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    positions = batch.schema.get_all_field_indices(name)
    if len(positions) != 1:
        found = "is not among" if not positions else "is more than once among"
        raise ValueError(f"column '{name}' {found} the columns of the data")
    return batch.column(positions[0])
