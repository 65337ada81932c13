"""Keys of `train` that steer a job: the config declares none of them again, the job's spec has all.

A new one is its field here, and its use.
"""

from typing import Annotated

from pydantic import Field

from ctr_pipeline.specs.section import MAY_CHANGE, NO_MODEL, NotSearched, Section


class TrainingCourse(Section):
    """In what order and for how long a model is trained, and when it is kept: keys of `train`."""

    epochs: Annotated[int, MAY_CHANGE] = Field(
        default=20, ge=1, description="Largest number of passes over the training rows."
    )
    batch_size: int = Field(default=1024, ge=1, le=1_000_000, description="Rows per step.")
    seed: Annotated[
        int, NotSearched("the best of several seeds is luck with the validation rows")
    ] = Field(
        default=0, ge=0, lt=2**63, description="Seed of row order, dropout and initial values."
    )
    shuffle: bool = Field(default=True, description="Shuffle the rows anew in every epoch.")
    checkpoint_seconds: Annotated[float, MAY_CHANGE, NO_MODEL] = Field(
        default=30.0,
        gt=0,
        description="Seconds between checkpoints; one is also written at the end of each epoch.",
    )
    keep_checkpoints: Annotated[int, MAY_CHANGE, NO_MODEL] = Field(
        default=2, ge=1, description="Number of checkpoints kept, in addition to the best one."
    )


class RowLifecycle(Section):
    """Which ids have embedding rows, for how long, and where they lie: `train.embeddings`."""

    admit_after: int = Field(
        default=1,
        ge=1,
        description="Smallest number of occurrences in the training rows for an id to have a "
        "row; rarer ids read as zeros and take no memory. For hashed ids; vocabularies have "
        "min_count.",
    )
    evict_after: int | None = Field(
        default=None,
        ge=1,
        description="Rows without an update for more than this many steps are removed at the "
        "end of an epoch, before validation; an id that returns starts afresh. Steps of earlier "
        "runs (train.init_from) count. null: rows stay.",
    )
    memory_limit_gb: Annotated[float | None, MAY_CHANGE, NO_MODEL] = Field(
        default=None,
        gt=0,
        description="Memory, in 10^9 bytes, for the records of embedding rows (values and "
        "optimizer state), for each process and each model of an ensemble. Further records are "
        "mapped from a file in the run folder, with the same results. Keys and index take 25 to "
        "41 bytes per row in addition. null: all in memory.",
    )

    @property
    def memory_limit_bytes(self) -> int | None:
        """Bytes of records in the memory of a process; None: no limit."""
        return None if self.memory_limit_gb is None else round(self.memory_limit_gb * 1e9)
