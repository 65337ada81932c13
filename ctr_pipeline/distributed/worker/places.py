"""Which step of a run a batch is: a pure function of its place."""

from dataclasses import dataclass, field

from ctr_pipeline.dataset.order import EpochOrder
from ctr_pipeline.training.batches import Position


@dataclass
class StepNumbers:
    """Numbers the batches of a run as one process that trains them in order would.

    So a batch that is trained again, or by another worker, has the step that it had.

    Args:
        num_rows: Training rows.
        batch_size: Rows of a full batch.
        seed: Of the run.
        shuffle: Whether each epoch has an order of its own.
    """

    num_rows: int
    batch_size: int
    seed: int
    shuffle: bool
    _first_steps: list[list[int]] = field(default_factory=list, init=False, repr=False)

    def order_of(self, epoch: int) -> EpochOrder:
        """The tasks of an epoch."""
        return EpochOrder(self.num_rows, self.batch_size, self.seed, epoch, self.shuffle)

    def step_of(self, position: Position) -> int:
        """Number of the step that trains a batch, from 1."""
        return self._of_epoch(position.epoch)[position.task] + position.batch + 1

    def _of_epoch(self, epoch: int) -> list[int]:
        """Steps before each task of an epoch, and after its last."""
        for earlier in range(len(self._first_steps), epoch + 1):
            # Epochs need not have equally many batches: the short block may stand in any task.
            steps = [self._first_steps[-1][-1] if earlier else 0]
            order = self.order_of(earlier)
            for task in range(order.num_tasks):
                steps.append(steps[-1] + order.batches_of(task))
            self._first_steps.append(steps)
        return self._first_steps[epoch]
