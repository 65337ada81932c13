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


@dataclass(frozen=True)
class ValueCounts:
    """What a file of counts tells of the V values that occur often enough in training.

    Attributes:
        source: The file.
        values: large_binary [V].
        counts: int64 [V], rows of each value.
        sizes: [V], rows again, or what they weigh.
        clicks: [V], rows of label 1, or what they weigh.
    """

    source: Path
    values: pa.Array
    counts: np.ndarray
    sizes: np.ndarray
    clicks: np.ndarray

    def table(self, numbers: np.ndarray) -> ValueTable:
        """Returns the table that gives `numbers`, float64 [V + 2] as in `ValueTable`."""
        return ValueTable(
            self.values, numbers, vocabulary_table(self.values, source=str(self.source))
        )


def read_value_counts(
    path: Path, *, size: int, min_count: int, weighted: bool = False
) -> ValueCounts:
    """Reads the values that occur at least `min_count` times.

    Args:
        path: The file.
        size: Values that the file holds, as the plan was fitted.
        min_count: Rarer values are left out.
        weighted: Whether `sizes` and `clicks` are what rows weigh.

    Raises:
        PreprocessingError: The file is missing, or not the one the plan was fitted with.
    """
    names = ("weight", "click_weight") if weighted else ("count", "label_sum")
    remedy = "Delete it and run 'ctrpipe train --resume' with the config of the run"
    try:
        with pq.ParquetFile(path) as file:
            columns = list(dict.fromkeys(("value", "count", *names)))
            table = file.read(columns=columns).combine_chunks()
            counts, *sums = (table.column(name).to_numpy() for name in ("count", *names))
    except (OSError, KeyError, pa.ArrowException) as error:
        raise PreprocessingError(
            f"the table of counts cannot be read ({error})", place=str(path), remedy=remedy
        ) from error
    if table.num_rows != size:
        raise PreprocessingError(
            f"the table of counts has {table.num_rows:,} values, the plan was fitted with {size:,}",
            place=str(path),
            remedy=remedy,
        )
    values = pc.cast(table.column("value"), pa.large_binary()).combine_chunks()
    if isinstance(values, pa.ChunkedArray):
        values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    is_kept = counts >= min_count
    if not is_kept.all():
        values = values.filter(pa.array(is_kept))
        counts, sums = counts[is_kept], [one[is_kept] for one in sums]
    return ValueCounts(path, values, counts, *sums)
