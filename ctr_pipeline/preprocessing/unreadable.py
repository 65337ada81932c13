"""How many texts of a column tell no time in the format that its chains read."""

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow.compute as pc

from ctr_pipeline.dataset.parts import ColumnCounts
from ctr_pipeline.features import FeatureSpec
from ctr_pipeline.kernels.arrow_values import text_column
from ctr_pipeline.kernels.time_parsing import NO_TIME, parse_seconds


def datetime_formats_of(features: Sequence[FeatureSpec]) -> list[tuple[str, str]]:
    """Columns and the formats that their points in time are read by, each once."""
    return list(
        dict.fromkeys(
            (spec.column, read.format)
            for spec in features
            for chain in (spec.number, spec.id)
            if chain and (read := chain[0].time_read)
        )
    )


def count_without_time(counts: Iterable[ColumnCounts], format: str) -> int:
    """Rows with a text that tells no time; missing values are not counted."""
    count = 0
    for portion in counts:
        text = text_column(portion.values, column="values").values
        is_text = pc.greater(pc.binary_length(portion.values), 0)
        is_unreadable = (parse_seconds(text, format) == NO_TIME) & np.asarray(
            pc.fill_null(is_text, False)
        )
        count += int(portion.num_rows[is_unreadable].sum())
    return count
