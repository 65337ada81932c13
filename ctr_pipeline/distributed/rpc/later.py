"""An answer that its handler does not have yet."""

import threading
from collections.abc import Callable

Finish = Callable[[], object]


class LaterReply:
    """The answer to a call, given later, in any thread, by whoever has it.

    The first answer counts; one to a call that is over, because of its deadline or because its
    caller is gone, goes nowhere.

    Args:
        on_abandoned: Called, by a thread that must not wait, if the call ends without an answer.
    """

    def __init__(self, on_abandoned: Callable[["LaterReply"], None] = lambda _: None) -> None:
        self._on_abandoned = on_abandoned
        self._lock = threading.Lock()
        self._finish: Finish | None = None
        self._send: Callable[[Finish], None] | None = None
        self._over = False

    @property
    def is_over(self) -> bool:
        """Whether nobody waits for an answer any more: it was given, or the call has ended."""
        return self._over

    def give(self, reply: object) -> None:
        """Answers, with what the handler would have returned; returns at once."""
        self.resume(lambda: reply)

    def refuse(self, error: Exception) -> None:
        """Answers no, with what the handler would have raised; returns at once."""

        def fail() -> object:
            raise error

        self.resume(fail)

    def resume(self, finish: Finish) -> None:
        """Answers with what `finish` returns or raises in a thread of the server; returns at once.

        For answers that take locks or time to make.
        """
        with self._lock:
            if self._over:
                return
            self._over = True
            self._finish = finish
            send = self._send
        if send is not None:
            send(finish)

    def send_with(self, send: Callable[[Finish], None]) -> None:
        """Names what makes and sends the answer, once; it may be there already."""
        with self._lock:
            self._send = send
            finish = self._finish
        if finish is not None:
            send(finish)

    def abandon(self) -> None:
        """The call has ended."""
        with self._lock:
            was_over, self._over = self._over, True
        if not was_over:
            self._on_abandoned(self)
