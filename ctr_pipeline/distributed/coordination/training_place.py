"""Where training stands in an epoch: as frozen tasks, and as whoever trains without tasks knows it.

The latter is the first batch that is still to be trained, and what is over of the tasks from there
on, as `training.trainer.TrainingState` holds it.
"""

from collections.abc import Iterable

from ctr_pipeline.dataset.order import ALL_BATCHES, DoneBatches
from ctr_pipeline.distributed.coordination.events import Json
from ctr_pipeline.distributed.coordination.task_set import TaskSet


def place_of(frozen: Json, num_tasks: int) -> tuple[int, int, list[DoneBatches]]:
    """The place of a board; there must be a batch that is still to be trained.

    What is left of a dropped task is not to be trained.

    Args:
        frozen: As `TaskBoard.freeze` gave it.
        num_tasks: Tasks of the epoch.

    Returns:
        The task of the batch, its number in it, and the batches that are done.
    """
    over, masks = TaskSet(frozen["done"]), {}
    for number, mask, _, dropped in frozen["tasks"]:
        if dropped:
            over.add(number)
        else:
            masks[number] = mask
    task = next(over.gaps(num_tasks))
    done: list[DoneBatches] = [(*run, ALL_BATCHES) for run in over if run[0] > task]
    done += [(number, number + 1, mask) for number, mask in masks.items() if number >= task]
    mask = masks.get(task, 0)
    return task, (~mask & (mask + 1)).bit_length() - 1, sorted(done)


def frozen_at(task: int, batch: int, done: Iterable[DoneBatches], loss_sum: float) -> Json:
    """The frozen board of which `place_of` gives that.

    Args:
        loss_sum: Loss of the batches that are done.
    """
    later = [(max(first, task), end, mask) for first, end, mask in done if end > task]
    whole = sorted((first, end) for first, end, mask in later if mask == ALL_BATCHES)
    runs = TaskSet([*([(0, task)] if task else []), *whole])
    masks = {task: (1 << batch) - 1}
    for number, _, mask in later:
        if mask != ALL_BATCHES:
            masks[number] = masks.get(number, 0) | mask
    tasks = [[number, mask, [], ""] for number, mask in sorted(masks.items()) if mask]
    return {"done": [list(run) for run in runs], "losses": [loss_sum], "tasks": tasks}
