"""What the config says of the embeddings of some features, table by table."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import count
from typing import Any, Literal

from ctr_pipeline.config.merging import merge_entries
from ctr_pipeline.config.models import (
    Config,
    EmbeddingEntry,
    EmbeddingTraining,
    OwnSegment,
    SegmentConfig,
)
from ctr_pipeline.preprocessing.plan import PreprocessingPlan


@dataclass(frozen=True)
class OwnEmbedding:
    """What the rows of one table have of their own; None: nothing.

    Attributes:
        dimension: Length of the vector.
        linear: Training of the linear weight.
        vector: Training of the vector.
    """

    dimension: int | Literal["auto"] | None = None
    linear: OwnSegment | None = None
    vector: OwnSegment | None = None

    def dimension_of(self, full: int, num_ids: int) -> int:
        """The length of the vector.

        `auto` is the fourth root of the number of ids, rounded up: a rule of thumb of
        "Introducing TensorFlow Feature Columns" (developers.googleblog.com, 2017).

        Args:
            full: The length that vectors have at most.
            num_ids: Ids of the table.
        """
        if self.dimension is None:
            return full
        if self.dimension == "auto":
            return min(full, next(dim for dim in count(1) if dim**4 >= num_ids))
        return self.dimension

    def linear_of(self, common: EmbeddingTraining, prior_precision: float | None) -> SegmentConfig:
        """The training of the linear weight, with what is common where nothing is said.

        Args:
            prior_precision: That of the table's weights, from its columns; None: not known.
        """
        linear = common.linear
        is_comparable = linear.l2.strength > 0 and linear.l2.count_power == 1
        if common.shrink_by_column and is_comparable and prior_precision is not None:
            strength = max(linear.l2.strength, prior_precision)
            l2 = linear.l2.model_copy(update={"strength": strength})
            linear = linear.model_copy(update={"l2": l2})
        return _with_own(linear, self.linear)

    def vector_of(self, common: SegmentConfig) -> SegmentConfig:
        """The training of the vector, with what is common where nothing is said."""
        return _with_own(common, self.vector)


OWN_KEYS = tuple(field.name for field in fields(OwnEmbedding))
"""Keys of an entry's `embedding` that are about the rows of the table."""


def own_embeddings(config: Config, plan: PreprocessingPlan) -> dict[str, OwnEmbedding]:
    """What the config says of each table of a plan, by the table's name."""
    entries = {} if config.features == "auto" else merge_entries(config.features, plan.features)
    said: dict[str, dict[str, Any]] = {table.name: {} for table in plan.tables}
    for field in plan.fields:
        entry = entries.get(field.column)
        said[field.table_name] |= own_values(None if entry is None else entry.entry.embedding)
    return {table: OwnEmbedding(**values) for table, values in said.items()}


def own_values(entry: EmbeddingEntry | None) -> Mapping[str, Any]:
    """What an entry says about the rows of its table, by key."""
    if entry is None:
        return {}
    values = {key: getattr(entry, key) for key in OWN_KEYS}
    return {key: value for key, value in values.items() if value is not None}


def _with_own(common: SegmentConfig, own: OwnSegment | None) -> SegmentConfig:
    if own is None:
        return common
    update: dict[str, Any] = {
        key: value
        for key in ("optimizer", "reduction", "initializer")
        if (value := getattr(own, key)) is not None
    }
    if own.l2 is not None:
        l2 = {
            key: value
            for key in ("strength", "count_power")
            if (value := getattr(own.l2, key)) is not None
        }
        update["l2"] = common.l2.model_copy(update=l2)
    return common.model_copy(update=update)
