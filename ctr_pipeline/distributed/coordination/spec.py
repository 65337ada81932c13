"""What every member of a job has to agree on: `job/spec.json` in the run folder."""

from dataclasses import dataclass, replace
from pathlib import Path

from ctr_pipeline.specs.course import RowLifecycle, Supervision, TrainingCourse, UpdateRule
from ctr_pipeline.specs.optimizer import OptimizerSpec
from ctr_pipeline.specs.segment import SegmentSpec
from ctr_pipeline.specs.table import TableSpec

PROTOCOL_VERSION = 1
BATCHES_PER_TASK = 64
"""Batches of a task, so that those that are done fit one 64-bit word."""

CUTS_OF_A_GENERATION = 1_000_000
"""Cuts of a generation, so that names of cuts and of their files tell generations apart."""


@dataclass(frozen=True)
class EncodedSplit:
    """Encoded rows of a split.

    Attributes:
        name: `train`, `valid` or `test`.
        folder: Where `rows.bin` and `meta.json` are, from the run folder.
        num_rows: Rows.
    """

    name: str
    folder: str
    num_rows: int


@dataclass(frozen=True)
class RunFence:
    """Which process's job this is, of a run that several machines can reach.

    Attributes:
        address: Where the run is kept; what is there says whether another process has taken over.
        generation: Number of the process that began or resumed the job; later ones are higher.
    """

    address: str
    generation: int

    @property
    def first_cut(self) -> int:
        """Number of its first cut: higher than that of any cut of a process before."""
        return self.generation * CUTS_OF_A_GENERATION + 1


@dataclass(frozen=True)
class JobSpec:
    """The facts of one job; written once, before any member starts.

    Paths are relative to the run folder, which members may see at different places.

    Attributes:
        job: Unique name of the job.
        protocol: `PROTOCOL_VERSION` of the program that wrote it.
        config_fingerprint: Fingerprint of the keys that the model depends on.
        rows_fingerprint: Fingerprint of the encoded rows.
        plan_fingerprint: Fingerprint of the transforms that encoded them.
        tables: Embedding tables; empty for a model without fields.
        segments: Segments of every row whose table has none of its own.
        counts_file: int64 .npy, training counts of ids, as of `pack_counts`.
        num_dense: Dense parameters.
        dense_optimizer: Optimizer of the dense parameters.
        num_partitions: Partitions of the rows; the same for the life of the job.
        num_parameter_servers: Now; a resumed job may have another number.
        update_rule: How pushes become updates.
        supervision: How many workers it keeps, and when it replaces a member.
        splits: Encoded rows.
        course: In what order and for how long it is trained.
        rows: Which ids have rows, for how long, and where they lie.
        checkpoints_folder: Where the row log and the manifests lie: a folder, or an address.
        scores_cut: The cut that the job scores its splits with, and does nothing else; 0: it
            trains.
        position_tables: Table of each column of ids; empty if column f is of table f.
        earlier_steps: Batches that the parameters of the first cut were trained with, in runs
            before; 0: the job begins with initial values.
        table_features: Features whose ids each table holds rows of; empty: that of its name.
        spill_folder: Where servers put rows beyond their memory; empty: in checkpoints_folder.
        fence: The identity of the job; None: the lock of the run folder says whose it is.
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
    update_rule: UpdateRule
    supervision: Supervision
    splits: tuple[EncodedSplit, ...]
    course: TrainingCourse
    rows: RowLifecycle
    checkpoints_folder: str
    scores_cut: int = 0
    position_tables: tuple[int, ...] = ()
    earlier_steps: int = 0
    table_features: tuple[tuple[str, ...], ...] = ()
    spill_folder: str = ""
    fence: RunFence | None = None

    def within(self, run_folder: Path) -> "JobSpec":
        """The spec with paths that this process can open.

        Args:
            run_folder: The run folder, as this process sees it.
        """

        def placed(path: str) -> str:
            return path if "://" in path or not path else str(run_folder / path)

        return replace(
            self,
            counts_file=placed(self.counts_file),
            splits=tuple(replace(split, folder=placed(split.folder)) for split in self.splits),
            checkpoints_folder=placed(self.checkpoints_folder),
            spill_folder=placed(self.spill_folder),
        )

    def split(self, name: str) -> EncodedSplit | None:
        """The split of that name, if there is one."""
        return next((split for split in self.splits if split.name == name), None)
