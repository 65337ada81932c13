"""Record batches to ids and numbers, the way training takes them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from ctr_pipeline.features import ColumnType
from ctr_pipeline.preprocessing.arrow_values import number_values, text_column
from ctr_pipeline.preprocessing.faces import ID_FACES, NUMBER_FACES
from ctr_pipeline.preprocessing.fitted import PreprocessingPlan
from ctr_pipeline.preprocessing.number_kernels import finish_numbers
from ctr_pipeline.preprocessing.text_kernels import fingerprint_values


@dataclass(frozen=True)
class EncodedBatch:
    """What the model takes.

    Attributes:
        ids: int32 [N, F], C-contiguous; field f has ids in [0, num_ids of field f).
        numbers: float32 [N, D], C-contiguous, finite.
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

    Raises:
        PreprocessingError: A vocabulary file is missing or is not the one the plan was fitted with.
    """

    def __init__(self, plan: PreprocessingPlan, folder: Path) -> None:
        self._plan = plan
        self._id_kernels = [
            ID_FACES[field.step.kind].open_kernel(field.step, folder) for field in plan.fields
        ]

    def encode(self, batch: pa.RecordBatch) -> EncodedBatch:
        """Encodes the plan's columns; others are ignored.

        Args:
            batch: Text columns are string, large_string or dictionary of either; number columns
                float64, or another number type. NULL, '' and NaN are missing.

        Raises:
            ValueError: A column is not there, or holds another type.
        """
        num_rows = batch.num_rows
        ids_NF = np.empty((num_rows, len(self._plan.fields)), np.int32)
        numbers_ND = np.empty((num_rows, len(self._plan.numbers)), np.float32)
        number_columns: dict[str, np.ndarray] = {}
        for d, number in enumerate(self._plan.numbers):
            values = self._numbers(batch, number.column, number_columns)
            for step in number.steps:
                values = NUMBER_FACES[step.kind].kernel(step, values)
            numbers_ND[:, d] = finish_numbers(values)
        for f, (field, kernel) in enumerate(zip(self._plan.fields, self._id_kernels, strict=True)):
            if field.column_type is ColumnType.TEXT:
                column = _column(batch, field.column)
                kernel(text_column(column, column=field.column), ids_NF[:, f])
            else:
                kernel(self._numbers(batch, field.column, number_columns), ids_NF[:, f])
        return EncodedBatch(ids=ids_NF, numbers=numbers_ND)

    def _numbers(
        self, batch: pa.RecordBatch, column: str, seen: dict[str, np.ndarray]
    ) -> np.ndarray:
        if column not in seen:
            seen[column] = number_values(_column(batch, column), column=column)
        return seen[column]


def wake_kernels() -> None:
    """Runs a kernel once: the first one of a process makes Numba load what all of them need."""
    fingerprint_values(pa.array(["a"]))


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    positions = batch.schema.get_all_field_indices(name)
    if len(positions) != 1:
        found = "is not among" if not positions else "is more than once among"
        raise ValueError(f"column '{name}' {found} the columns of the data")
    return batch.column(positions[0])
