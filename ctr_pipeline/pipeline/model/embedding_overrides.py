"""The embedding settings of each table: `train.embeddings`, overridden by the features' entries."""

from collections.abc import Mapping
from itertools import count
from typing import Any

from ctr_pipeline.config.merging import merge_entries
from ctr_pipeline.config.models import (
    Config,
    EmbeddingEntry,
    EmbeddingTraining,
    SegmentConfig,
    SegmentOverride,
)
from ctr_pipeline.preprocessing.plan import PreprocessingPlan

OVERRIDE_KEYS = ("dimension", "linear", "vector")
"""Keys of an entry's `embedding` that override settings of its table."""


def embedding_overrides(config: Config, plan: PreprocessingPlan) -> dict[str, EmbeddingEntry]:
    """Collects what the features of each table override, by the table's name."""
    entries = {} if config.features == "auto" else merge_entries(config.features, plan.features)
    found: dict[str, dict[str, Any]] = {table.name: {} for table in plan.tables}
    for field in plan.fields:
        entry = entries.get(field.column)
        found[field.table_name] |= override_values(None if entry is None else entry.entry.embedding)
    # The values are validated already, and a table may override nothing.
    return {table: EmbeddingEntry.model_construct(**values) for table, values in found.items()}


def override_values(entry: EmbeddingEntry | None) -> Mapping[str, Any]:
    """The settings that an entry overrides, by key."""
    if entry is None:
        return {}
    values = {key: getattr(entry, key) for key in OVERRIDE_KEYS}
    return {key: value for key, value in values.items() if value is not None}


def dimension_of(entry: EmbeddingEntry, full: int, num_ids: int) -> int:
    """The length of a table's vectors.

    `auto` is the fourth root of the number of ids, rounded up: a rule of thumb of
    "Introducing TensorFlow Feature Columns" (developers.googleblog.com, 2017).

    Args:
        entry: Overrides of the table.
        full: The greatest length, and the one without an override.
        num_ids: Ids of the table.
    """
    if entry.dimension is None:
        return full
    if entry.dimension == "auto":
        return min(full, next(dim for dim in count(1) if dim**4 >= num_ids))
    return entry.dimension


def linear_training(
    entry: EmbeddingEntry, common: EmbeddingTraining, prior_precision: float | None
) -> SegmentConfig:
    """How a table's linear weights are trained.

    Args:
        entry: Overrides of the table.
        common: `train.embeddings`.
        prior_precision: Prior precision of the table's weights, estimated from its columns; None:
            not known.
    """
    linear = common.linear
    is_comparable = linear.l2.strength > 0 and linear.l2.count_power == 1
    if common.shrink_by_column and is_comparable and prior_precision is not None:
        strength = max(linear.l2.strength, prior_precision)
        l2 = linear.l2.model_copy(update={"strength": strength})
        linear = linear.model_copy(update={"l2": l2})
    return _overridden(linear, entry.linear)


def vector_training(entry: EmbeddingEntry, common: EmbeddingTraining) -> SegmentConfig:
    """How a table's vectors are trained."""
    return _overridden(common.vector, entry.vector)


def _overridden(common: SegmentConfig, override: SegmentOverride | None) -> SegmentConfig:
    if override is None:
        return common
    update = {key: value for key, value in override if value is not None}
    if override.l2 is not None:
        l2 = {key: value for key, value in override.l2 if value is not None}
        update["l2"] = common.l2.model_copy(update=l2)
    return common.model_copy(update=update)
