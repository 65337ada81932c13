"""The port to whatever starts and stops the members of a job: this machine, or a cluster.

A launcher is one class with the methods of `Launcher`; it is constructed with a `LauncherContext`.
`ctrpipe run` opens it, starts the master with it, and closes it when the job is over:

    ctrpipe run ── start, observe, failure, close ──► launcher ──► master, ps-0 …, worker-0 …
                                                         ▲
    master ─────── start, stop, observe, by RPC ─────────┘

The master decides which other members there are. It starts them when the job begins, starts them
again when they end, and starts or stops some when the job is scaled; a launcher knows no number of
members. `distributed.launchers.remote` carries the master's calls, and `specs.launchers` lists the
launchers that there are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from ctr_pipeline.distributed.coordination.messages import Role
from ctr_pipeline.distributed.coordination.news import JobNews
from ctr_pipeline.errors import CtrPipelineError

ExitReason = Literal[
    "completed",
    "error",
    "out_of_memory",
    "killed",
    "evicted",
    "preempted",
    "node_lost",
    "not_started",
]
"""Why a process ended; `coordination.relaunch` decides by it whether and when it is started again.

- completed: exit code 0.
- error: it failed, or crashed by a signal of its own making such as SIGSEGV.
- out_of_memory: the system killed it for memory, or it ended with `EXIT_OUT_OF_MEMORY`.
- killed: from outside, by the launcher or by somebody else.
- evicted: the cluster took its place back.
- preempted: the cluster gave its place to something of higher priority.
- node_lost: its machine is gone.
- not_started: it never ran, or ended because the system allowed it no thread.
"""


class LauncherBusyError(CtrPipelineError):
    """The launcher cannot do it now; asked again later it may."""


class CannotLaunchError(CtrPipelineError):
    """The launcher can never do it, however often it is asked."""


@dataclass(frozen=True)
class MemberStart:
    """One start of a member.

    Attributes:
        incarnation: Name of this start; the launcher draws it at random.
    """

    role: Role
    index: int
    incarnation: str


class MemberCommands(Protocol):
    """How the programs of members are called; arguments come after the interpreter's own.

    Members run in the working folder of this process and see the run folder under the same path.
    """

    def member(self, start: MemberStart) -> Sequence[str]:
        """Arguments of `python` for a member."""

    def fork_server(self) -> Sequence[str] | None:
        """Arguments of `python` for a process that forks workers; None: each is started alone.

        A launcher may do without it.
        """

    def from_fork_server(self, start: MemberStart) -> Sequence[str]:
        """Arguments of a fork server's child."""


@dataclass(frozen=True)
class LauncherContext:
    """What a launcher is constructed with.

    Attributes:
        commands: How members are called.
        logs_folder: Where what each member writes goes, as `<role>-<index>.log`.
        environment: Variables that members need beside those of this process.
        options: The section of the config that the launcher is registered with; None where it has
            none.
        closing_seconds: Members have so long to end by themselves when the launcher is left.
        server_grace_seconds: Parameter servers have so long when somebody else asks them to end.
    """

    commands: MemberCommands
    logs_folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    options: Any = None
    closing_seconds: float = 5.0
    server_grace_seconds: float = 30.0


@dataclass(frozen=True)
class ProcessState:
    """One process as its launcher sees it.

    Attributes:
        incarnation: Name of this start of it.
        pid: Process, or 0 where there is none to name.
        running: It has not ended; also while it waits for a place to run.
        exit_code: Known once it has ended; negative: minus the signal.
        reason: Why it ended; None while it runs.
        traceback: The last lines that an ended one wrote, for a person.
        restarts: Starts of this member before this one.
        waits_for: Why it does not run yet though it was started, a clause for a person; empty once
            it runs.
        remedy: What the launcher changes when it is started again, so that it does not end like
            this once more, a clause for a person; empty if nothing.
        advice: What its user may change where the launcher changes nothing, a clause.
    """

    role: Role
    index: int
    incarnation: str
    pid: int
    running: bool
    exit_code: int | None
    reason: ExitReason | None
    traceback: str
    restarts: int
    waits_for: str = ""
    remedy: str = ""
    advice: str = ""


class MemberControl(Protocol):
    """What the master asks of a launcher, from several threads, and again if an answer is lost."""

    def start(self, role: Role, index: int) -> None:
        """Starts a member unless it runs; returns before it has begun.

        A master that was started is kept running: whenever it ends, the launcher starts it again by
        the rules of `launchers.restarts`, until it completes, is stopped, or `failure` says why
        not. The other members stay ended; the master starts them again.

        Raises:
            LauncherBusyError: It could not be started now.
            CannotLaunchError: It can never be started.
        """

    def stop(self, role: Role, index: int, incarnation: str, *, grace_seconds: float) -> None:
        """Asks one process to end (SIGTERM), kills it after the grace; 0 kills at once.

        Returns before it has ended. Nothing happens if it does not run; another process that fills
        the place by now is left alone.

        Raises:
            LauncherBusyError: It cannot be asked now.
        """

    def observe(self) -> tuple[ProcessState, ...]:
        """The newest process of every member that was ever started, ended ones included."""


class Launcher(MemberControl, Protocol):
    """Starts, stops and watches the members of one job.

    A context manager: leaving it ends every member and waits until all have ended; with
    `HandedOver` it ends the master alone. Where the launcher itself is killed, members may not
    outlive it for long.
    """

    def failure(self) -> str:
        """Why the master is not started again, with its last lines; empty while all is well."""

    def is_followed(self) -> bool:
        """Whether another process goes on with the members once this one has ended.

        Asked when a signal says that this process is to end.
        """

    def publish(self, news: JobNews) -> None:
        """Shows how the job does where the launcher's system shows jobs, if it does; never waits.

        Called every half second.
        """

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
