"""Answers of handlers that may come later."""

import threading

from ctr_pipeline.distributed.rpc.later import LaterReply


class Answered:
    """What a handler has returned, or will as soon as somebody has it."""

    def __init__(self, reply):
        self._finish = None
        self._come = threading.Event()
        if isinstance(reply, LaterReply):
            reply.send_with(self._take)
        else:
            self._take(lambda: reply)

    def _take(self, finish):
        self._finish = finish
        self._come.set()

    @property
    def has_come(self):
        return self._come.is_set()

    @property
    def reply(self):
        """As a thread of the server would make it; waits for it."""
        assert self._come.wait(20)
        return self._finish()
