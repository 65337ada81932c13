import os
import signal
import threading

import pytest

from ctr_pipeline import interruption
from ctr_pipeline.errors import Interrupted


def send(number=signal.SIGTERM):
    os.kill(os.getpid(), number)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_signal_raises_at_once(request, number, code):
    # A test run under nohup ignores SIGHUP.
    before = signal.signal(number, signal.SIG_DFL)
    request.addfinalizer(lambda: signal.signal(number, before))
    with interruption.handle_signals(), pytest.raises(Interrupted) as stop:
        send(number)
    assert stop.value.exit_code == code


def test_signal_stays_ignored_when_it_was_ignored():
    """As `nohup` has it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruption.handle_signals():
            send(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM)
    with interruption.handle_signals():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_deferred_signal_waits_for_the_end_of_the_block():
    reached = []

    def work():
        with interruption.deferred():
            assert not interruption.requested()
            send(signal.SIGINT)
            assert interruption.requested()
            reached.append("safe point")
        reached.append("beyond")

    with interruption.handle_signals(), pytest.raises(Interrupted) as stop:
        work()
    assert reached == ["safe point"]
    assert stop.value.exit_code == 130
    assert not interruption.requested()


def test_second_signal_does_not_wait():
    reached = []

    def work():
        send()
        reached.append("first")
        send()
        reached.append("second")

    with interruption.handle_signals(), pytest.raises(Interrupted), interruption.deferred():
        work()
    assert reached == ["first"]
    assert not interruption.requested()


def test_nested_blocks_wait_for_the_outermost():
    reached = []

    def work():
        with interruption.deferred():
            send()
        reached.append("between")

    with interruption.handle_signals(), pytest.raises(Interrupted), interruption.deferred():
        work()
    assert reached == ["between"]


def test_error_inside_leaves_no_signal_behind():
    def work():
        send()
        raise ValueError("of its own")

    with (
        interruption.handle_signals(),
        pytest.raises(ValueError, match="of its own"),
        interruption.deferred(),
    ):
        work()
    assert not interruption.requested()
    with interruption.deferred():
        pass


def test_interruption_raises_nothing_without_a_signal():
    interruption.raise_if_requested()
    with interruption.handle_signals(), interruption.deferred():
        interruption.raise_if_requested()
        assert not interruption.requested()


def test_other_threads_handle_no_signals():
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def work():
        with interruption.handle_signals():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
