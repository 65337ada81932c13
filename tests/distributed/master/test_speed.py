import inspect
import tracemalloc

import pytest

from ctr_pipeline.distributed.master.speed import SpeedMeter


def test_speed_is_zero_at_first():
    meter = SpeedMeter()
    assert meter.per_second == 0.0
    meter.note(5.0, 100)
    assert meter.per_second == 0.0


def test_a_steady_count_has_its_speed_however_often_it_is_looked_at():
    for every in (0.03, 0.4, 3.0):
        meter = SpeedMeter()
        for look in range(1000):
            meter.note(look * every, int(look * every * 500))
        assert meter.per_second == pytest.approx(500, rel=0.02)


def test_speed_forgets_what_was_long_ago():
    meter = SpeedMeter()
    for second in range(60):
        meter.note(float(second), second * 1000)
    for second in range(60, 90):
        meter.note(float(second), 59_000)
    assert meter.per_second == 0.0


def test_a_rollback_starts_it_over():
    meter = SpeedMeter()
    for second in range(10):
        meter.note(float(second), second * 1000)
    meter.note(10.0, 2000)
    assert meter.per_second == 0.0
    meter.note(12.0, 2600)
    assert meter.per_second == pytest.approx(300)


def test_memory_is_bounded():
    meter = SpeedMeter()
    tracemalloc.start()
    try:
        for look in range(20_000):
            meter.note(look * 0.01, look)
        # What other threads of the process allocate meanwhile is not the meter's.
        files = (inspect.getfile(SpeedMeter), __file__)
        own = [tracemalloc.Filter(True, file) for file in files]
        held = sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces(own).traces)
    finally:
        tracemalloc.stop()
    # All of them would take a megabyte and a half.
    assert 0 < held < 20_000
