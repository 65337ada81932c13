import contextlib
import threading
from itertools import pairwise

import numpy as np
import pytest

from ctr_pipeline.dataset.encoded import EncodedReader, EncodedRows
from ctr_pipeline.dataset.order import EpochOrder
from ctr_pipeline.training.batches import Position, Prefetcher, epoch_batches, pad
from tests.training.training_problem import BATCH_SIZE, NUM_ROWS, draw_rows


class Ids:
    """An `EmbeddingLookup` without rows."""

    def prepare(self, ids_BF, num_valid):
        return ids_BF.copy(), num_valid

    def locate(self, prepared, *, create):
        assert create


@pytest.fixture
def reader(learnable):
    with EncodedReader(learnable / "train") as reader:
        yield reader


def batches_of(reader, *, epoch=0, start=None, shuffle=True):
    order = EpochOrder(reader.meta.num_rows, BATCH_SIZE, 5, epoch, shuffle)
    start = start or Position(epoch, 0, 0)
    return list(epoch_batches(reader, order, Ids(), start, contextlib.nullcontext()))


def test_pad_adds_zeros_behind():
    rows = EncodedRows(*draw_rows(3, 0))
    padded = pad(rows, 5)
    assert padded.ids_BF.shape == (5, 3)
    assert padded.numbers_BN.shape == (5, 2)
    assert padded.labels_B.shape == (5,)
    assert np.array_equal(padded.ids_BF[:3], rows.ids_BF)
    assert np.array_equal(padded.numbers_BN[:3], rows.numbers_BN)
    for values in (padded.ids_BF, padded.numbers_BN, padded.labels_B):
        assert not values[3:].any()
    assert padded.ids_BF.dtype == np.int32
    assert padded.labels_B.dtype == np.float32
    assert pad(rows, 3) is rows


def test_every_row_once_an_epoch(reader):
    expected = draw_rows(NUM_ROWS, 1)[1]
    seen = np.concatenate([b.rows.numbers_BN[: b.num_valid] for b in batches_of(reader)])
    order = np.lexsort(seen.T)
    assert np.array_equal(seen[order], expected[np.lexsort(expected.T)])
    assert not np.array_equal(seen, expected)


def test_rows_keep_the_order_of_the_file_without_shuffling(reader):
    batches = batches_of(reader, shuffle=False)
    seen = np.concatenate([b.rows.numbers_BN[: b.num_valid] for b in batches])
    assert np.array_equal(seen, draw_rows(NUM_ROWS, 1)[1])


def test_epochs_differ_and_repeat(reader):
    first, again, second = (batches_of(reader, epoch=epoch) for epoch in (0, 0, 1))
    assert np.array_equal(first[0].rows.ids_BF, again[0].rows.ids_BF)
    assert not np.array_equal(first[0].rows.ids_BF, second[0].rows.ids_BF)


def test_following_is_the_position_of_the_next_batch(reader):
    batches = batches_of(reader, epoch=3)
    assert batches[0].position == Position(3, 0, 0)
    for batch, following in pairwise(batches):
        assert batch.following == following.position
        assert batch.position < batch.following
    assert batches[-1].following == Position(4, 0, 0)
    assert {batch.position.task for batch in batches} == {0, 1}


def test_every_batch_has_the_same_shape_and_only_the_ends_of_tasks_are_padded(reader):
    batches = batches_of(reader)
    assert {batch.rows.num_rows for batch in batches} == {BATCH_SIZE}
    short = [batch for batch in batches if batch.num_valid < BATCH_SIZE]
    assert short
    for batch in short:
        assert batch.following.batch == 0
        assert not batch.rows.numbers_BN[batch.num_valid :].any()
    for batch in batches:
        ids, num_valid = batch.prepared
        assert np.array_equal(ids, batch.rows.ids_BF)
        assert num_valid == batch.num_valid


def test_any_start_gives_the_rest_of_the_epoch(reader):
    whole = batches_of(reader)
    for first in (0, 1, 40, 63, 64, 65, len(whole) - 1):
        rest = batches_of(reader, start=whole[first].position)
        assert [batch.position for batch in rest] == [b.position for b in whole[first:]]
        for batch, expected in zip(rest, whole[first:], strict=True):
            assert np.array_equal(batch.rows.ids_BF, expected.rows.ids_BF)


def test_prefetcher_keeps_the_order():
    with Prefetcher(iter(range(100)), num_ahead=3) as ahead:
        assert list(ahead) == list(range(100))


def collect(items, seen):
    for item in items:
        seen.append(item)  # keeps what came before an error


def test_prefetcher_raises_the_iterators_error_after_its_items():
    def items():
        yield 1
        yield 2
        raise ValueError("the disk is gone")

    seen = []
    with Prefetcher(items()) as ahead, pytest.raises(ValueError, match="the disk is gone"):
        collect(ahead, seen)
    assert seen == [1, 2]


def test_prefetcher_reads_only_a_few_items_ahead():
    produced = []

    def items():
        for number in range(1000):
            produced.append(number)
            yield number

    with Prefetcher(items(), num_ahead=2) as ahead:
        assert next(iter(ahead)) == 0
    assert len(produced) <= 2 + 3


def endless():
    while True:
        yield 1


def test_leaving_early_stops_the_thread():
    before = set(threading.enumerate())
    with Prefetcher(endless()) as ahead:
        next(iter(ahead))
        assert set(threading.enumerate()) - before
    assert not set(threading.enumerate()) - before


def test_error_of_the_consumer_stops_the_thread():
    before = set(threading.enumerate())
    with pytest.raises(RuntimeError, match="of mine"), Prefetcher(endless()) as ahead:
        raise RuntimeError(f"{next(iter(ahead))} of mine")
    assert not set(threading.enumerate()) - before
