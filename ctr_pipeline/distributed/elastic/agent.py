"""The agent of a node: runs the script in the current world, and again in each next one."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from ctr_pipeline.distributed.coordination.exit_codes import format_exit
from ctr_pipeline.distributed.coordination.rendezvous import EXIT_TAG, NodeRange, World
from ctr_pipeline.distributed.elastic.client import RendezvousClient
from ctr_pipeline.distributed.elastic.script import (
    ScriptProcess,
    ScriptState,
    find_program,
    world_environment,
)
from ctr_pipeline.distributed.rpc.failures import CallRefused, PeerUnavailable
from ctr_pipeline.errors import CtrPipelineError


class Step(Enum):
    """What an agent does next."""

    GO_ON = auto()
    FINISH = auto()
    JOIN_NEXT_WORLD = auto()
    RETRY = auto()
    GIVE_UP = auto()


@dataclass(frozen=True)
class AgentSettings:
    """How an agent treats its script.

    Attributes:
        nodes: How many nodes may train together.
        max_restarts: Failures of the script after which it is started again.
        monitor_seconds: Between two looks at script and rendezvous.
        join_seconds: For a world to be formed.
        grace_seconds: Between SIGTERM and SIGKILL.
        exit_seconds: For the other members to succeed too.
        loss_seconds: For the rendezvous to notice that a member was lost.
    """

    nodes: NodeRange
    max_restarts: int = 3
    monitor_seconds: float = 1.0
    join_seconds: float = 600.0
    grace_seconds: float = 10.0
    exit_seconds: float = 300.0
    loss_seconds: float = 15.0


@dataclass(frozen=True)
class Observation:
    """What an agent knows when it decides.

    Attributes:
        state: State of the script.
        waiting_nodes: The answer of the rendezvous; 0 if there is none.
        restarts_left: Failures that may still happen.
        num_nodes: In the current world.
        seconds_since_end: Since the script was seen to have ended; 0 while it runs.
    """

    state: ScriptState
    waiting_nodes: int
    restarts_left: int
    num_nodes: int
    seconds_since_end: float


def decide_step(seen: Observation, loss_seconds: float) -> Step:
    """What the agent does next.

    A script often fails only because another member was lost, and before the rendezvous knows that.
    So an agent without restarts waits for `loss_seconds` before it gives up.
    """
    if seen.state is ScriptState.SUCCEEDED:
        return Step.FINISH
    if seen.state is ScriptState.HEALTHY:
        return Step.JOIN_NEXT_WORLD if seen.waiting_nodes else Step.GO_ON
    if seen.waiting_nodes < 0:
        return Step.JOIN_NEXT_WORLD
    if seen.restarts_left > 0:
        return Step.RETRY
    may_be_loss = seen.num_nodes > 1 and seen.seconds_since_end < loss_seconds
    return Step.GO_ON if may_be_loss else Step.GIVE_UP


def is_counted(step: Step, world: World, next_world: World) -> bool:
    """Whether a restart uses up one of those that are left: none does if a member was lost."""
    return step is Step.RETRY and set(world.addresses) <= set(next_world.addresses)


def explain_change(waiting_nodes: int) -> str:
    """Why a world ends, in words, from a non-zero answer of the rendezvous."""
    if waiting_nodes < 0:
        return "a member was lost" if waiting_nodes == -1 else f"{-waiting_nodes} members were lost"
    if waiting_nodes == 1:
        return "a node wants to join, or a member restarts"
    return f"{waiting_nodes} nodes want to join"


class Agent:
    """Runs a script on one node until it succeeds in some world, or fails too often.

    Args:
        rendezvous: As this node sees it; closed at the end.
        command: The script, as written in a shell.
        environment: Environment variables of the script, without those of the world.
        report: Takes lines on the progress.

    Raises:
        CtrPipelineError: The command is none.
    """

    def __init__(
        self,
        rendezvous: RendezvousClient,
        command: Sequence[str],
        settings: AgentSettings,
        *,
        environment: Mapping[str, str],
        report: Callable[[str], None],
    ) -> None:
        self._rendezvous = rendezvous
        self._command = [find_program(command[0]), *command[1:]]
        self._settings = settings
        self._environment = environment
        self._report_line = report
        self._stop_descriptor = os.eventfd(0)
        self._stopping = False
        self._answers = True

    def stop(self) -> None:
        """Has `run` end the script and return soon; may be called by any thread."""
        self._stopping = True
        os.eventfd_write(self._stop_descriptor, 1)
        self._rendezvous.cancel()

    def run(self) -> int | None:
        """Joins, runs the script, and leaves.

        Returns:
            The exit code of the script, 0 if the others have finished the job; None after `stop`.

        Raises:
            CtrPipelineError: No world was formed in time, or the rendezvous refuses this node.
        """
        script: ScriptProcess | None = None
        restarts_left = self._settings.max_restarts
        try:
            world = self._join(reset=True)
            while world is not None and not self._stopping:
                script = self._start(world)
                step = self._watch(script, world, restarts_left)
                if step is Step.FINISH:
                    self._wait_for_others()
                    return 0
                if step is Step.GIVE_UP:
                    self._report("no restarts are left; giving up")
                    return script.exit_code
                if not self._stopping:
                    self._end(script, world)
                    next_world = self._join()
                    if next_world is not None and is_counted(step, world, next_world):
                        restarts_left -= 1
                    world = next_world
            return None if self._stopping else 0
        finally:
            if script is not None:
                self._end(script, None)
            self._leave()

    def _join(self, *, reset: bool = False) -> World | None:
        """The next world; None if there is none because the job has finished, or we stop."""
        nodes, began = self._settings.nodes, time.monotonic()
        try:
            world = self._rendezvous.get_cluster_spec(
                nodes, reset=reset, timeout_seconds=self._settings.join_seconds
            )
        except PeerUnavailable as error:
            if self._stopping:
                return None
            seconds = self._settings.join_seconds
            raise CtrPipelineError(
                f"no world of {nodes} nodes was formed within {seconds:g} s ({error.message})",
                place=error.place,
                remedy="Check that the rendezvous runs there and that enough nodes are started",
            ) from error
        except CallRefused as error:
            if error.code != "finished":
                raise
            self._report("the job has finished")
            return None
        seconds = time.monotonic() - began
        size = len(world.addresses)
        self._report(
            f"world {world.version} of {nodes} formed: {size} node{'s' if size > 1 else ''}, "
            f"this one has rank {world.rank}, in {seconds:.1f} s"
        )
        return world

    def _start(self, world: World) -> ScriptProcess:
        return ScriptProcess(self._command, {**self._environment, **world_environment(world)})

    def _watch(self, script: ScriptProcess, world: World, restarts_left: int) -> Step:
        """Returns when there is something else to do than to go on."""
        ended: float | None = None
        while not self._stopping:
            script.wait(self._settings.monitor_seconds, self._stop_descriptor)
            state = script.state
            if state is ScriptState.FAILED and ended is None:
                ended = time.monotonic()
                self._report(f"the script failed: {format_exit(script.exit_code)}")
            waiting_nodes = 0 if state is ScriptState.SUCCEEDED else self._ask(world)
            seen = Observation(
                state,
                waiting_nodes,
                restarts_left,
                num_nodes=len(world.addresses),
                seconds_since_end=0.0 if ended is None else time.monotonic() - ended,
            )
            step = decide_step(seen, self._settings.loss_seconds)
            if step is Step.JOIN_NEXT_WORLD:
                self._report(f"{explain_change(waiting_nodes)}; restarting")
            elif step is Step.RETRY:
                allowed = self._settings.max_restarts
                self._report(f"restarting, {restarts_left} of {allowed} restarts left")
            if step is not Step.GO_ON:
                return step
        return Step.GO_ON

    def _ask(self, world: World) -> int:
        """Whether the world is still the right one; scripts go on without a rendezvous."""
        try:
            waiting_nodes = self._rendezvous.get_waiting_nodes(world.version)
        except (PeerUnavailable, CallRefused) as error:
            if isinstance(error, CallRefused) and not error.may_pass:
                raise
            if self._answers:
                self._report(f"the rendezvous does not answer, the script goes on ({error})")
            self._answers = False
            return 0
        if not self._answers:
            self._report("the rendezvous answers again")
        self._answers = True
        return waiting_nodes

    def _end(self, script: ScriptProcess, world: World | None) -> None:
        script.end(
            self._settings.grace_seconds,
            meanwhile=lambda: self._ask(world) if world is not None else None,
            interval_seconds=self._settings.monitor_seconds,
        )

    def _wait_for_others(self) -> None:
        try:
            self._rendezvous.barrier(EXIT_TAG, self._settings.exit_seconds)
        except (PeerUnavailable, CallRefused) as error:
            self._report(f"the script succeeded, but others may not have ({error.message})")
        else:
            self._report("the script succeeded on all nodes")

    def _leave(self) -> None:
        try:
            self._rendezvous.leave()
        except (PeerUnavailable, CallRefused) as error:
            # It will notice that the lease ends.
            self._report(f"could not tell the rendezvous that this node has left ({error.message})")
        self._rendezvous.close()

    def _report(self, line: str) -> None:
        self._report_line(f"{self._rendezvous.address}: {line}")
