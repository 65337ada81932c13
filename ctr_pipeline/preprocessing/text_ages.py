"""Ages of texts outside of plans: the newest point in time, and numbers for the statistics."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa

from ctr_pipeline.dataset.parts import ColumnCounts
from ctr_pipeline.datetime_formats import iso_seconds
from ctr_pipeline.features import FeatureSpec
from ctr_pipeline.kernels.arrow_values import text_column
from ctr_pipeline.kernels.time_parsing import NO_TIME, parse_seconds
from ctr_pipeline.kernels.time_parts import ages
from ctr_pipeline.transforms import AnyTransform
from ctr_pipeline.transforms.base import Transform

_Chain = tuple[AnyTransform, ...] | None


def ages_of(transform: Transform, texts: pa.Array) -> np.ndarray:
    """Days from each of some texts to the transform's `at`, float64; NaN where there is none.

    Raises:
        ValueError: The transform is another, or has no `at`.
    """
    at, read = transform.counted_to, transform.time_read
    if at is None or read is None:
        raise ValueError(f"'{transform.name}' makes no ages of texts")
    return ages(_seconds_of(texts, read.format), iso_seconds(at))


def open_ages(features: Sequence[FeatureSpec]) -> list[tuple[str, str]]:
    """Columns, and the formats of their texts, of which ages are counted to the newest one."""
    return list(
        dict.fromkeys(
            (spec.column, format)
            for spec in features
            for chain in (spec.number, spec.id)
            if chain and (format := chain[0].needs.newest_time) is not None
        )
    )


def newest_time(counts: Iterable[ColumnCounts], format: str) -> str:
    """The newest point in time of some texts, in the format iso; that of 1970 if none tells one."""
    newest = NO_TIME
    for portion in counts:
        seconds = _seconds_of(portion.values, format)
        known = seconds[seconds != NO_TIME]
        if len(known) and (newest == NO_TIME or known.max() > newest):
            newest = int(known.max())
    point = datetime.fromtimestamp(0 if newest == NO_TIME else newest, UTC)
    return point.strftime("%Y-%m-%dT%H:%M:%S")


def close_ages(
    features: Sequence[FeatureSpec], newest: Mapping[tuple[str, str], str]
) -> tuple[FeatureSpec, ...]:
    """The features with ages counted to the newest point in time, by column and format."""

    def close(column: str, chain: _Chain) -> _Chain:
        format = chain[0].needs.newest_time if chain else None
        if not chain or format is None:
            return chain
        return (chain[0].with_newest_time(newest[column, format]), *chain[1:])

    return tuple(
        spec.model_copy(
            update={"number": close(spec.column, spec.number), "id": close(spec.column, spec.id)}
        )
        for spec in features
    )


def reopen_ages(
    features: Sequence[FeatureSpec], opened: Collection[tuple[str, str]]
) -> tuple[FeatureSpec, ...]:
    """The features without the points in time that were found for these columns and formats."""

    def reopen(column: str, chain: _Chain) -> _Chain:
        read = chain[0].time_read if chain else None
        if not chain or read is None or (column, read.format) not in opened:
            return chain
        return (chain[0].with_newest_time(None), *chain[1:])

    return tuple(
        spec.model_copy(
            update={"number": reopen(spec.column, spec.number), "id": reopen(spec.column, spec.id)}
        )
        for spec in features
    )


def _seconds_of(texts: pa.Array, format: str) -> np.ndarray:
    """Seconds of each text, or of each one in a dictionary."""
    return parse_seconds(text_column(texts, column="values").values, format)
