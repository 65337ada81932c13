import pytest

from ctr_pipeline.distributed.ps.measured_lock import MeasuredLock


def test_lock_knows_its_longest_hold_and_the_sum_of_all():
    times = iter([1.0, 1.5, 2.0, 5.0, 6.0, 6.1])
    lock = MeasuredLock(lambda: next(times))
    for _ in range(3):
        with lock:
            pass
    assert lock.longest_seconds == 3.0
    assert lock.take_longest() == 3.0
    assert lock.longest_seconds == 0.0
    assert lock.held_seconds == pytest.approx(0.5 + 3.0 + 0.1)


def test_lock_is_released_by_an_exception():
    lock = MeasuredLock()
    with pytest.raises(ValueError, match="gone"), lock:
        raise ValueError("gone")
    with lock:
        assert lock.take_longest() > 0.0
