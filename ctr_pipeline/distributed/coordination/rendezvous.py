"""Which nodes of an elastic run train together: worlds, barriers and synchronisations.

A *world* is a numbered list of nodes by age. It is formed when enough nodes have asked for one, and
lasts until a node of it asks again, because somebody joined, was lost or failed. A call that cannot
be answered yet has a number, which the caller of this module chooses; its answer comes out later.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

EXIT_TAG = "exit"
"""The barrier of nodes whose script succeeded. Nobody joins a world with a node in it, and when all
have entered, the job has finished."""

Code = Literal["range", "not_member", "superseded", "void", "timeout", "finished"]


@dataclass(frozen=True)
class NodeRange:
    """How many nodes a world may have.

    Attributes:
        least: 1 or more.
        most: `least` or more.
    """

    least: int
    most: int

    def __str__(self) -> str:
        return f"{self.least}:{self.most}"


@dataclass(frozen=True)
class World:
    """The answer to a node that becomes a member.

    Attributes:
        version: Number of the world, from 1.
        addresses: All members, the oldest first.
        rank: Place of this node among them.
    """

    version: int
    addresses: tuple[str, ...]
    rank: int


@dataclass(frozen=True)
class Met:
    """The answer to a barrier or a synchronisation in which all members have met.

    Attributes:
        data: What each member brought, by rank; empty texts for a barrier.
    """

    data: tuple[str, ...]


@dataclass(frozen=True)
class Refused:
    """The answer no.

    Attributes:
        code: One word for a program.
        reason: For a person.
    """

    code: Code
    reason: str


@dataclass(frozen=True)
class CutOff:
    """The answer to a node that is left out of the next world, for good.

    Attributes:
        address: The node.
        peers: Members that it cannot reach, or that cannot reach it, the oldest first.
    """

    address: str
    peers: tuple[str, ...]

    @property
    def reason(self) -> str:
        """The reason for a person."""
        return f"{self.address} and {', '.join(self.peers)} cannot reach each other"


@dataclass(frozen=True)
class Answer:
    """An action: answer this call.

    Attributes:
        call: Its number.
        reply: What to answer.
    """

    call: int
    reply: World | Met | Refused | CutOff


def decide_left_out(by_age: Sequence[str], cut: Collection[frozenset[str]]) -> tuple[str, ...]:
    """Decides who is left out, so that all others reach each other.

    It is whoever most others are cut off from, and of several the youngest: again and again, until
    no cut is left. So a node whose own network is at fault goes, not those that it complains about.

    Args:
        by_age: Everybody, the oldest first.
        cut: Pairs of them of which one cannot reach the other.

    Returns:
        In the order of their choice.
    """
    left, out = set(cut), []
    while left:
        num_cut = {one: sum(one in pair for pair in left) for one in by_age}
        most = max(num_cut.values())
        chosen = [one for one in by_age if num_cut[one] == most][-1]
        out.append(chosen)
        left = {pair for pair in left if chosen not in pair}
    return tuple(out)


@dataclass(frozen=True)
class RendezvousTimes:
    """How long the rendezvous waits.

    Attributes:
        gather_seconds: For further nodes, once there are enough.
        lease_seconds: Without a sign of life, until a member is lost.
        straggler_seconds: For members of the last world, from when one of them asks for the next.
    """

    gather_seconds: float = 0.5
    lease_seconds: float = 10.0
    straggler_seconds: float = 60.0


@dataclass
class _Member:
    """A living member of the current world.

    Attributes:
        age: Order of its registration; the smallest is the oldest.
        expires: When its lease ends, unless one of its calls waits.
    """

    age: int
    expires: float


@dataclass(frozen=True)
class _Request:
    """A node that waits for a world."""

    call: int
    age: int
    has_failed: bool


@dataclass(frozen=True)
class _Entry:
    """A member that waits for the others in a barrier or synchronisation."""

    call: int
    data: str
    deadline: float


_Meeting = tuple[Literal["barrier", "synchronisation"], str]
"""Kind and tag."""

_EXIT: _Meeting = ("barrier", EXIT_TAG)

_Ended = tuple[list[Answer], list[str]]
"""Answers to calls that wait no more, and whose they were."""


class _Meetings:
    """Barriers and synchronisations in which members wait for each other."""

    def __init__(self) -> None:
        self._entries: dict[_Meeting, dict[str, _Entry]] = {}

    def __contains__(self, address: str) -> bool:
        return any(address in entries for entries in self._entries.values())

    def deadlines(self) -> Iterator[float]:
        """When somebody waits in vain."""
        return (entry.deadline for one in self._entries.values() for entry in one.values())

    def enter(self, meeting: _Meeting, address: str, entry: _Entry) -> _Entry | None:
        """A member waits; what it waited with before."""
        entries = self._entries.setdefault(meeting, {})
        earlier = entries.pop(address, None)
        entries[address] = entry
        return earlier

    def leave(self, address: str) -> list[_Entry]:
        """A member waits nowhere any more; what it waited with."""
        found = [entries.pop(address, None) for entries in self._entries.values()]
        return [entry for entry in found if entry is not None]

    def abandon(self, call: int) -> str | None:
        """A call waits no more; whose it was."""
        for entries in self._entries.values():
            for address, entry in entries.items():
                if entry.call == call:
                    del entries[address]
                    return address
        return None

    def take_complete(
        self, members: Sequence[str], expected: Callable[[_Meeting], Collection[str]]
    ) -> Iterator[tuple[_Meeting, _Ended]]:
        """Ends meetings in which all have met.

        Args:
            members: By rank.
            expected: Says who is to come.
        """
        for meeting, entries in list(self._entries.items()):
            if not entries or not entries.keys() >= set(expected(meeting)):
                continue
            del self._entries[meeting]
            met = Met(tuple(entries[one].data for one in members if one in entries))
            yield meeting, ([Answer(entry.call, met) for entry in entries.values()], [*entries])

    def take_overdue(self, members: Sequence[str], now: float) -> _Ended:
        """Ends calls that have waited for too long."""
        answers, whose = [], []
        for (kind, tag), entries in list(self._entries.items()):
            missing = ", ".join(one for one in members if one not in entries)
            reason = f"the {kind} '{tag}' timed out: {missing} did not come"
            for address in [one for one, entry in entries.items() if entry.deadline <= now]:
                answers.append(Answer(entries.pop(address).call, Refused("timeout", reason)))
                whose.append(address)
            if not entries:
                del self._entries[kind, tag]
        return answers, whose

    def void(self, why: str) -> _Ended:
        """Ends all."""
        answers, whose = [], []
        for (kind, tag), entries in self._entries.items():
            void = Refused("void", f"the {kind} '{tag}' is void: {why}")
            answers += [Answer(entry.call, void) for entry in entries.values()]
            whose += [*entries]
        self._entries.clear()
        return answers, whose


@dataclass
class Rendezvous:
    """The state, and the decisions on it. Times are seconds of one monotonic clock.

    Attributes:
        times: How long it waits.
        version: Number of the current world; 0: none yet.
        addresses: The current world as it was formed, by rank.
        finished: Whether all members of a world have succeeded; nobody is admitted any more.
    """

    times: RendezvousTimes = field(default_factory=RendezvousTimes)
    version: int = 0
    addresses: tuple[str, ...] = ()
    finished: bool = False
    _range: NodeRange | None = None
    _next_age: int = 0
    _members: dict[str, _Member] = field(default_factory=dict)
    _waiting: dict[str, _Request] = field(default_factory=dict)
    _meetings: _Meetings = field(default_factory=_Meetings)
    _succeeded: set[str] = field(default_factory=set)
    _cut: set[frozenset[str]] = field(default_factory=set)
    _gathering_since: float | None = None
    _complete_since: float | None = None

    @property
    def members(self) -> tuple[str, ...]:
        """The living members of the current world, by rank."""
        return tuple(one for one in self.addresses if one in self._members)

    @property
    def nodes(self) -> frozenset[str]:
        """Addresses of the members and of the nodes that wait."""
        return frozenset(self._members) | frozenset(self._waiting)

    def get_cluster_spec(
        self,
        address: str,
        least: int,
        most: int,
        *,
        reset: bool,
        call: int,
        now: float,
        has_failed: bool = False,
        unreachable: Collection[str] = (),
    ) -> list[Answer]:
        """A node asks to be a member of the next world.

        A member of the current world that asks keeps its age, and ends the current world. Of two
        members that are cut off from each other, one is left out of the next one.

        Args:
            address: Where the node serves; unique in the job.
            least: Smallest number of nodes that may train.
            most: Largest number.
            reset: Forget what is known of this address: it is a new process there.
            call: Number of the call; answered with a `World`, a `Refused` or a `CutOff`.
            has_failed: This member began a step that nobody can finish without it; otherwise the
                others may finish theirs before they ask, too.
            unreachable: Members of the current world that this member cannot reach. What others
                say of them does not count: they may have been away for as long as their lease.
        """
        if self.finished:
            return [Answer(call, Refused("finished", "the job has finished"))]
        asked = NodeRange(least, most)
        if not 1 <= least <= most:
            reason = f"a range of nodes is 1 or more to as many or more, not {asked}"
            return [Answer(call, Refused("range", reason))]
        if self._range is None or not self.nodes:
            self._range = asked
        if asked != self._range:
            reason = f"{address} asks for {asked} nodes, and the job has {self._range}"
            return [Answer(call, Refused("range", reason))]
        answers = self._supersede(address)
        if reset:
            answers += self._drop(address, "has started again", now)
        member = self._members.get(address)
        if member is None:
            age, self._next_age = self._next_age, self._next_age + 1
        else:
            age = member.age
            if self._gathering_since is None:
                self._gathering_since = now
            answers += self._void_meetings(f"{address} asks for the next world", now)
            known = self._members.keys() - {address}
            self._cut |= {frozenset((address, one)) for one in unreachable if one in known}
        self._waiting[address] = _Request(call, age, has_failed)
        return answers + self.tick(now)

    def get_waiting_nodes(self, address: str, version: int, now: float) -> int:
        """A node renews its lease and asks whether its world is still the right one.

        Args:
            address: Where the node serves.
            version: Version of its world.

        Returns:
            0: go on; negative: so many members were lost or have failed; positive: so many nodes
            may join, or 1 if a member has asked for the next world for another reason.
        """
        member = self._members.get(address)
        if member is None or version != self.version:
            return -1
        member.expires = now + self.times.lease_seconds
        num_missed = sum(
            one not in self._succeeded and self._is_missed(one, now) for one in self.addresses
        )
        if num_missed:
            return -num_missed
        most = self._range.most if self._range is not None else 0
        num_joining = sum(one not in self._members for one in self._waiting)
        num_admitted = min(num_joining, most - len(self.addresses))
        if self._gathering_since is not None:
            return max(1, num_admitted)
        return 0 if self._succeeded else num_admitted

    def barrier(
        self, address: str, tag: str, timeout_seconds: float, *, call: int, now: float
    ) -> list[Answer]:
        """A member waits until all members have entered the barrier of that tag.

        Args:
            call: Number of the call; answered with a `Met` or a `Refused`.
        """
        return self._meet(("barrier", tag), address, "", timeout_seconds, call=call, now=now)

    def synchronize(
        self, address: str, tag: str, data: str, timeout_seconds: float, *, call: int, now: float
    ) -> list[Answer]:
        """A member waits until all members have brought their data of that tag.

        Args:
            call: Number of the call; answered with a `Met`, which has the data of all members by
                rank, or with a `Refused`.
        """
        meeting: _Meeting = ("synchronisation", tag)
        return self._meet(meeting, address, data, timeout_seconds, call=call, now=now)

    def leave(self, address: str, now: float) -> list[Answer]:
        """A node goes, for good; a member that has succeeded is not missed."""
        request = self._waiting.pop(address, None)
        gone = Refused("void", f"{address} has left")
        answers = [] if request is None else [Answer(request.call, gone)]
        return [*answers, *self._drop(address, "has left", now), *self.tick(now)]

    def abandon(self, call: int, now: float) -> list[Answer]:
        """The caller of a waiting call is gone; a member has the time of a lease to come back."""
        expires = now + self.times.lease_seconds
        for address, request in self._waiting.items():
            if request.call == call:
                del self._waiting[address]
                if address in self._members:
                    self._members[address].expires = expires
                break
        if (waited := self._meetings.abandon(call)) is not None:
            self._members[waited].expires = expires
        return self.tick(now)

    def tick(self, now: float) -> list[Answer]:
        """Time has passed: leases and timeouts end, and worlds are formed."""
        answers = []
        for address, member in list(self._members.items()):
            if self._is_expired(address, member, now):
                answers += self._drop(address, "was lost", now)
        answers += self._end_complete_meetings(now)
        answers += self._renew(self._meetings.take_overdue(self.members, now), now)
        if not any(address in self._members for address in self._waiting):
            self._gathering_since = None
        answers += self._leave_out(now)
        if not self._is_complete(now):
            self._complete_since = None
            return answers
        if self._complete_since is None:
            self._complete_since = now
        assert self._range is not None  # noqa: S101  there are requests, and each has it
        if (
            len(self._waiting) >= self._range.most
            or now >= self._complete_since + self.times.gather_seconds
        ):
            answers += self._form_world(self._range.most, now)
        return answers

    def next_deadline(self) -> float:
        """When `tick` has something to do at the earliest; infinity: not before the next call."""
        moments = [
            member.expires
            for address, member in self._members.items()
            if not self._has_waiting_call(address)
        ]
        moments += self._meetings.deadlines()
        if self._complete_since is not None:
            moments.append(self._complete_since + self.times.gather_seconds)
        elif self._gathering_since is not None and (self._are_enough() or self._cut):
            moments.append(self._gathering_since + self.times.straggler_seconds)
        return min(moments, default=math.inf)

    def _meet(
        self,
        meeting: _Meeting,
        address: str,
        data: str,
        timeout_seconds: float,
        *,
        call: int,
        now: float,
    ) -> list[Answer]:
        kind, tag = meeting
        if address not in self._members:
            reason = f"{address} is not a member of world {self.version}"
            return [Answer(call, Refused("not_member", reason))]
        if self._gathering_since is not None:
            reason = f"the {kind} '{tag}' is void: the next world is being formed"
            return [Answer(call, Refused("void", reason))]
        if not 0.0 <= timeout_seconds < math.inf:
            reason = f"the timeout of the {kind} '{tag}' is {timeout_seconds} seconds"
            return [Answer(call, Refused("timeout", reason))]
        missed = set(self.addresses) - self._members.keys()
        if meeting == _EXIT:
            self._succeeded.add(address)
            missed -= self._succeeded
        if missed:
            names = ", ".join(one for one in self.addresses if one in missed)
            reason = f"the {kind} '{tag}' is void: {names} left world {self.version}"
            return [Answer(call, Refused("void", reason))]
        earlier = self._meetings.enter(meeting, address, _Entry(call, data, now + timeout_seconds))
        answers = [] if earlier is None else [_superseded(earlier.call, address)]
        return answers + self.tick(now)

    def _end_complete_meetings(self, now: float) -> list[Answer]:
        def expected(meeting: _Meeting) -> Collection[str]:
            gone = self._succeeded if meeting == _EXIT else frozenset()
            return self._members.keys() - gone

        answers = []
        for meeting, ended in self._meetings.take_complete(self.members, expected):
            answers += self._renew(ended, now)
            if meeting == _EXIT:
                answers += self._finish()
        return answers

    def _finish(self) -> list[Answer]:
        self.finished = True
        refused = Refused("finished", "the job has finished")
        answers = [Answer(request.call, refused) for request in self._waiting.values()]
        self._waiting.clear()
        return answers

    def _are_enough(self) -> bool:
        return self._range is not None and len(self._waiting) >= self._range.least

    def _is_complete(self, now: float) -> bool:
        """Whether nodes that wait could be a world, and nobody else is sure to come."""
        if not self._are_enough():
            return False
        if not self._members:
            return True
        # The current world goes on until one of its members asks for the next one.
        return self._has_gathered(now)

    def _has_gathered(self, now: float) -> bool:
        """Whether nobody of the current world is sure to ask for the next one, too."""
        if self._gathering_since is None:
            return False
        expected = self._members.keys() - self._waiting.keys() - self._succeeded
        return not expected or now >= self._gathering_since + self.times.straggler_seconds

    def _leave_out(self, now: float) -> list[Answer]:
        """Answers members that are cut off from others, once all have said whom they reach."""
        if not self._cut or not self._has_gathered(now):
            return []
        by_age = [one for one in self.members if one in self._waiting]
        pairs = {pair for pair in self._cut if pair <= set(by_age)}
        self._cut = set()
        answers = []
        for address in decide_left_out(by_age, pairs):
            peers = tuple(one for one in by_age if frozenset((one, address)) in pairs)
            answers.append(Answer(self._waiting.pop(address).call, CutOff(address, peers)))
            answers += self._drop(address, "was cut off from others", now)
        return answers

    def _form_world(self, most: int, now: float) -> list[Answer]:
        by_age = sorted(self._waiting.items(), key=lambda item: item[1].age)[:most]
        self.version += 1
        answers = self._void_meetings(f"world {self.version} was formed", now)
        self.addresses = tuple(address for address, _ in by_age)
        self._members = {
            address: _Member(request.age, now + self.times.lease_seconds)
            for address, request in by_age
        }
        self._succeeded, self._cut = set(), set()
        self._gathering_since = self._complete_since = None
        for rank, (address, request) in enumerate(by_age):
            del self._waiting[address]
            world = World(self.version, self.addresses, rank)
            answers.append(Answer(request.call, world))
        return answers

    def _drop(self, address: str, what_happened: str, now: float) -> list[Answer]:
        """Ends the membership of an address, if it has one."""
        if self._members.pop(address, None) is None:
            return []
        if address not in self._succeeded:
            return self._void_meetings(f"{address} {what_happened}", now)
        # Those whose script still runs do not miss it.
        gone = Refused("void", f"{address} {what_happened}")
        return [Answer(entry.call, gone) for entry in self._meetings.leave(address)]

    def _supersede(self, address: str) -> list[Answer]:
        request = self._waiting.pop(address, None)
        return [] if request is None else [_superseded(request.call, address)]

    def _void_meetings(self, why: str, now: float) -> list[Answer]:
        return self._renew(self._meetings.void(why), now)

    def _renew(self, ended: _Ended, now: float) -> list[Answer]:
        """Gives a lease to members that could not poll while their call waited."""
        answers, whose = ended
        for address in whose:
            if address in self._members:
                self._members[address].expires = now + self.times.lease_seconds
        return answers

    def _is_missed(self, address: str, now: float) -> bool:
        """Whether the others cannot finish their step: it was lost, or its own has failed."""
        member, request = self._members.get(address), self._waiting.get(address)
        if member is None or (request is not None and request.has_failed):
            return True
        return self._is_expired(address, member, now)

    def _is_expired(self, address: str, member: _Member, now: float) -> bool:
        return member.expires <= now and not self._has_waiting_call(address)

    def _has_waiting_call(self, address: str) -> bool:
        """Whether its connection shows that it lives."""
        return address in self._waiting or address in self._meetings


def _superseded(call: int, address: str) -> Answer:
    reason = f"another call came from {address}; no two nodes may have one address"
    return Answer(call, Refused("superseded", reason))
