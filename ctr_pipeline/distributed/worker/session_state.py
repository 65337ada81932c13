"""What a worker's loop and its talk with the master share."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from ctr_pipeline.distributed.coordination.spec import JobSpec
from ctr_pipeline.distributed.worker.leases import LeaseBook
from ctr_pipeline.errors import CtrPipelineError

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class Route:
    """Where the parameter servers are.

    Attributes:
        addresses: By index; empty where one is not there.
    """

    generation: int
    addresses: tuple[str, ...]

    @property
    def is_complete(self) -> bool:
        """Whether all of them are there."""
        return bool(self.addresses) and all(self.addresses)


class SessionState:
    """Guarded by `changed`, which is told of what the other side waits for.

    Attributes:
        book: Tasks that the worker holds.
        spec: The job, once the master has taken the worker in.
        route: The parameter servers as far as we know.
        listener: Told of them whenever they change.
        leaving: To take no more tasks.
        pause_asked: The master says so.
        paused: The loop has stopped; no acknowledged heartbeat has told the master.
        error: What the master refuses us for.
        hurry: The next heartbeat is not to wait.
        lease_at: When to ask for tasks.
        stop_asked: The session ends.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.book = LeaseBook()
        self.spec: JobSpec | None = None
        self.route = Route(0, ())
        self.listener: Callable[[Route], None] = lambda _: None
        self.leaving = self.pause_asked = self.paused = False
        self.error: CtrPipelineError | None = None
        self.hurry = False
        self.lease_at = 0.0
        self.stop_asked = False

    @property
    def is_over(self) -> bool:
        """Whether to stop working: told to leave, nothing left for ever, or refused."""
        return self.leaving or self.error is not None or self.stop_asked

    @property
    def is_pausing(self) -> bool:
        """Whether to begin no batch for now."""
        return self.pause_asked or self.paused

    def move_to(self, route: Route) -> None:
        """Takes in what a reply says of the parameter servers; a rollback voids all leases."""
        before = self.route
        if route.generation < before.generation:
            return
        if route.generation > before.generation:
            if self.route.generation:
                _LOGGER.warning(
                    "Rolled back: generation %d replaces %d; leases are void",
                    route.generation,
                    self.route.generation,
                )
            self.book.clear()
            self.lease_at = 0.0
            self.route = route
        elif route.addresses:
            self.route = route
        if self.route != before:
            self.listener(self.route)
