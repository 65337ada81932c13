"""Which columns of whole numbers are ids and which are measures, by the head of the data."""

from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ctr_pipeline.analysis.whole_numbers import WholeNumbers, judge_whole_numbers
from ctr_pipeline.config.models import DataConfig
from ctr_pipeline.dataset.source import Source
from ctr_pipeline.pipeline.stages.labels import labels_of

_MOST_ROWS = 200_000
_MOST_CELLS = 10_000_000
_FEWEST_ROWS = 2_000


class WholeNumberJudge:
    """Judges columns of the head one by one, as they are asked for.

    Of many columns fewer rows are looked at, so that all of them take seconds.

    Args:
        source: The data.
        data: Which column is the label, and what it is written as; its label need not exist.
    """

    def __init__(self, source: Source, data: DataConfig) -> None:
        self._source = source
        self._data = data
        bound = max(_MOST_CELLS // len(source.column_names), _FEWEST_ROWS)
        self._num_rows = min(source.head.num_rows, bound, _MOST_ROWS)

    def __call__(self, column: str) -> WholeNumbers | None:
        """What the column's values say; None if they are not whole, or there is no label."""
        if self._labels is None:
            return None
        values = self._source.head.column(column).slice(0, self._num_rows)
        numbers_B = pc.cast(values, pa.float64(), safe=False).to_numpy()
        return judge_whole_numbers(numbers_B, self._labels)

    @cached_property
    def _labels(self) -> NDArray[np.float64] | None:
        if self._data.label not in self._source.column_names:
            return None
        return labels_of(self._source, self._data)[: self._num_rows]
