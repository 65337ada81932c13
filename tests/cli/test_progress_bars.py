import io

import pytest
from rich.console import Console

from ctr_pipeline.cli.progress_bars import BarProgress


@pytest.fixture
def stream():
    return io.StringIO()


@pytest.fixture
def progress(stream):
    return BarProgress(Console(file=stream, force_terminal=True, width=100, color_system=None))


def test_bar_shows_name_rate_and_note(progress, stream):
    with progress.task("training", total=100) as task:
        task.advance(40)
        task.note("loss [0.45]")
    text = stream.getvalue()
    assert "training" in text
    assert "rows" in text
    assert "loss [0.45]" in text


@pytest.mark.parametrize("total", [None, 0, 10])
def test_any_total_ends_whole(progress, stream, total):
    with progress.task("work", total=total):
        pass
    assert "✓" in stream.getvalue()


def test_lines_appear_above_open_bars(progress, stream):
    with progress.task("outer", total=None), progress.task("inner", total=5) as task:
        task.advance(5)
        progress.log("a [plain] line")
    assert "a [plain] line" in stream.getvalue()


def test_failed_work_gets_no_tick(progress, stream):
    with pytest.raises(ValueError, match="x"), progress.task("work", total=10):
        raise ValueError("x")
    assert "✓" not in stream.getvalue()


def test_bars_can_follow_each_other(progress, stream):
    for name in ("one", "two"):
        with progress.task(name, total=1) as task:
            task.advance(1)
    assert stream.getvalue().count("✓") >= 2
