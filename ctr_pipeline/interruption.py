"""Ctrl-C, SIGTERM and SIGHUP: at once where nothing can be lost, at the next safe point elsewhere.

`handle_signals` makes these signals raise `Interrupted` in the main thread. Work that must reach
a safe point first, such as training before its checkpoint, wraps itself in `deferred` and asks
`requested` between steps.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from ctr_pipeline.errors import Interrupted

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _State:
    """What the signal handler and the work tell each other; signals are per process."""

    deferring = 0
    pending: int | None = None


def _on_signal(number: int, _frame: FrameType | None) -> None:
    if _State.deferring and _State.pending is None:
        _State.pending = number
        return
    # A second signal does not wait for the safe point.
    raise Interrupted(number)


@contextmanager
def handle_signals() -> Iterator[None]:
    """These signals raise `Interrupted` inside; outside the main thread nothing changes.

    A signal that is ignored, as `nohup` has SIGHUP, stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {
        number: signal.signal(number, _on_signal)
        for number in _SIGNALS
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def deferred() -> Iterator[None]:
    """A first signal inside is remembered; leaving the block raises it.

    An error that leaves the block ends the work anyway, and the signal with it.
    """
    _State.deferring += 1
    try:
        yield
    except BaseException:
        if _State.deferring == 1:
            _State.pending = None
        raise
    finally:
        _State.deferring -= 1
    if _State.deferring == 0:
        raise_if_requested()


def requested() -> bool:
    """Whether a signal is waiting for the work to reach a safe point."""
    return _State.pending is not None


def raise_if_requested() -> None:
    """Raises `Interrupted` if a signal is waiting, once."""
    number, _State.pending = _State.pending, None
    if number is not None:
        raise Interrupted(number)
