"""The embedding rows that a config asks for."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from ctr_pipeline.config.models import (
    Config,
    TrainConfig,
)
from ctr_pipeline.embeddings.counts import IdCounts
from ctr_pipeline.embeddings.layout import RowLayout, plan_layout
from ctr_pipeline.embeddings.spilling import MemoryBound, MemoryLimit
from ctr_pipeline.embeddings.store import EmbeddingStore, RowBlock
from ctr_pipeline.pipeline.model.embedding_overrides import (
    dimension_of,
    embedding_overrides,
    linear_training,
    vector_training,
)
from ctr_pipeline.preprocessing.plan import PreprocessingPlan
from ctr_pipeline.specs.model_kinds import ModelConfig
from ctr_pipeline.specs.segment import SegmentSpec
from ctr_pipeline.specs.table import TableSpec
from ctr_pipeline.training.lookup import RowReader


class TrainedRows(Protocol):
    """Embedding rows of a trained model, in memory or on disk."""

    @property
    def width(self) -> int:
        """Values in a row: the linear weight and the vector; of an ensemble, of all members."""

    @property
    def num_rows(self) -> int:
        """Distinct keys."""

    def memory_bytes(self) -> int:
        """Memory that training needed for them."""

    def spilled_bytes(self) -> int:
        """Bytes that training kept in files, beyond a memory limit."""

    def iterate_rows(self, block_rows: int) -> Iterator[RowBlock]:
        """Yields all rows by ascending key, in blocks of at most `block_rows`."""

    def release(self) -> None:
        """Frees their memory or their files; they can no longer be read."""


class ReadableRows(TrainedRows, RowReader, Protocol):
    """Embedding rows of one trained model, which can be looked up by batch."""


def segment_specs(model: ModelConfig, train: TrainConfig) -> tuple[SegmentSpec, SegmentSpec]:
    """The linear weight and the vector of a row, for tables that override no setting."""
    return (
        train.embeddings.linear.to_spec("linear", 1),
        train.embeddings.vector.to_spec("vector", model.embedding_dim),
    )


def table_specs(config: Config, plan: PreprocessingPlan) -> list[TableSpec]:
    """The tables of a plan, with the segments of those whose features override some setting."""
    overrides = embedding_overrides(config, plan)
    common, training = segment_specs(config.model, config.train), config.train.embeddings
    tables = []
    for table in plan.tables:
        entry = overrides[table.name]
        dim = dimension_of(entry, config.model.embedding_dim, table.num_ids)
        segments = (
            linear_training(entry, training, table.prior_precision).to_spec("linear", 1),
            vector_training(entry, training).to_spec("vector", dim),
        )
        tables.append(
            TableSpec(table.name, table.num_ids, None if segments == common else segments)
        )
    return tables


def field_dims(config: Config, plan: PreprocessingPlan) -> tuple[int, ...]:
    """The length of each field's vector, in the order of axis F."""
    overrides = embedding_overrides(config, plan)
    dims = {
        table.name: dimension_of(overrides[table.name], config.model.embedding_dim, table.num_ids)
        for table in plan.tables
    }
    return tuple(dims[field.table_name] for field in plan.fields)


def row_layout(config: Config, plan: PreprocessingPlan) -> RowLayout:
    """The layout of the rows of a plan's tables."""
    return plan_layout(segment_specs(config.model, config.train), table_specs(config, plan))


def build_store(
    plan: PreprocessingPlan,
    counts: Sequence[IdCounts] | None,
    *,
    config: Config,
    threads: int,
    memory_limit: MemoryLimit | None,
) -> EmbeddingStore:
    """Builds an empty store with the plan's tables.

    Args:
        plan: Fitted transforms.
        counts: Occurrences of each id in the training rows; None where nothing is trained.
        memory_limit: The limit of this run, whichever run `config` is of.
    """
    store = EmbeddingStore(
        table_specs(config, plan),
        segment_specs(config.model, config.train),
        seed=config.train.seed,
        threads=threads,
        field_tables=plan.position_tables,
        admit_after=config.train.embeddings.admit_after,
        memory_limit=memory_limit,
    )
    if counts is not None:
        store.set_training_counts(counts)
    return store


def memory_bound_of(config: Config) -> MemoryBound | None:
    """The config's limit on the records in memory of each process; None if there is none."""
    num_bytes = config.train.embeddings.memory_limit_bytes
    return None if num_bytes is None else MemoryBound(num_bytes)


def memory_limit_of(config: Config, folder: Path) -> MemoryLimit | None:
    """The config's limit with the folder of the file beyond it; None if there is none.

    Args:
        config: The config.
        folder: Folder of the file of further records.
    """
    bound = memory_bound_of(config)
    return None if bound is None else MemoryLimit(bound.num_bytes, folder)


def describe_memory(store: EmbeddingStore) -> str:
    """Describes the number, the composition and the memory of the rows, for the log."""
    rows, value_bytes, state_bytes = store.rows, 4 * store.width, 4 * store.layout.num_slots
    others = rows.bytes_a_row - value_bytes - state_bytes
    spilled = store.spilled_bytes()
    return (
        f"Embedding rows: {store.num_rows:,} of {rows.bytes_a_row} bytes ({value_bytes} of values, "
        f"{state_bytes} of optimizer state, {others} of header, padding, key and mark); with an "
        f"index of {rows.index_bytes / 1e6:.1f} MB {store.memory_bytes() / 1e6:.1f} MB "
        + (
            f"in memory and {spilled / 1e6:.1f} MB in a file, beyond the memory limit"
            if spilled
            else "in all"
        )
    )
