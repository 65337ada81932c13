import pytest

from ctr_pipeline.dataset.order import EpochOrder
from ctr_pipeline.distributed.worker.step_numbers import StepNumbers
from ctr_pipeline.training.batches import Position


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("num_rows", [1, 64, 1500, 5 * 64 * 16 + 7, 12_345])
def test_steps_count_the_batches_of_one_process(num_rows, shuffle):
    numbers = StepNumbers(num_rows, 16, seed=3, shuffle=shuffle)
    expected = 0
    for epoch in range(3):
        order = EpochOrder(num_rows, 16, 3, epoch, shuffle)
        for task in order.tasks():
            # As the trainer cuts a task into batches.
            for batch in range(len(range(0, task.num_rows, 16))):
                expected += 1
                assert numbers.step_of(Position(epoch, task.task, batch)) == expected


def test_steps_are_known_without_those_before():
    asked_late = StepNumbers(5000, 16, seed=1, shuffle=True)
    asked_early = StepNumbers(5000, 16, seed=1, shuffle=True)
    for epoch in range(5):
        asked_early.step_of(Position(epoch, 0, 0))
    last = Position(4, 4, 3)
    assert asked_late.step_of(last) == asked_early.step_of(last)


def test_a_joiner_of_a_vast_epoch_numbers_its_steps_at_once():
    # 15 million tasks an epoch: counting them one by one would take hours.
    numbers = StepNumbers(10**12 + 77, 1024, seed=1, shuffle=True)
    earlier = sum(EpochOrder(10**12 + 77, 1024, 1, epoch).num_batches for epoch in range(3))
    assert numbers.step_of(Position(3, 0, 5)) == earlier + 6
