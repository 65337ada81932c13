"""A worker's waiting for parameter servers that do not answer."""

import logging
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from ctr_pipeline.distributed.rpc.backoff import delays
from ctr_pipeline.distributed.rpc.failures import PeerUnavailable
from ctr_pipeline.distributed.worker.ps_calls import RolledBack
from ctr_pipeline.distributed.worker.session import WorkerSession

_LOGGER = logging.getLogger(__name__)

T = TypeVar("T")


class Leaving(Exception):  # noqa: N818  an event
    """The worker is to leave while it waits for a parameter server."""


class Patience:
    """Asks servers again, for as long as the worker is to go on.

    Args:
        session: Says whether it is.
        sleep: Waits some seconds.

    Attributes:
        generation: The generation that the worker is in.
    """

    def __init__(self, session: WorkerSession, sleep: Callable[[float], None]) -> None:
        self._session = session
        self._sleep = sleep
        self.generation = 0

    def require_generation(self) -> None:
        """Raises RolledBack if the job is in another generation."""
        route = self._session.route
        if route.generation > self.generation:
            raise RolledBack(route.generation)

    def until_done(self, operation: Callable[[], T]) -> T:
        """Does it, again and again while a parameter server does not answer.

        Raises:
            RolledBack: The job is in another generation.
            Leaving: The worker is to leave.
        """
        pauses: Iterator[float] | None = None
        while True:
            try:
                return operation()
            except PeerUnavailable as error:
                if pauses is None:
                    _LOGGER.warning("A parameter server does not answer: %s", error)
                    pauses = delays(0.05, 2.0, 1.0, threading.get_ident())
            self._session.ask_again()
            self._sleep(next(pauses))
            self.require_generation()
            if self._session.is_over:
                raise Leaving
