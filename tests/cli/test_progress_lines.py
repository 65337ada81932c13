import contextlib
import io

import pytest

from ctr_pipeline.cli.progress_lines import LineProgress, format_seconds


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def stream():
    return io.StringIO()


@pytest.fixture
def progress(stream, clock):
    return LineProgress(stream, clock=clock, heartbeat=False)


def test_line_at_the_start_every_ten_seconds_and_at_the_end(progress, stream, clock):
    with progress.task("training", total=1000) as task:
        for second in range(1, 31):
            if second == 2:
                assert stream.getvalue() == ""
            clock.now = float(second)
            task.advance(25)
            task.note("loss 0.45")
            progress.beat()
    assert stream.getvalue().splitlines() == [
        "training: started (1,000 rows)",
        "training: 25%, 250 rows, 25/s, 10 s so far, about 30 s left, loss 0.45",
        "training: 50%, 500 rows, 25/s, 20 s so far, about 20 s left, loss 0.45",
        "training: 75%, 750 rows, 25/s, 30 s so far, about 10 s left, loss 0.45",
        "training: done in 30 s, 750 rows, 25/s, loss 0.45",
    ]


def test_work_of_unknown_length_tells_its_time(progress, stream, clock):
    with progress.task("statistics", total=None):
        clock.now = 12.0
        progress.beat()
    assert stream.getvalue().splitlines() == [
        "statistics: 12 s so far",
        "statistics: done in 12 s",
    ]


def test_failure_is_not_called_done(progress, stream):
    with pytest.raises(ValueError, match="x"), progress.task("training", total=None):
        raise ValueError("x")
    assert stream.getvalue().splitlines()[-1] == "training: stopped after 0.0 s"


def test_innermost_work_speaks(progress, stream, clock):
    with progress.task("outer", total=None):
        with progress.task("inner", total=None):
            clock.now = 11.0
            progress.beat()
        progress.beat()
    lines = stream.getvalue().splitlines()
    assert lines == [
        *("inner: 11 s so far", "inner: done in 11 s"),
        *("outer: 11 s so far", "outer: done in 11 s"),
    ]


def test_short_work_has_no_lines_but_when_it_fails(progress, stream, clock):
    """Twenty epochs with their validation would be a hundred lines."""
    for _ in range(20):
        for name in ("training", "validation"):
            with progress.task(name, total=10) as task:
                clock.now += 1.5
                task.advance(10)
                progress.beat()
    assert stream.getvalue() == ""
    with progress.task("training", total=10):
        clock.now += 2.5
        progress.beat()
        clock.now += 1.0
        progress.beat()
    assert stream.getvalue().splitlines() == [
        "training: started (10 rows)",
        "training: done in 3.5 s",
    ]


def test_heartbeat_ends_with_the_work(stream):
    import threading

    progress = LineProgress(stream)
    before = set(threading.enumerate())
    with progress.task("x", total=None):
        (thread,) = set(threading.enumerate()) - before
    thread.join(timeout=60)
    assert not thread.is_alive()


def test_work_goes_on_without_the_thread_of_its_lines_which_the_next_work_has(stream, monkeypatch):
    import threading

    def refuse(_):
        raise RuntimeError("can't start new thread")

    progress = LineProgress(stream)
    before = set(threading.enumerate())
    with contextlib.ExitStack() as stack:
        with monkeypatch.context() as refused:
            refused.setattr("threading.Thread.start", refuse)
            stack.enter_context(progress.task("outer", total=None))
        assert not set(threading.enumerate()) - before
        with progress.task("inner", total=None):
            (thread,) = set(threading.enumerate()) - before
    thread.join(timeout=60)
    assert not thread.is_alive()
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (12.4, "12 s"), (75, "1 min 15 s"), (7500, "2 h 5 min")],
)
def test_duration_as_people_say_it(seconds, text):
    assert format_seconds(seconds) == text
