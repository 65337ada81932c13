"""Record batches to ids and numbers, the way training takes them."""

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from ctr_pipeline.features import VectorSpec
from ctr_pipeline.kernels import compilation
from ctr_pipeline.kernels.arrow_values import (
    NumberColumn,
    TextColumn,
    number_column,
    text_column,
)
from ctr_pipeline.kernels.crosses import CrossValues, number_part, text_part
from ctr_pipeline.kernels.loads import int32_at, int64_at, uint16_at
from ctr_pipeline.kernels.numbers import finish_numbers
from ctr_pipeline.kernels.text_ids import fingerprint_values
from ctr_pipeline.preprocessing.out_of_fold import RowNumbers
from ctr_pipeline.preprocessing.plan import PreprocessingPlan
from ctr_pipeline.preprocessing.sequences import encode_sequence
from ctr_pipeline.preprocessing.vectors import vector_numbers
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.transforms import AnyTextStep
from ctr_pipeline.transforms.base import TextKernel
from ctr_pipeline.transforms.cross import CrossStep

_ROWS_AT_ONCE = np.uint64(128)
_UINT16_BYTES, _INT32_BYTES = 2, 4


@dataclass(frozen=True)
class EncodedBatch:
    """What the model takes.

    Attributes:
        ids: int32 [N, S]; a position of field f has ids in [0, num_ids of field f).
        numbers: float32 [N, D + C], finite; the coefficients of positions follow the numbers.
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
        threads: Threads that open vocabularies.

    Raises:
        PreprocessingError: A vocabulary file is missing or is not the one the plan was fitted with.
    """

    def __init__(self, plan: PreprocessingPlan, folder: Path, *, threads: int = 1) -> None:
        self._plan = plan
        with ThreadPoolExecutor(threads, thread_name_prefix="open-vocabularies") as pool:
            self._id_kernels = list(
                pool.map(
                    lambda field: field.step.open_kernel(folder),
                    plan.fields,
                )
            )

            firsts = plan.text_steps
            kernels = pool.map(lambda key: key[1].open_kernel(folder), firsts)
            self._text_kernels = dict(zip(firsts, kernels, strict=True))

    def encode(
        self,
        batch: pa.RecordBatch,
        out: EncodedBatch | None = None,
        *,
        out_of_fold: RowNumbers | None = None,
    ) -> EncodedBatch:
        """Encodes the plan's columns; others are ignored.

        Values of a dictionary are transformed once each and then spread over the rows.

        Args:
            batch: Text columns are string, large_string or dictionary of either; number columns
                float64, another number type, or a dictionary of one. NULL, '' and NaN are missing.
            out: Where to write, any strides; None makes arrays of their own.
            out_of_fold: Target encodings of training rows; None: the rows are others.

        Returns:
            `out`.

        Raises:
            ValueError: A column is not there, or holds another type.
        """
        if out is None:
            out = EncodedBatch(
                ids=np.empty((batch.num_rows, self._plan.num_positions), np.int32),
                numbers=np.empty((batch.num_rows, self._plan.num_floats), np.float32),
            )
        num_plain = len(self._plan.fields) - len(self._plan.sequences)
        ids = _Spreading(out.ids[:, :num_plain])
        numbers = _Spreading(out.numbers[:, : len(self._plan.numbers)].view(np.int32))
        start = _Columns(batch, self._text_kernels, out_of_fold or {})
        for d, number in enumerate(self._plan.numbers):
            if number.vector is not None:
                column = start.vector(number.column, number.vector, number.place or 0)
            else:
                column = start.number(number.column, number.first)
            values = column.values
            for step in number.steps:
                values = step.kernel(values)
            numbers.add(d, finish_numbers(values).view(np.int32), column.indices)
        position, coefficient = num_plain, len(self._plan.numbers)
        for f, (field, kernel) in enumerate(zip(self._plan.fields, self._id_kernels, strict=True)):
            if field.sequence is not None:
                after, after_coefficient = (
                    position + field.num_positions,
                    coefficient + field.num_positions,
                )
                encode_sequence(
                    _column(batch, field.column),
                    field.sequence,
                    kernel,
                    padding_id=field.padding_id,
                    ids_NL=out.ids[:, position:after],
                    coefficients_NL=out.numbers[:, coefficient:after_coefficient],
                    column=field.column,
                )
                position, coefficient = after, after_coefficient
                continue
            if isinstance(field.step, CrossStep):
                values = np.empty(batch.num_rows, np.int32)
                kernel(start.parts(field.step), values)
                ids.add(f, values, None)
            elif field.column_type is ColumnType.TEXT and field.first is None:
                text = start.text(field.column)
                values = np.empty(text.num_values, np.int32)
                kernel(TextColumn(text.values, text.num_values, None), values)
                ids.add(f, values, text.indices)
            else:
                column = start.number(field.column, field.first)
                values = np.empty(len(column.values), np.int32)
                kernel(column.values, values)
                ids.add(f, values, column.indices)
        ids.finish()
        numbers.finish()
        return out


