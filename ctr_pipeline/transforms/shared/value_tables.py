"""Numbers of texts by a table: how often each occurs in training, or its click rate there."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ctr_pipeline.errors import PreprocessingError
from ctr_pipeline.kernels.arrow_values import TextColumn
from ctr_pipeline.kernels.text_ids import VocabularyTable, lookup_ids, vocabulary_table
from ctr_pipeline.transforms.count_encode import CountEncodeStep
from ctr_pipeline.transforms.target_encode import TargetEncodeStep


@dataclass(frozen=True)
class ValueTable:
    """Texts and their numbers.

    Attributes:
        values: large_binary [V].
        numbers: float64 [V + 2]: those of the values, of another text, of a missing one.
    """

    values: pa.Array
    numbers: np.ndarray
    _table: VocabularyTable

    def ids_of(self, text: TextColumn) -> np.ndarray:
        """int64 [N], positions in `numbers`: V for another text, V + 1 for a missing one."""
        return lookup_ids(text, self._table, oov_buckets=1, missing_id=len(self.values) + 1)

    def numbers_of(self, text: TextColumn) -> np.ndarray:
        """float64 [N]."""
        numbers: np.ndarray = self.numbers[self.ids_of(text)]
        return numbers


def open_value_table(step: CountEncodeStep | TargetEncodeStep, folder: Path) -> ValueTable:
    """The table of a fitted step.

    Args:
        step: The step.
        folder: The run folder.

    Raises:
        PreprocessingError: The file is missing, or not the one the plan was fitted with.
    """
    path = folder / step.file
    weights = step.weights if isinstance(step, TargetEncodeStep) else None
    values, counts, sizes, clicks = _load_counts(path, step, weighted=weights is not None)
    is_kept = counts >= step.min_count
    if not is_kept.all():
        values = values.filter(pa.array(is_kept))
        counts, sizes, clicks = counts[is_kept], sizes[is_kept], clicks[is_kept]
    if isinstance(step, CountEncodeStep):
        numbers = np.concatenate([counts.astype(np.float64), [0.0, np.nan]])
    else:
        missing, missing_clicks = step.missing_rows, step.missing_clicks
        if weights is not None:
            missing, missing_clicks = weights.missing_units, weights.missing_click_units
        is_known = step.missing_rows >= step.min_count
        numbers = smoothed_rates(
            np.concatenate([clicks, [0, missing_clicks if is_known else 0]]),
            np.concatenate([sizes, [0, missing if is_known else 0]]),
            step,
        )
    return ValueTable(values, numbers, vocabulary_table(values, source=str(path)))


def smoothed_rates(
    num_clicks: np.ndarray, num_rows: np.ndarray, step: TargetEncodeStep
) -> np.ndarray:
    """`(clicks + smoothing * base) / (rows + smoothing)`, float64; the base where rows are 0.

    With weights, clicks and rows are given in units.
    """
    sizes, clicks = num_rows, num_clicks
    if step.weights is not None:
        sizes, clicks = sizes / step.weights.units_a_row, clicks / step.weights.units_a_row
    rates = (clicks + step.smoothing * step.base) / (sizes + step.smoothing)
    return np.where(num_rows == 0, step.base, rates)


def _load_counts(
    path: Path, step: CountEncodeStep | TargetEncodeStep, *, weighted: bool
) -> tuple[pa.Array, np.ndarray, np.ndarray, np.ndarray]:
    """Values and rows; rows and clicks again, or what they weigh."""
    sizes, clicks = ("units", "click_units") if weighted else ("count", "label_sum")
    remedy = "Delete it and run 'ctrpipe train --resume' with the config of the run"
    try:
        with pq.ParquetFile(path) as file:
            names = dict.fromkeys(("value", "count", sizes, clicks))
            table = file.read(columns=list(names)).combine_chunks()
            found = [table.column(name).to_numpy() for name in ("count", sizes, clicks)]
    except (OSError, KeyError, pa.ArrowException) as error:
        raise PreprocessingError(
            f"the table of counts cannot be read ({error})", place=str(path), remedy=remedy
        ) from error
    if table.num_rows != step.size:
        raise PreprocessingError(
            f"the table of counts has {table.num_rows:,} values, the plan was fitted with "
            f"{step.size:,}",
            place=str(path),
            remedy=remedy,
        )
    values = pc.cast(table.column("value"), pa.large_binary()).combine_chunks()
    if isinstance(values, pa.ChunkedArray):
        values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    return values, *found
