"""What every member of a job has to agree on: `job/spec.json` in the run folder."""

from dataclasses import dataclass
from typing import Literal

from ctr_pipeline.specs.course import RowLifecycle, TrainingCourse
from ctr_pipeline.specs.optimizer import OptimizerSpec
from ctr_pipeline.specs.segment import SegmentSpec
from ctr_pipeline.specs.table import TableSpec

PROTOCOL_VERSION = 1
BATCHES_PER_TASK = 64
"""So that the batches of a task that are done fit one 64-bit word."""

UpdateMode = Literal["async", "sync", "bounded"]


@dataclass(frozen=True)
class UpdateRule:
    """How pushes become updates.

    Attributes:
        mode: `async`: at once. `sync`: a round waits for `grads_to_wait` pushes, or for one of
            each worker that can still push, and applies their mean; one that missed its round
            joins the next and weighs less. `bounded`: at once; a worker that is more than
            `max_staleness` batches ahead of the slowest waits before it pulls.
        grads_to_wait: Pushes of a sync round.
        max_staleness: Batches, for `bounded`.
        scale_by_staleness: Divide the learning rate by max(1, staleness).
    """

    mode: UpdateMode
    grads_to_wait: int
    max_staleness: int
    scale_by_staleness: bool


@dataclass(frozen=True)
class EncodedSplit:
    """Encoded rows of a split.

    Attributes:
        name: `train`, `valid` or `test`.
        folder: Where `rows.bin` and `meta.json` are; every member sees the same files.
        num_rows: Rows.
    """

    name: str
    folder: str
    num_rows: int


@dataclass(frozen=True)
class JobSpec:
    """The facts of one job; written once, before any member starts.

    Attributes:
        job: Unique name of the job.
        protocol: `PROTOCOL_VERSION` of the program that wrote it.
        config_fingerprint: Fingerprint of the keys that the model depends on.
        rows_fingerprint: Fingerprint of the encoded rows.
        plan_fingerprint: Fingerprint of the transforms that encoded them.
        tables: Embedding tables; empty for a model without fields.
        segments: Segments of every row whose table has none of its own.
        counts_file: int64 .npy, training counts of all ids, table after table.
        num_dense: Dense parameters.
        dense_optimizer: Optimizer of the dense parameters.
        num_partitions: Partitions of the rows; the same for the life of the job.
        num_parameter_servers: Now; a resumed job may have another number.
        update: How pushes become updates.
        splits: Encoded rows.
        course: In what order and for how long it is trained.
        rows: Which ids have rows, for how long, and where they lie.
        checkpoints_folder: Where the row log and the manifests lie: a folder, or an address.
        scores_cut: The cut that the job scores its splits with, and does nothing else; 0: it
            trains.
        slot_tables: Table of each column of ids; empty if column f is of table f.
        earlier_steps: Batches that the parameters of the first cut were trained with, in runs
            before; 0: the job begins with initial values.
        spill_folder: Where servers put rows beyond their memory; empty: in checkpoints_folder.
    """

    job: str
    protocol: int
    config_fingerprint: str
    rows_fingerprint: str
    plan_fingerprint: str
    tables: tuple[TableSpec, ...]
    segments: tuple[SegmentSpec, ...]
    counts_file: str
    num_dense: int
    dense_optimizer: OptimizerSpec
    num_partitions: int
    num_parameter_servers: int
    update: UpdateRule
    splits: tuple[EncodedSplit, ...]
    course: TrainingCourse
    rows: RowLifecycle
    checkpoints_folder: str
    scores_cut: int = 0
    slot_tables: tuple[int, ...] = ()
    earlier_steps: int = 0
    spill_folder: str = ""

    def split(self, name: str) -> EncodedSplit | None:
        """The split of that name, if there is one."""
        return next((split for split in self.splits if split.name == name), None)
