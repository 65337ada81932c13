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
        shuffle: Whether each epoch has an order of its own.
    """

    num_rows: int
    batch_size: int
    seed: int
    shuffle: bool
    _epochs: list[tuple[int, EpochOrder]] = field(default_factory=list, init=False, repr=False)
    """Steps before each epoch, and its tasks."""

    def order_of(self, epoch: int) -> EpochOrder:
        """The tasks of an epoch."""
        return EpochOrder(self.num_rows, self.batch_size, self.seed, epoch, self.shuffle)

    def step_of(self, position: Position) -> int:
        """Number of the step that trains a batch, from 1."""
        for earlier in range(len(self._epochs), position.epoch + 1):
            # Epochs need not have equally many batches: the short block may stand in any task.
            before, last = self._epochs[-1] if earlier else (0, None)
            steps = before + (last.num_batches if last is not None else 0)
            self._epochs.append((steps, self.order_of(earlier)))
        before, order = self._epochs[position.epoch]
        return before + order.batches_before(position.task) + position.batch + 1
