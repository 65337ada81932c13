"""Tasks of an epoch and of a split: what they hold, who holds them, what of them is done."""

from dataclasses import dataclass

from ctr_pipeline.distributed.coordination.spec import BATCHES_PER_TASK


@dataclass(frozen=True)
class EpochPlan:
    """How the records of an epoch fall into tasks; computed where the order of records is known.

    Attributes:
        epoch: From 0.
        num_tasks: Tasks.
        rows_per_task: Rows of every task but those in `other_rows`.
        batch_size: Rows of every batch of a task but its last.
        other_rows: (task, rows) of the tasks that hold the end of the data.
    """

    epoch: int
    num_tasks: int
    rows_per_task: int
    batch_size: int
    other_rows: tuple[tuple[int, int], ...]

    def rows_of(self, task: int) -> int:
        """Rows of a task."""
        return dict(self.other_rows).get(task, self.rows_per_task)

    def batches_of(self, task: int) -> int:
        """Batches of a task, at most `BATCHES_PER_TASK`."""
        return min(BATCHES_PER_TASK, -(-self.rows_of(task) // self.batch_size))

    @property
    def num_rows(self) -> int:
        """Rows of the epoch."""
        others = dict(self.other_rows)
        return (self.num_tasks - len(others)) * self.rows_per_task + sum(others.values())
