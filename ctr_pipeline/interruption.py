"""Ctrl-C, SIGTERM and SIGHUP: at once where nothing can be lost, at the next safe point elsewhere.

`handle_signals` makes these signals raise `Interrupted` in the main thread. Work that must reach
a safe point first, such as training before its checkpoint, wraps itself in `deferred` and asks
`requested` between steps.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from ctr_pipeline.errors import CtrPipelineError, Interrupted

EXIT_TERMINATED = 128 + signal.SIGTERM
"""Exit code of a server that left because of SIGTERM."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _State:
    """What the signal handler and the work tell each other; signals are per process."""

    deferring = 0
    pending: int | None = None
    error: CtrPipelineError | None = None


def _on_signal(number: int, _frame: FrameType | None) -> None:
    if _State.deferring and _State.pending is None:
        _State.pending = number
        return
    # A second signal does not wait for the safe point.
    raise _ending(number)


def _ending(number: int) -> BaseException:
    error, _State.error = _State.error, None
    return error or Interrupted(number)


def end_with(error: CtrPipelineError) -> None:
    """Has the main thread raise an error as it would raise `Interrupted` for a signal.

    For other threads, which find out that the work is in vain. Where the main thread does not
    handle signals now, nothing happens.
    """
    if signal.getsignal(signal.SIGTERM) is _on_signal:
        _State.error = error
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


@contextmanager
def handle_signals() -> Iterator[None]:
    """Has signals raise `Interrupted` inside; outside the main thread nothing changes.

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


@dataclass
class Terminated:
    """How often SIGTERM came."""

    times: int = 0


@contextmanager
def counting_sigterm() -> Iterator[Terminated]:
    """Gives how often SIGTERM has come by now, and nothing else happens; always 0 in other threads.

    For servers, which decide themselves when to leave. A signal handler can wake nobody.
    """
    terminated = Terminated()
    if threading.current_thread() is not threading.main_thread():
        yield terminated
        return

    def count(_number: int, _frame: FrameType | None) -> None:
        terminated.times += 1

    previous = signal.signal(signal.SIGTERM, count)
    try:
        yield terminated
    finally:
        signal.signal(signal.SIGTERM, previous)


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
        raise _ending(number)
