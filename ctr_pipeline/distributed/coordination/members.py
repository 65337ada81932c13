"""Members of a job: who they are, when they were heard, what is asked of their launcher."""

import hashlib
import hmac
from dataclasses import dataclass, field, replace
from typing import ClassVar

from ctr_pipeline.distributed.coordination.launching import ProcessState
from ctr_pipeline.distributed.coordination.liveness import is_lost
from ctr_pipeline.distributed.coordination.messages import (
    Member,
    MemberStats,
    RegisterRequest,
    Role,
    TaskKind,
)
from ctr_pipeline.distributed.coordination.recorded import Recorded
from ctr_pipeline.distributed.coordination.relaunch import start_again_seconds
from ctr_pipeline.distributed.coordination.timeouts import MovingAverage

_GIVEN_UP_KEPT = 16
_ASK_AGAIN_SECONDS = 5.0


@dataclass(frozen=True)
class MemberEnd:
    """How a process of a member ended; the ledger and `ctrpipe status` hold all of it.

    Attributes:
        why: For a person.
        exit_code: Negative: minus the signal; None where no launcher saw it.
    """

    why: str
    exit_code: int | None = None


@dataclass
class MemberState(Recorded):
    """One member of a job, by role and index, and its process.

    Attributes:
        incarnation: Incarnation of the registered process; empty if there is none.
        secret_hash: Hash of the secret that the registered process gave.
        address: It serves on; empty for workers.
        metrics_address: Empty if it has none.
        host: Its host.
        pid: Its process.
        given_up: Incarnations that ended, were replaced or fell silent; none of them comes back.
        restarts: Starts after the first.
        last_end: How the process before ended; None if none did, other than as it was asked to.
        ends_in_row: Ends without progress between them.
        is_active: A worker gets work; one on standby does not.
        heard_at: Last sign of life, on the job's clock.
        is_heard: There was one since this master began; an earlier one may have heard it last.
        idle_since: When a worker last finished a task, on the job's clock.
        not_before: It is not started earlier, on the job's clock.
        start_asked_at: When its start was asked for last; None: not since its end.
        refusals_in_row: Starts that the launcher refused since it started one.
        stop_asked_at: When its end was asked for last; None: not yet.
        must_leave: A heartbeat reply said so.
        leaves_at: When a parameter server that was asked to end does so, on the job's clock; None:
            it was not asked.
        process: As the launcher saw it last.
        coming_since: When a process was seen first that runs and has not registered, on the job's
            clock; None: there is none, or it waits for a place to run.
        stats: The figures of its last heartbeat.
        speeds: Records per second of a worker, by each kind of task that it has reported.
        behind_since: When it fell behind the others, on the job's clock; None: it keeps up.
        is_slow: It was announced as a straggler.
    """

    durable: ClassVar[frozenset[str]] = frozenset({"incarnation"})
    lazy: ClassVar[frozenset[str]] = frozenset(
        {
            "secret_hash",
            "address",
            "metrics_address",
            "host",
            "pid",
            "given_up",
            "restarts",
            "last_end",
            "ends_in_row",
            "is_active",
        }
    )

    role: Role
    index: int
    incarnation: str = ""
    secret_hash: str = ""
    address: str = ""
    metrics_address: str = ""
    host: str = ""
    pid: int = 0
    given_up: list[str] = field(default_factory=list)
    restarts: int = 0
    last_end: MemberEnd | None = None
    ends_in_row: int = 0
    is_active: bool = False
    heard_at: float = 0.0
    is_heard: bool = False
    idle_since: float = 0.0
    not_before: float = 0.0
    start_asked_at: float | None = None
    refusals_in_row: int = 0
    stop_asked_at: float | None = None
    must_leave: bool = False
    leaves_at: float | None = None
    process: ProcessState | None = None
    coming_since: float | None = None
    stats: MemberStats = field(default_factory=MemberStats)
    speeds: dict[TaskKind, MovingAverage] = field(default_factory=dict)
    behind_since: float | None = None
    is_slow: bool = False

    @property
    def name(self) -> str:
        """The member's name for a person."""
        return f"{'parameter server' if self.role == 'ps' else self.role} {self.index}"

    @property
    def is_running(self) -> bool:
        """Whether its launcher sees a process that is not given up."""
        process = self.process
        return process is not None and process.running and not self.is_given_up

    @property
    def is_given_up(self) -> bool:
        """A process that was given up still runs."""
        process = self.process
        return process is not None and process.running and process.incarnation in self.given_up

    @property
    def waits_for(self) -> str:
        """Why its process does not run yet though it was started; empty otherwise."""
        process = self.process
        if process is None or self.incarnation or not self.is_running:
            return ""
        return process.waits_for

    @property
    def has_place(self) -> bool:
        """Whether it has registered, or its process no longer waits for a place to run."""
        return bool(self.incarnation) or (self.is_running and not self.waits_for)

    def see(self, process: ProcessState, now: float) -> None:
        """Takes in what the launcher saw."""
        is_same = self.process is not None and self.process.incarnation == process.incarnation
        self.process = process
        self.restarts = process.restarts
        if not is_same:
            self.refusals_in_row = 0
        if self.incarnation or not self.is_running or process.waits_for:
            self.coming_since = None
        elif self.coming_since is None or not is_same:
            self.coming_since = now

    def note_heard(self, now: float) -> None:
        """A sign of life."""
        self.heard_at, self.is_heard = now, True

    def is_held_against(self, newcomer: str, now: float, silence_seconds: float) -> bool:
        """Whether another process is this member and lives, so that the newcomer is refused.

        One that the launcher runs is not refused: a launcher runs one process for a member, so the
        one before has ended, even if nobody told this master of it.

        Args:
            newcomer: Incarnation of the process that wants to be it.
            now: The job's clock.
            silence_seconds: A member that has been silent for so long counts as dead.
        """
        if not self.incarnation or self.incarnation == newcomer:
            return False
        if self.is_running and self.process is not None and self.process.incarnation == newcomer:
            return False
        return self.is_heard and not is_lost(self.heard_at, now, silence_seconds)

    def is_process(self, who: Member) -> bool:
        """Whether a caller is the registered process, as only the two of them can know."""
        return self.incarnation == who.incarnation and hmac.compare_digest(
            self.secret_hash, _hash_of(who.secret)
        )

    def join(self, request: RegisterRequest, now: float) -> None:
        """A process becomes this member."""
        self.incarnation = request.member.incarnation
        self.secret_hash = _hash_of(request.member.secret)
        self.address, self.metrics_address = request.address, request.metrics_address
        self.host, self.pid = request.host, request.pid
        self.note_heard(now)
        self.idle_since = now
        self.stop_asked_at = self.coming_since = self.behind_since = None
        self.must_leave = self.is_slow = False
        self.leaves_at = None
        self.stats, self.speeds = MemberStats(), {}

    def take_in_stats(self, stats: MemberStats) -> None:
        """What it says of itself; loads that it leaves out are as they were."""
        self.stats = replace(stats, loads=stats.loads or self.stats.loads)

    def give_up(self, incarnation: str) -> None:
        """A process no longer counts, whatever it may still say."""
        if incarnation and incarnation not in self.given_up:
            self.given_up = [*self.given_up[1 - _GIVEN_UP_KEPT :], incarnation]
        if incarnation == self.incarnation:
            self.incarnation = self.secret_hash = self.address = self.metrics_address = ""
            self.is_active = self.is_heard = False
            self.leaves_at = None

    def refuse_start(self, now: float) -> None:
        """The launcher did not start it; it is asked again later, and ever more seldom."""
        self.refusals_in_row += 1
        self.start_asked_at = None
        self.not_before = now + start_again_seconds(self.refusals_in_row)

    def may_start(self, now: float) -> bool:
        """Whether to ask for its start, again if nothing came of it."""
        if self.incarnation or self.is_running or self.is_given_up or now < self.not_before:
            return False
        asked = self.start_asked_at
        return asked is None or now - asked >= _ASK_AGAIN_SECONDS

    def is_coming(self, now: float) -> bool:
        """Whether its start was asked for or is seen, and it has not registered yet."""
        asked = self.start_asked_at
        return not self.incarnation and (
            self.is_running or (asked is not None and now - asked < _ASK_AGAIN_SECONDS)
        )

    def may_stop(self, now: float, grace_seconds: float) -> bool:
        """Whether to ask for its end, again if nothing came of it."""
        asked = self.stop_asked_at
        return asked is None or now - asked >= grace_seconds + _ASK_AGAIN_SECONDS

    def speed_of(self, kind: TaskKind) -> float | None:
        """Records per second; None before it was measured."""
        average = self.speeds.get(kind)
        return None if average is None else average.value

    def measure(self, kind: TaskKind, rows: int, seconds: float) -> None:
        """Takes in work done; the first of a kind compiles the model and says nothing of speed."""
        if kind not in self.speeds:
            self.speeds[kind] = MovingAverage()
        elif seconds > 0:
            self.speeds[kind].add(rows / seconds)


def _hash_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
