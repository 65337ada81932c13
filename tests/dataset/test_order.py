import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.dataset.order import ALL_BATCHES, BatchesLeft, EpochOrder, permute, unpermute


def rows_in_order(order: EpochOrder) -> np.ndarray:
    visited = []
    for task in order.tasks():
        rows = np.concatenate([np.arange(first, first + count) for first, count in task.ranges])
        assert len(rows) == task.num_rows
        visited.append(rows if task.permutation is None else rows[task.permutation])
    return np.concatenate(visited)


@given(size=st.integers(1, 5000), key=st.integers(0, 2**64 - 1))
def test_permute_is_one_to_one(size, key):
    result = permute(np.arange(size), size=size, key=key)
    assert np.array_equal(np.sort(result), np.arange(size))
    assert np.array_equal(unpermute(result, size=size, key=key), np.arange(size))


@given(
    num_rows=st.integers(1, 20_000),
    batch_size=st.integers(1, 300),
    batches_per_task=st.integers(1, 8),
    shuffle=st.booleans(),
    seed=st.integers(0, 2**63 - 1),
)
def test_every_row_is_visited_once_an_epoch(num_rows, batch_size, batches_per_task, shuffle, seed):
    order = EpochOrder(num_rows, batch_size, seed, 3, shuffle, batches_per_task)
    visited = rows_in_order(order)
    assert np.array_equal(np.sort(visited), np.arange(num_rows))
    if not shuffle:
        assert np.array_equal(visited, np.arange(num_rows))


def test_a_task_is_the_same_whether_or_not_the_ones_before_it_were_computed():
    order = EpochOrder(100_000, 128, 7, 2, True, 16)
    in_sequence = list(order.tasks())[20]
    alone = EpochOrder(100_000, 128, 7, 2, True, 16).rows_of(20)
    assert np.array_equal(in_sequence.ranges, alone.ranges)
    assert np.array_equal(in_sequence.permutation, alone.permutation)


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = [
        rows_in_order(EpochOrder(10_000, 100, seed, epoch)) for seed in (0, 1) for epoch in (0, 1)
    ]
    for first in range(4):
        for second in range(first):
            assert np.mean(orders[first] == orders[second]) < 0.01


def test_shuffled_rows_lose_their_neighbourhood():
    visited = rows_in_order(EpochOrder(200_000, 1024, 0, 0))
    assert abs(np.corrcoef(visited[:-1], visited[1:])[0, 1]) < 0.02
    first_batch = visited[:1024]
    assert first_batch.max() - first_batch.min() > 190_000


def test_number_of_batches_counts_the_short_ones():
    order = EpochOrder(1000, 64, 0, 0, True, 4)
    sizes = []
    for task in order.tasks():
        sizes += [min(64, task.num_rows - first) for first in range(0, task.num_rows, 64)]
    assert order.num_batches == len(sizes)
    assert sum(sizes) == 1000


@given(
    num_rows=st.integers(1, 20_000),
    batch_size=st.integers(1, 300),
    shuffle=st.booleans(),
    seed=st.integers(0, 2**63 - 1),
)
def test_uneven_tasks_are_those_that_hold_the_end_of_the_data(num_rows, batch_size, shuffle, seed):
    order = EpochOrder(num_rows, batch_size, seed, 3, shuffle, batches_per_task=4)
    sizes = {task.task: task.num_rows for task in order.tasks()}
    uneven = {task: rows for task, rows in sizes.items() if rows != order.rows_per_task}
    assert dict(order.uneven_tasks) == uneven
    assert len(uneven) <= 2


@given(
    num_rows=st.integers(1, 20_000),
    batch_size=st.integers(1, 300),
    batches_per_task=st.integers(1, 8),
    shuffle=st.booleans(),
    seed=st.integers(0, 2**63 - 1),
)
def test_batches_before_a_task_are_the_sum_over_those_before_it(
    num_rows, batch_size, batches_per_task, shuffle, seed
):
    order = EpochOrder(num_rows, batch_size, seed, 3, shuffle, batches_per_task)
    counted = 0
    for task in order.tasks():
        assert order.batches_before(task.task) == counted
        batches = len(range(0, task.num_rows, batch_size))
        assert order.batches_of(task.task) == batches
        counted += batches
    assert order.num_batches == counted


def test_an_epoch_of_a_million_million_rows_is_counted_without_looking_at_each_task():
    order = EpochOrder(10**12 + 77, 1024, 5, 3)
    (short, short_rows), (last, last_rows) = order.uneven_tasks
    assert last == order.num_tasks - 1
    for task, rows in ((short, short_rows), (last, last_rows), (short - 1, order.rows_per_task)):
        assert order.rows_of(task).num_rows == rows
    even = (order.num_tasks - 2) * order.rows_per_task
    assert even + short_rows + last_rows == order.num_rows
    assert order.num_batches == (order.num_tasks - 2) * 64 + -(-short_rows // 1024) + -(
        -last_rows // 1024
    )


@given(data=st.data(), num_rows=st.integers(1, 2000), batch_size=st.integers(1, 40))
def test_batches_that_are_over_are_left_out_and_the_others_come_in_order(
    data, num_rows, batch_size
):
    order = EpochOrder(num_rows, batch_size, seed=1, epoch=2, batches_per_task=4)
    tasks = range(order.num_tasks)
    every = [(task, batch) for task in tasks for batch in range(order.batches_of(task))]
    over = data.draw(st.sets(st.sampled_from(every)))
    whole = {task for task in tasks if data.draw(st.booleans())}
    done = [(task, task + 1, ALL_BATCHES) for task in whole]
    done += [(task, task + 1, 1 << batch) for task, batch in over]
    left = BatchesLeft(order, done)
    expected = [place for place in every if place not in over and place[0] not in whole]
    assert [(task, batch) for task in tasks for batch in left.of_task(task)] == expected
    for number, (task, batch) in enumerate(expected):
        most = data.draw(st.integers(0, 9))
        rest = expected[number:]
        following = rest[most] if most < len(rest) else None
        assert left.after(task, batch, most) == (min(most, len(rest)), following)
