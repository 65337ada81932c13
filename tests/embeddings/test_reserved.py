import mmap

import numpy as np
import pytest

from ctr_pipeline.embeddings import reserved
from ctr_pipeline.embeddings.layout import plan_layout
from ctr_pipeline.embeddings.rows import RowStorage
from ctr_pipeline.errors import TrainingError
from ctr_pipeline.kernels import ranges
from ctr_pipeline.specs.optimizer import OptimizerSpec
from ctr_pipeline.specs.segment import SegmentSpec


def refuse_above(num_bytes, monkeypatch):
    granted = mmap.mmap

    def refusing(descriptor, length, **kwargs):
        if length > num_bytes:
            raise OSError("Cannot allocate memory")
        return granted(descriptor, length, **kwargs)

    monkeypatch.setattr(reserved.mmap, "mmap", refusing)


def test_far_more_than_memory_can_be_reserved_and_reads_as_zeros():
    array = reserved.reserve_array((1 << 30, 64), np.float32, purpose="rows")
    array[-1, -1] = 3
    assert array.nbytes == 1 << 38
    assert array[1 << 20, 5] == 0
    assert array[-1, -1] == 3


def test_memory_that_was_given_back_reads_as_zeros():
    array = reserved.reserve_array((1 << 20, 16), np.float32, purpose="rows")
    array[:] = 3
    reserved.give_back(array)
    assert not array.any()
    array[5] = 4
    assert array.sum() == 64


def test_a_refused_reservation_says_what_to_do(monkeypatch):
    refuse_above(1 << 20, monkeypatch)
    with pytest.raises(TrainingError, match=r"no address space for 1\.0 GiB of embedding rows"):
        reserved.reserve_array((1 << 28,), np.float32, purpose="embedding rows")


def test_rows_make_do_with_the_room_there_is(monkeypatch):
    layout = plan_layout([SegmentSpec("v", 2, OptimizerSpec(name="sgd", learning_rate=0.1), "sum")])
    assert layout.record_bytes == 16
    seeds = np.zeros(1, np.uint64)
    refuse_above(16 << 18, monkeypatch)
    assert RowStorage(layout, 1 << 20, seeds).capacity == 1 << 18
    refuse_above(1 << 10, monkeypatch)
    with pytest.raises(TrainingError, match="no address space"):
        RowStorage(layout, 1 << 20, seeds)


def test_ranges_cover_everything_once_and_pass_errors_on():
    runner = ranges.RangeRunner(3)
    seen = runner.run(lambda first, last: list(range(first, last)), 5000)
    assert [i for part in seen for i in part] == list(range(5000))
    assert len(seen) == 3
    seen = runner.run(lambda first, last: (first, last), 5000, [0, 4990])
    assert seen == [(0, 0), (0, 4990), (4990, 5000)]

    def fail_late(first, last):
        if last == 5000:
            raise ZeroDivisionError
        return first

    with pytest.raises(ZeroDivisionError):
        runner.run(fail_late, 5000)
