"""Serves the rendezvous. A call that waits for others holds no thread."""

import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self

from ctr_pipeline import durable
from ctr_pipeline.distributed.coordination.messages import Empty, MemberReport
from ctr_pipeline.distributed.coordination.record_positions import (
    OtherRecordsError,
    RecordPositions,
)
from ctr_pipeline.distributed.coordination.rendezvous import (
    Answer,
    CutOff,
    Met,
    Refused,
    Rendezvous,
    RendezvousTimes,
    World,
)
from ctr_pipeline.distributed.elastic.messages import (
    CUT_OFF,
    SERVICE,
    Barrier,
    GetClusterSpec,
    GetWaitingNodes,
    Leave,
    RecordsTaken,
    ReportRecords,
    ScaleNodes,
    Synchronize,
    TakeRecords,
    WaitingNodes,
)
from ctr_pipeline.distributed.elastic.record_ledger import RecordLedger
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.failures import Refusal
from ctr_pipeline.distributed.rpc.later import LaterReply
from ctr_pipeline.distributed.rpc.server import Method, RpcServer
from ctr_pipeline.errors import CtrPipelineError, RunFolderError

_LOGGER = logging.getLogger(__name__)
_STOP_SECONDS = 1.0


class RendezvousServer:
    """The rendezvous of one job on an address; a context manager that serves while it is open.

    Args:
        address: `host:port` to bind; port 0 takes a free one.
        access: Secrets of the job, as of role `master`.
        times: How long the rendezvous waits.
        ledger: File that keeps how far records are read; None: they begin anew with this server.
        worlds: File that keeps the number of the newest world, so that none of a later server has
            the same one; None: they are numbered from 1.
        on_scale: Takes the number of nodes that a command asks for, or raises `Refusal`; None:
            nobody can ask, because whoever serves the rendezvous starts no nodes.
        on_report: Takes what members say of themselves, in any thread; None: they say nothing.
        on_cut_off: Told of each node that is left out of the next world, in any thread.

    Raises:
        CtrPipelineError: The address cannot be served, the ledger cannot be written, or the file of
            worlds is damaged.
    """

    def __init__(
        self,
        address: str,
        access: Access,
        times: RendezvousTimes,
        *,
        ledger: Path | None = None,
        worlds: Path | None = None,
        on_scale: Callable[[int], None] | None = None,
        on_report: Callable[[MemberReport], None] | None = None,
        on_cut_off: Callable[[CutOff], None] = lambda _: None,
    ) -> None:
        newest_world = _load_number(worlds)
        self._ledger = RecordLedger(ledger)
        self._records = RecordPositions(self._ledger.load())
        self._worlds, self._on_scale = worlds, on_scale
        self._on_report, self._on_cut_off = on_report, on_cut_off
        self._newest_world = max(self._records.newest_world, newest_world)
        # A world of an earlier server is never mistaken for one of this.
        self._rendezvous = Rendezvous(times, version=self._newest_world)
        self._calls: dict[int, LaterReply] = {}
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._stopping = False
        self._ticker = threading.Thread(target=self._tick, name="rendezvous ticker", daemon=True)
        self._server = RpcServer(SERVICE, self._methods(), address=address, access=access)
        self.address = self._server.start()
        self._ticker.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._ticker.join()
        self._server.stop(_STOP_SECONDS)
        with self._changed:
            self._ledger.close()

    def wait_until_finished(self, timeout_seconds: float | None = None) -> bool:
        """Returns when the job has finished and all nodes have left, or the timeout is over.

        Returns:
            Whether it has finished.
        """

        def is_over() -> bool:
            return self._rendezvous.finished and not self._rendezvous.nodes

        with self._changed:
            return self._changed.wait_for(is_over, timeout_seconds)

    @property
    def nodes(self) -> frozenset[str]:
        """Addresses of the nodes that train together or wait to."""
        with self._changed:
            return self._rendezvous.nodes

    def _methods(self) -> tuple[Method, ...]:
        def method(name: str, request: type, reply: type, call: Callable[[Any], object]) -> Method:
            return Method(name, request, reply, call, callers=("worker",))

        return (
            method("GetClusterSpec", GetClusterSpec, World, self._get_cluster_spec),
            method("GetWaitingNodes", GetWaitingNodes, WaitingNodes, self._get_waiting_nodes),
            method("Barrier", Barrier, Met, self._barrier),
            method("Synchronize", Synchronize, Met, self._synchronize),
            method("Leave", Leave, Empty, self._leave),
            method("TakeRecords", TakeRecords, RecordsTaken, self._take_records),
            method("ReportRecords", ReportRecords, Empty, self._report_records),
            Method("Scale", ScaleNodes, Empty, self._scale, callers=("client",)),
            Method("Report", MemberReport, Empty, self._report, callers=("worker", "ps")),
        )

    def _get_cluster_spec(self, ask: GetClusterSpec) -> LaterReply:
        return self._answer_later(
            lambda call, now: self._rendezvous.get_cluster_spec(
                ask.address,
                ask.least,
                ask.most,
                reset=ask.reset,
                call=call,
                now=now,
                has_failed=ask.has_failed,
                unreachable=ask.unreachable,
            )
        )

    def _get_waiting_nodes(self, ask: GetWaitingNodes) -> WaitingNodes:
        with self._changed:
            number = self._rendezvous.get_waiting_nodes(ask.address, ask.version, time.monotonic())
        return WaitingNodes(number)

    def _barrier(self, ask: Barrier) -> LaterReply:
        return self._answer_later(
            lambda call, now: self._rendezvous.barrier(
                ask.address, ask.tag, ask.timeout_seconds, call=call, now=now
            )
        )

    def _synchronize(self, ask: Synchronize) -> LaterReply:
        return self._answer_later(
            lambda call, now: self._rendezvous.synchronize(
                ask.address, ask.tag, ask.data, ask.timeout_seconds, call=call, now=now
            )
        )

    def _leave(self, ask: Leave) -> Empty:
        with self._changed:
            self._perform(self._rendezvous.leave(ask.address, time.monotonic()))
        return Empty()

    def _take_records(self, ask: TakeRecords) -> RecordsTaken:
        with self._changed:
            rendezvous, known = self._rendezvous, None
            if ask.version == rendezvous.version and ask.address in rendezvous.members:
                try:
                    known = self._records.take(ask.name, ask.content, ask.version)
                except OtherRecordsError as error:
                    raise Refusal("other_records", str(error)) from None
            if known is None:
                raise Refusal("void", f"{ask.address} is not a member of the current world")
            self._ledger.save(ask.name, known)
            return RecordsTaken(known.position)

    def _report_records(self, ask: ReportRecords) -> Empty:
        with self._changed:
            before = self._records.by_name.get(ask.name)
            if not self._records.report(ask.name, ask.version, ask.position, begins=ask.begins):
                raise Refusal("void", f"world {ask.version} does not read '{ask.name}' any more")
            known = self._records.by_name[ask.name]
            if known != before:
                self._ledger.save(ask.name, known)
        return Empty()

    def _scale(self, ask: ScaleNodes) -> Empty:
        if self._on_scale is None:
            raise Refusal("fixed", "this rendezvous starts no nodes")
        self._on_scale(ask.number)
        return Empty()

    def _report(self, report: MemberReport) -> Empty:
        if self._on_report is None:
            raise Refusal("unknown_member", "nobody asks for reports of members here")
        self._on_report(report)
        return Empty()

    def _answer_later(self, decide: Callable[[int, float], list[Answer]]) -> LaterReply:
        with self._changed:
            call = next(self._numbers)
            reply = self._calls[call] = LaterReply(lambda _: self._abandon(call))
            self._perform(decide(call, time.monotonic()))
        return reply

    def _abandon(self, call: int) -> None:
        with self._changed:
            if self._calls.pop(call, None) is not None:
                self._perform(self._rendezvous.abandon(call, time.monotonic()))

    def _perform(self, answers: Iterable[Answer]) -> None:
        """Gives answers; the caller holds the lock."""
        for answer in answers:
            if isinstance(answer.reply, World):
                self._keep_number(answer.reply.version)
            elif isinstance(answer.reply, CutOff):
                _LOGGER.warning("%s: %s is left out", answer.reply.reason, answer.reply.address)
                self._on_cut_off(answer.reply)
            call = self._calls.pop(answer.call, None)
            if call is None:
                continue
            if isinstance(answer.reply, CutOff):
                call.refuse(Refusal(CUT_OFF, answer.reply.reason))
            elif isinstance(answer.reply, Refused):
                call.refuse(Refusal(answer.reply.code, answer.reply.reason))
            else:
                call.give(answer.reply)
        self._changed.notify_all()

    def _keep_number(self, world: int) -> None:
        """Keeps the number of a world before anybody is told of it."""
        if self._worlds is None or world <= self._newest_world:
            return
        self._newest_world = world
        try:
            durable.write_text(self._worlds, str(world))
        except CtrPipelineError as error:
            # It would only be missed by a server that comes after this one.
            _LOGGER.error("The number of world %d is not kept: %s", world, error)

    def _tick(self) -> None:
        with self._changed:
            while not self._stopping:
                left = self._rendezvous.next_deadline() - time.monotonic()
                self._changed.wait(None if math.isinf(left) else max(left, 0.0))
                # Not on each call that came meanwhile, but when there is something to do.
                now = time.monotonic()
                if now >= self._rendezvous.next_deadline():
                    self._perform(self._rendezvous.tick(now))


def _load_number(path: Path | None) -> int:
    """The number in a file; 0 if there is none yet.

    Raises:
        RunFolderError: The file holds something else, or cannot be read.
    """
    if path is None or not path.exists():
        return 0
    try:
        return int(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise RunFolderError(
            f"cannot be read as the number of the newest world ({error})",
            place=str(path),
            remedy="End all workers of this job, which know that number, and remove the file",
        ) from error
