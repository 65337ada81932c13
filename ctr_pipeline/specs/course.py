"""Keys of `train` and `runtime` that steer a job: its spec holds them as the config does.

A new one is its field here, and its use.
"""

from typing import Annotated, Literal

from pydantic import Field

from ctr_pipeline.specs.learning_rate import AnySchedule, ConstantRate
from ctr_pipeline.specs.section import (
    MAY_CHANGE,
    MAY_CHANGE_FROM_STEP_ON,
    NO_MODEL,
    SERVERS_ONLY,
    NotSearched,
    Section,
)


class TrainingCourse(Section):
    """The course of training: steps, epochs, and when a model is kept; keys of `train`."""

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
    learning_rate_schedule: Annotated[AnySchedule, MAY_CHANGE_FROM_STEP_ON] = Field(
        default=ConstantRate(), description="Factor on every learning rate over time."
    )
    gradient_clip_norm: Annotated[float | None, MAY_CHANGE_FROM_STEP_ON] = Field(
        default=None, gt=0, description="Largest norm of the dense gradient; null: no bound."
    )
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


class UpdateRule(Section):
    """How the gradients of batches become updates: keys of `runtime`."""

    update: Annotated[Literal["async", "sync", "bounded"], SERVERS_ONLY] = Field(
        default="async",
        description="async: each batch's gradients are applied as they come, and a worker computes "
        "the next batch meanwhile unless train.deterministic is set; sync: the mean of those of "
        "grads_to_wait batches; bounded: as they come, and a worker that is more than "
        "max_staleness batches ahead of the slowest waits (stale-synchronous parallel).",
    )
    grads_to_wait: int = Field(
        default=1,
        ge=1,
        le=1000,
        description="With update: sync, batches of one update; fewer where fewer workers train. "
        "A batch that missed its update joins the next, with weight "
        "1 / (1 + updates since its pull), as in n-softsync.",
    )
    max_staleness: int = Field(
        default=4,
        ge=0,
        description="With update: bounded, batches that a worker may be ahead of the slowest one; "
        "a worker that is silent for 15 seconds is not waited for.",
    )
    scale_learning_rate_by_staleness: bool = Field(
        default=False,
        description="With update: async or bounded, divide the learning rate of a batch by the "
        "updates since its pull.",
    )


class WorkersConfig(Section):
    """How many workers train; they come and go while a job runs."""

    min: int = Field(
        default=1, ge=1, le=1000, description="Training starts as soon as this many workers run."
    )
    max: int = Field(default=1, ge=1, le=1000, description="Largest number of workers.")


class Supervision(Section):
    """How many workers a job keeps, when it replaces a member, what it bears: keys of `runtime`."""

    workers: WorkersConfig | Literal["auto"] = Field(
        default=WorkersConfig(),
        description="Smallest and largest number of workers; auto: as many as make training "
        "faster.",
    )
    standby_workers: Annotated[int, SERVERS_ONLY] = Field(
        default=0, ge=0, le=100, description="Started workers that wait to replace a lost one."
    )
    heartbeat_seconds: Annotated[float, SERVERS_ONLY] = Field(
        default=0.2, gt=0, le=60, description="Seconds between a member's reports to the master."
    )
    silence_seconds: float = Field(
        default=5.0,
        gt=0,
        le=3600,
        description="A member that has not reported for so long is replaced; a worker's tasks go "
        "to others.",
    )
    startup_timeout_seconds: Annotated[float, SERVERS_ONLY] = Field(
        default=120.0,
        gt=0,
        le=3600,
        description="A started member that has not registered for so long is started anew. The "
        "time in which it waits for a node, a quota or its image does not count.",
    )
    termination_grace_seconds: Annotated[float, SERVERS_ONLY] = Field(
        default=30.0,
        ge=0,
        le=3600,
        description="A parameter server that is asked to end (SIGTERM), as on a node that is "
        "drained, stays for so long at most, until a checkpoint holds all that was trained; also "
        "the grace period of its pod.",
    )
    work_ahead_seconds: Annotated[float, SERVERS_ONLY] = Field(
        default=60.0,
        gt=0,
        le=3600,
        description="Tasks that a worker holds at a time last so long, as far as the epoch has "
        "so many, so that it can go on while the master is away.",
    )
    max_task_failures: Annotated[int, SERVERS_ONLY] = Field(
        default=3,
        ge=1,
        description="Failures of one task, lost workers left out, after which the run stops.",
    )
    max_dropped_tasks: Annotated[int, SERVERS_ONLY] = Field(
        default=0,
        ge=0,
        description="Tasks that may be left out after max_task_failures instead; the summary "
        "names them.",
    )
    move_partitions_after_seconds: Annotated[float | None, SERVERS_ONLY] = Field(
        default=30.0,
        ge=5,
        le=3600,
        description="A parameter server that uses more than 90 % of its cores for so long, on "
        "average, gives its hottest partitions to the idlest one while training goes on; null: "
        "partitions move only when their servers are scaled.",
    )
    storage_timeout_seconds: Annotated[float, SERVERS_ONLY] = Field(
        default=600.0,
        ge=0,
        description="Seconds for which a job tries again while its checkpoints cannot be read or "
        "written; then it ends, and --resume goes on from the last checkpoint.",
    )
