"""How many texts of a column tell no time in the format that its chains read."""

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from ctr_pipeline.features import FeatureSpec
from ctr_pipeline.kernels.arrow_values import text_column
from ctr_pipeline.kernels.time_parsing import NO_TIME, parse_seconds
from ctr_pipeline.transforms.age import Age
from ctr_pipeline.transforms.datetime import Datetime


def datetime_formats_of(features: Sequence[FeatureSpec]) -> list[tuple[str, str]]:
    """Columns and the formats that their points in time are read by, each once."""
    return list(
        dict.fromkeys(
            (spec.column, chain[0].format)
            for spec in features
            for chain in (spec.number, spec.id)
            if chain and isinstance(chain[0], Datetime | Age)
        )
    )


def count_without_time(arrays: Iterable[pa.Array], format: str) -> int:
    """Rows with a text that tells no time; missing values are not counted."""
    count = 0
    for array in arrays:
        text = text_column(array, column="values")
        seconds = parse_seconds(text.values, format)
        lengths = np.diff(text.values.offsets)
        if len(text.values.validity):
            bits = np.unpackbits(text.values.validity, bitorder="little")
            first = text.values.validity_offset
            lengths = lengths * bits[first : first + text.num_values]
        is_unreadable = (seconds == NO_TIME) & (lengths > 0)
        rows = is_unreadable if text.indices is None else is_unreadable[text.indices]
        count += int(np.count_nonzero(rows))
    return count