class _Columns:
    """The columns of a batch as chains begin with them, each made once."""

    def __init__(
        self,
        batch: pa.RecordBatch,
        text_kernels: Mapping[tuple[str, AnyTextStep], TextKernel],
        out_of_fold: RowNumbers,
    ) -> None:
        self._batch = batch
        self._text_kernels = text_kernels
        self._own_rows = out_of_fold
        self._texts: dict[str, TextColumn] = {}
        self._numbers: dict[tuple[str, AnyTextStep | None], NumberColumn] = {}
        self._vectors: dict[str, tuple[np.ndarray, np.ndarray | None]] = {}

    def text(self, name: str) -> TextColumn:
        if name not in self._texts:
            self._texts[name] = text_column(_column(self._batch, name), column=name)
        return self._texts[name]

    def number(self, name: str, first: AnyTextStep | None) -> NumberColumn:
        """A number column, or what `first` makes of a text column."""
        key = (name, first)
        if key not in self._numbers:
            self._numbers[key] = self._number(name, first)
        return self._numbers[key]

    def vector(self, name: str, vector: VectorSpec, place: int) -> NumberColumn:
        """One number of a column of vectors."""
        if name not in self._vectors:
            self._vectors[name] = vector_numbers(_column(self._batch, name), vector, column=name)
        numbers_VL, indices = self._vectors[name]
        return NumberColumn(np.ascontiguousarray(numbers_VL[:, place]), indices)

    def parts(self, cross: CrossStep) -> list[CrossValues]:
        """The values of each column of a cross."""
        return [
            text_part(_column(self._batch, part.column), column=part.column)
            if part.step is None
            else number_part(self.number(part.column, None), part.step.open_kernel(Path()))
            for part in cross.parts
        ]

    def _number(self, name: str, first: AnyTextStep | None) -> NumberColumn:
        if first is None:
            return number_column(_column(self._batch, name), column=name)
        own = self._own_rows.get((name, first))
        if own is not None:
            return NumberColumn(own, None)
        text = self.text(name)
        values = self._text_kernels[name, first](TextColumn(text.values, text.num_values, None))
        return NumberColumn(values, text.indices)


class _Spreading:
    """Words of the distinct values of each column, to be spread over the rows.

    Args:
        words_NC: int32 [N, C], what is written.
    """

    def __init__(self, words_NC: np.ndarray) -> None:
        num_columns = words_NC.shape[1]
        self._words_NC = words_NC
        self._words_C = np.zeros(num_columns, np.uint64)
        self._indices_C = np.zeros(num_columns, np.uint64)
        self._index_bytes_C = np.zeros(num_columns, np.int64)
        # Their addresses are all that the kernel is given.
        self._kept: list[np.ndarray] = []

    def add(self, column: int, words: np.ndarray, indices: np.ndarray | None) -> None:
        """Row n of the column is word `indices[n]`, or word n without indices.

        Args:
            words: int32.
            indices: uint16, int32 or int64 [N].
        """
        words = np.ascontiguousarray(words, np.int32)
        self._words_C[column] = words.ctypes.data
        self._kept.append(words)
        if indices is not None:
            indices = np.ascontiguousarray(indices)
            self._indices_C[column] = indices.ctypes.data
            self._index_bytes_C[column] = indices.itemsize
            self._kept.append(indices)

    def finish(self) -> None:
        """Writes all columns, each of which was added."""
        if self._kept:
            _spread(self._words_C, self._indices_C, self._index_bytes_C, self._words_NC)


@compilation.kernel
def _spread(
    words_C: np.ndarray, indices_C: np.ndarray, index_bytes_C: np.ndarray, words_NC: np.ndarray
) -> None:
    """Both are addresses; columns of 0 bytes an index have none."""
    num_rows, num_columns = words_NC.shape
    # Some rows at a time, so that they stay in a core's cache while their columns are filled.
    for first in range(np.uint64(0), np.uint64(num_rows), _ROWS_AT_ONCE):
        last = min(first + _ROWS_AT_ONCE, np.uint64(num_rows))
        for column in range(num_columns):
            words, indices = int32_at(words_C[column]), indices_C[column]
            index_bytes = index_bytes_C[column]
            if index_bytes == 0:
                for row in range(first, last):
                    words_NC[row, column] = words[row]
            elif index_bytes == _UINT16_BYTES:
                for row in range(first, last):
                    words_NC[row, column] = words[np.uint64(uint16_at(indices)[row])]
            elif index_bytes == _INT32_BYTES:
                for row in range(first, last):
                    words_NC[row, column] = words[np.uint64(int32_at(indices)[row])]
            else:
                for row in range(first, last):
                    words_NC[row, column] = words[np.uint64(int64_at(indices)[row])]


def wake_kernels() -> None:
    """Runs a kernel once: the first one of a process makes Numba load what all of them need."""
    fingerprint_values(pa.array(["a"]))


def wake_kernels_meanwhile() -> None:
    """The same in a thread: it takes half a second, in which files can be read."""
    threading.Thread(target=wake_kernels, name="wake-kernels", daemon=True).start()


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    positions = batch.schema.get_all_field_indices(name)
    if len(positions) != 1:
        found = "is not among" if not positions else "is more than once among"
        raise ValueError(f"column '{name}' {found} the columns of the data")
    return batch.column(positions[0])
