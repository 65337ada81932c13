"""What a model counts as trained: the part of the ledger that rolls back together with it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ctr_pipeline.dataset.order import DoneBatches
from ctr_pipeline.distributed.coordination.codec import from_record, to_record
from ctr_pipeline.distributed.coordination.cuts import CutRecord
from ctr_pipeline.distributed.coordination.events import Json
from ctr_pipeline.distributed.coordination.task_board import TaskBoard
from ctr_pipeline.distributed.coordination.task_plans import EpochPlan
from ctr_pipeline.distributed.coordination.tasks import name_of
from ctr_pipeline.distributed.coordination.training_place import frozen_at, place_of


@dataclass(frozen=True)
class ClosedEpoch:
    """An epoch whose tasks are all done or dropped.

    Attributes:
        epoch: From 0.
        trained: Records counted, each once.
        dropped: Records of dropped tasks that are not counted.
        batches: Batches counted.
        loss_sum: Over the records counted.
        dropped_tasks: Which tasks were dropped and why, for a person.
    """

    epoch: int
    trained: int
    dropped: int
    batches: int
    loss_sum: float
    dropped_tasks: tuple[str, ...]


def frozen_without_job(ledger: "Ledger", cut: int) -> dict[str, object]:
    """`TakeCut.frozen` of a checkpoint that no job has taken.

    Args:
        ledger: What it counts.
        cut: Number of the checkpoint.
    """
    return {
        **ledger.freeze(),
        "cut": to_record(CutRecord(cut, parent=0, depth=0, best_cut=ledger.best_cut)),
        "attempt": 0,
        "repeated": [],
        "seconds": [],
    }


class Ledger:
    """Epochs and tasks counted, history, and the cuts that belong to it."""

    def __init__(self) -> None:
        self.closed: list[ClosedEpoch] = []
        self.board: TaskBoard | None = None
        """The epoch that is being trained; None between epochs."""
        self.history: list[Json] = []
        self.best_epoch: int | None = None
        self.epoch_cuts: dict[int, int] = {}
        """Epoch → the cut at its end."""

    @property
    def epoch(self) -> int:
        """Being trained, or to be trained next."""
        return len(self.closed)

    @property
    def last_epoch(self) -> int:
        """Being trained, or trained last."""
        return max(0, self.epoch - (1 if self.board is None else 0))

    @property
    def best_cut(self) -> int:
        """The cut at the end of the best epoch; 0: none yet, or lost."""
        return 0 if self.best_epoch is None else self.epoch_cuts.get(self.best_epoch, 0)

    @property
    def trained(self) -> int:
        """Records counted, all epochs."""
        open_rows = 0 if self.board is None else self.board.rows_done
        return sum(epoch.trained for epoch in self.closed) + open_rows

    @property
    def batches(self) -> int:
        """Batches counted, all epochs."""
        open_batches = 0 if self.board is None else self.board.batches_done
        return sum(epoch.batches for epoch in self.closed) + open_batches

    def trained_by_epoch(self) -> dict[int, int]:
        """Records counted, by epoch."""
        counts = {epoch.epoch: epoch.trained for epoch in self.closed}
        if self.board is not None:
            counts[self.epoch] = self.board.rows_done
        return counts

    def rows_beyond(self, other: "Ledger") -> dict[int, int]:
        """Records counted here and not in another ledger of the job, by epoch; only if any are."""
        theirs = other.trained_by_epoch()
        rows = {epoch.epoch: epoch.trained - theirs.get(epoch.epoch, 0) for epoch in self.closed}
        if self.board is not None and other.epoch <= self.epoch:
            board = other.board if other.epoch == self.epoch else None
            rows[self.epoch] = self.board.rows_beyond(board)
        return {epoch: number for epoch, number in rows.items() if number}

    def dropped_tasks(self) -> tuple[str, ...]:
        """What was dropped and why, for a person."""
        names = [name for epoch in self.closed for name in epoch.dropped_tasks]
        return (*names, *self._dropped_on_board())

    def _dropped_on_board(self) -> tuple[str, ...]:
        if self.board is None:
            return ()
        return tuple(f"{name_of(key, task)}: {task.dropped}" for key, task in self.board.dropped)

    def open_epoch(self, plan: EpochPlan) -> None:
        """Begins the next epoch."""
        self.board = TaskBoard.of_epoch(plan)

    def close_epoch(self) -> None:
        """Ends the epoch, whose tasks are all over."""
        board = self.board
        if board is None or not board.is_over:
            raise RuntimeError(f"epoch {self.epoch} is not over")
        self.closed.append(
            ClosedEpoch(
                self.epoch,
                board.rows_done,
                board.rows_dropped,
                board.batches_done,
                board.loss_sum,
                self._dropped_on_board(),
            )
        )
        self.board = None

    def describe_training(self) -> dict[str, object]:
        """Where training stands, as `training.trainer.TrainingState` holds it."""
        task, batch, rows, loss_sum = 0, 0, 0, 0.0
        done: list[DoneBatches] = []
        if self.board is not None:
            task, batch, done = place_of(self.board.freeze(), self.board.num_tasks)
            rows, loss_sum = self.board.rows_done, self.board.loss_sum
        elif len(self.history) < len(self.closed):
            # Its validation is still to come.
            rows, loss_sum = self.closed[-1].trained, self.closed[-1].loss_sum
        return {
            "position": {"epoch": self.epoch, "task": task, "batch": batch},
            "done": [list(one) for one in done],
            "epoch_rows": rows,
            "epoch_loss_sum": loss_sum,
            "history": [dict(record) for record in self.history],
            "best_step": None if self.best_epoch is None else self.history[self.best_epoch]["step"],
        }

    def freeze(self) -> dict[str, object]:
        """All of it as JSON, without leases and failures, which are no part of a model.

        Its size follows the tasks at work, not those that are done.
        """
        return {
            "closed": to_record(self.closed),
            "board": None if self.board is None else self.board.freeze(),
            "over": [] if self.board is None else [list(run) for run in self.board.over_ranges()],
            "history": [dict(record) for record in self.history],
            "best_epoch": self.best_epoch,
            "epoch_cuts": [list(pair) for pair in self.epoch_cuts.items()],
        }

    @classmethod
    def of_training(
        cls,
        training: Json,
        epoch_cuts: Mapping[int, int],
        plan_epoch: Callable[[int], EpochPlan],
    ) -> "Ledger":
        """The ledger of a checkpoint that training without a job has written.

        Args:
            training: Where it stood, as `describe_training` says it.
            epoch_cuts: Epoch → number of the checkpoint at its end.
            plan_epoch: The tasks of an epoch.
        """
        ledger, place, history = cls(), training["position"], training["history"]
        for number in range(place["epoch"]):
            plan = plan_epoch(number)
            if number < len(history):
                record = history[number]
                rows, loss_sum = record["num_rows"], record["train_logloss"] * record["num_rows"]
            else:
                rows, loss_sum = training["epoch_rows"], training["epoch_loss_sum"]
            batches = plan.batches_between(0, plan.num_tasks)
            ledger.closed.append(ClosedEpoch(number, rows, 0, batches, loss_sum, ()))
        if place["task"] or place["batch"] or training["done"]:
            done = [(first, end, mask) for first, end, mask in training["done"]]
            frozen = frozen_at(place["task"], place["batch"], done, training["epoch_loss_sum"])
            ledger.board = TaskBoard.thaw(plan_epoch(ledger.epoch), frozen)
        else:
            # The job validates it once more, to decide whether it was the last.
            history = history[: ledger.last_epoch]
        ledger.history = [dict(record) for record in history]
        steps = [record["step"] for record in ledger.history]
        if training["best_step"] in steps:
            ledger.best_epoch = steps.index(training["best_step"])
        ledger.epoch_cuts = {
            epoch: cut for epoch, cut in epoch_cuts.items() if epoch < ledger.epoch
        }
        return ledger

    @classmethod
    def thaw(cls, frozen: Json, plan_epoch: Callable[[int], EpochPlan]) -> "Ledger":
        """The ledger that was frozen.

        Args:
            frozen: From `freeze`; empty: nothing was trained yet.
            plan_epoch: The tasks of an epoch.
        """
        ledger = cls()
        if not frozen:
            return ledger
        ledger.closed = from_record(list[ClosedEpoch], frozen["closed"])
        ledger.history = list(frozen["history"])
        ledger.best_epoch = frozen["best_epoch"]
        ledger.epoch_cuts = dict(frozen["epoch_cuts"])
        if frozen["board"] is not None:
            ledger.board = TaskBoard.thaw(plan_epoch(ledger.epoch), frozen["board"])
        return ledger
