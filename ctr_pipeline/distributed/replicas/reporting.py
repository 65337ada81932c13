"""Says to whoever serves the rendezvous that a member is there."""

import logging
import os
import socket
import threading
from collections.abc import Callable
from typing import Self

from ctr_pipeline.distributed.coordination.messages import Member, MemberReport, MemberStats
from ctr_pipeline.distributed.elastic.client import RendezvousClient
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.errors import CtrPipelineError

_LOGGER = logging.getLogger(__name__)


class MemberReporter:
    """Reports one member in a thread of its own; a context manager that ends it.

    Args:
        rendezvous: Finds `host:port` of the rendezvous, before each report.
        access: Secrets of the job, as of the role of the member.
        member: The member that reports.
        address: `host:port` that it serves on.
        stats: Its figures.
        every_seconds: Between reports.
        unreachable: Addresses of servers that have not answered it for long.
    """

    def __init__(
        self,
        rendezvous: Callable[[], str],
        access: Access,
        *,
        member: Member,
        address: str,
        stats: Callable[[], MemberStats],
        every_seconds: float,
        unreachable: Callable[[], tuple[str, ...]] = tuple,
    ) -> None:
        self._find_rendezvous = rendezvous
        self._access = access
        self._member = member
        self._address = address
        self._stats = stats
        self._unreachable = unreachable
        self._every_seconds = every_seconds
        self._client: RendezvousClient | None = None
        self._is_answered = True
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="report", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()
        if self._client is not None:
            self._client.close()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self._report()
            except CtrPipelineError as error:
                if self._is_answered:
                    _LOGGER.warning("Who started this member does not answer: %s", error)
                self._is_answered = False
            else:
                self._is_answered = True
            self._over.wait(self._every_seconds)

    def _report(self) -> None:
        place = self._find_rendezvous()
        if self._client is None or self._client.place != place:
            if self._client is not None:
                self._client.close()
            self._client = RendezvousClient(place, self._address, self._access)
        self._client.report(
            MemberReport(
                member=self._member,
                pid=os.getpid(),
                host=socket.gethostname(),
                address=self._address,
                stats=self._stats(),
                unreachable=self._unreachable(),
            )
        )
