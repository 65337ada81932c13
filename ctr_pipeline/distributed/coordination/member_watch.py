"""Members of a job that has no master: what is known of them, and who hangs; pure.

Replicas have no ledger to keep: what is known of their processes ends with the process that started
them. Times are seconds on its clock.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ctr_pipeline.distributed.coordination.job.status import MemberStatus
from ctr_pipeline.distributed.coordination.launching import ProcessState
from ctr_pipeline.distributed.coordination.liveness import is_lost
from ctr_pipeline.distributed.coordination.members import MemberEnd, MemberState
from ctr_pipeline.distributed.coordination.messages import MemberReport, Role
from ctr_pipeline.distributed.coordination.relaunch import explain_end
from ctr_pipeline.distributed.coordination.rendezvous import CutOff, decide_left_out

_MOST_REPORT_SECONDS = 1.0
_CUT_SECONDS = 3.0
"""Time after the first report of an unreachable server, within which others report the same."""


def report_seconds(silence_seconds: float) -> float:
    """Seconds between the reports of a member that counts as lost after a silence."""
    return min(_MOST_REPORT_SECONDS, silence_seconds / 5)


@dataclass(frozen=True)
class Replacement:
    """A process that is ended at once, so that another one takes its place.

    Attributes:
        name: The member's name for a person.
        why: What is wrong with it, a clause for a person.
        remedy: What helps if it happens again, a clause; empty if nothing is known to.
    """

    role: Role
    index: int
    incarnation: str
    name: str
    why: str
    remedy: str = ""


class MemberWatch:
    """What is known of the members of a job.

    Args:
        silence_seconds: A server that has not reported for so long hangs.
        startup_timeout_seconds: A started one that has not reported for so long is lost.
    """

    def __init__(self, *, silence_seconds: float, startup_timeout_seconds: float) -> None:
        self._silence_seconds = silence_seconds
        self._startup_timeout_seconds = startup_timeout_seconds
        self._members: dict[tuple[Role, int], MemberState] = {}
        # What each process does not reach, and since when there is such a one.
        self._unreachable: dict[str, tuple[str, ...]] = {}
        self._cut_since: float | None = None

    def hear(self, report: MemberReport, now: float) -> None:
        """A member has reported; one that was given up is not heard any more."""
        who = report.member
        member = self._member(who.role, who.index)
        if who.incarnation in member.given_up:
            return
        if member.incarnation != who.incarnation:
            member.incarnation = who.incarnation
            member.coming_since = member.stop_asked_at = None
            # None is on standby.
            member.is_active = True
        member.pid, member.host, member.address = report.pid, report.host, report.address
        member.take_in_stats(report.stats)
        member.note_heard(now)
        self._unreachable[who.incarnation] = report.unreachable

    def see(self, processes: Iterable[ProcessState], now: float) -> tuple[Replacement, ...]:
        """The launcher tells of the processes that it started.

        Returns:
            Servers that hang, and who is cut off from a server or from workers, each once. A
            worker that is silent is left alone: the others go on without it, and it joins them
            again if it comes back.
        """
        chosen = []
        for process in processes:
            member = self._member(process.role, process.index)
            member.see(process, now)
            if process.role == "ps" and member.is_running and (one := self._judge(member, now)):
                chosen.append(one)
        return (*chosen, *self._end_cuts(now))

    def take_stops(self, now: float) -> tuple[ProcessState, ...]:
        """Processes to be ended at once, as they are replaced; each again if nothing came of it."""
        due = []
        for member in self._members.values():
            if member.process is not None and member.is_given_up and member.may_stop(now, 0.0):
                member.stop_asked_at = now
                due.append(member.process)
        return tuple(due)

    def cut_off(self, cut: CutOff) -> Replacement | None:
        """A worker is left out by the others; None: it has ended, or has not reported yet."""
        by_address = self._by_address()
        member = by_address.get(cut.address)
        if member is None:
            return None
        peers = [by_address[one].name if one in by_address else one for one in cut.peers]
        return self._give_up(member, _cannot_reach(member.name, peers))

    def end(self, process: ProcessState, again_at: float | None) -> str:
        """A process has ended.

        Args:
            again_at: When it is started again; None: it is not.

        Returns:
            How it ended, a clause for a person; empty if it was to be replaced, which has been
            told.
        """
        member = self._member(process.role, process.index)
        member.not_before = 0.0 if again_at is None else again_at
        if process.incarnation in member.given_up:
            return ""
        why = explain_end(
            process.reason or "killed",
            process.exit_code,
            member=member.name,
            rss_bytes=member.stats.rss_bytes,
            remedy=process.remedy,
        )
        member.give_up(process.incarnation)
        self._unreachable.pop(process.incarnation, None)
        member.last_end = MemberEnd(why, process.exit_code)
        return why

    def statuses(self, wanted: Mapping[Role, int], now: float) -> tuple[MemberStatus, ...]:
        """The members for a person, servers first.

        Args:
            wanted: How many of each role are kept running.
        """
        return tuple(
            MemberStatus.of(
                member,
                now,
                report_seconds=report_seconds(self._silence_seconds),
                is_wanted=member.index < wanted.get(member.role, 0),
            )
            for _, member in sorted(self._members.items())
        )

    def _member(self, role: Role, index: int) -> MemberState:
        return self._members.setdefault((role, index), MemberState(role, index))

    def _by_address(self) -> dict[str, MemberState]:
        """The members that are there, by address."""
        return {one.address: one for one in self._members.values() if one.incarnation}

    def _judge(self, member: MemberState, now: float) -> Replacement | None:
        """Gives up a server that runs if it hangs; None: it does not."""
        process, silence = member.process, self._silence_seconds
        assert process is not None  # noqa: S101  it runs
        if member.incarnation == process.incarnation:
            if not is_lost(member.heard_at, now, silence):
                return None
            return self._give_up(member, f"{member.name} was not heard for {silence:g} s")
        limit, since = self._startup_timeout_seconds, member.coming_since
        if since is None or now - since <= limit:
            return None
        return self._give_up(
            member,
            f"{member.name} did not report within {limit:g} s of its start",
            "on a slow machine raise runtime.startup_timeout_seconds",
        )

    def _end_cuts(self, now: float) -> list[Replacement]:
        """Ends one of each worker and server of which one does not reach the other.

        A server that all workers are cut off from goes, as all go back to a checkpoint with it,
        otherwise the worker.
        """
        by_address = self._by_address()
        pairs = {
            frozenset((worker.name, by_address[one].name))
            for worker in by_address.values()
            for one in self._unreachable.get(worker.incarnation, ())
            if one in by_address
        }
        if not pairs:
            self._cut_since = None
            return []
        if self._cut_since is None:
            self._cut_since = now
        if now - self._cut_since < _CUT_SECONDS:
            return []
        self._cut_since = None
        by_name = {one.name: one for one in by_address.values()}
        # Servers sort first, so that of one server and one worker it is the worker.
        chosen = []
        for name in decide_left_out(sorted(by_name), pairs):
            peers = [one for one in by_name if frozenset((one, name)) in pairs]
            chosen.append(self._give_up(by_name[name], _cannot_reach(name, peers)))
        return chosen

    def _give_up(self, member: MemberState, why: str, remedy: str = "") -> Replacement:
        process = member.process
        running = "" if process is None else process.incarnation
        incarnation = member.incarnation or running
        member.give_up(incarnation)
        member.last_end = MemberEnd(why)
        self._unreachable.pop(incarnation, None)
        return Replacement(member.role, member.index, incarnation, member.name, why, remedy)


def _cannot_reach(name: str, peers: Iterable[str]) -> str:
    return f"{name} and {' and '.join(peers)} cannot reach each other"
