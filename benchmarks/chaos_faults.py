"""The faults that `chaos.py` and the end-to-end tests do to real runs.

A fault waits for a seeded random moment of running steps, makes sure that its target is at work,
strikes, and makes sure that it struck. What must hold afterwards, beyond what holds of every run,
it checks itself.
"""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from job_watch import MissedError, OverdueError
from watched_run import WatchedRun, slowed, wait_until_gone

from ctr_pipeline.distributed.coordination.job.status import MemberStatus
from ctr_pipeline.distributed.coordination.messages import Role

_TRIES = 5
_CGROUPS = Path("/sys/fs/cgroup")
KILL, STOP, GO_ON = signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT


@dataclass
class Strike:
    """One blow of a fault.

    Attributes:
        at: Monotonic clock, seconds.
        what: For a person.
        trained: Records counted by then.
    """

    at: float
    what: str
    trained: int


@dataclass
class Disturbance:
    """What a fault works with.

    Attributes:
        run: The run.
        dice: Of this fault in this run.
        command: That started the run.
        strikes: So far.
        problems: What did not hold.
        resumed: The run was started again with `--resume`.
        window: Fractions of the job that the next fault has for itself, where it shares the run
            with others; None: where it likes.
        since: Unix time at which the present fault's part of the run began: an event before it
            was another's.
        at_work_seconds: A target that stays idle for so long is a miss.
    """

    run: WatchedRun
    dice: random.Random
    command: str = "run"
    strikes: list[Strike] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    resumed: bool = False
    window: tuple[float, float] | None = None
    since: float = 0.0
    at_work_seconds: float = 30.0

    def wait_for_moment(self, low: float = 0.15, high: float = 0.6) -> None:
        """Waits for a random place between two fractions of the job, in the middle of steps."""
        fraction = self.dice.uniform(*(self.window or (low, high)))
        run = self.run

        def reached() -> bool:
            view = run.view
            return view is not None and view.records.trained >= fraction * view.records.total

        run.wait_for(f"{fraction:.0%} of the job", reached, 600.0)
        # Not at the moment of a report, which is when its progress was seen.
        time.sleep(self.dice.uniform(0.0, 0.5))
        run.wait_for("running steps", self.has_work_for_all, 60.0)

    def has_work_for_all(self) -> bool:
        """Steps are running, and the epoch has tasks left for every worker."""
        view = self.run.now
        workers = sum(member.role == "worker" for member in view.members)
        return self.run.is_training() and view.tasks_total - view.tasks_done > 2 * workers

    def require_at_work(self, role: Role, index: int) -> MemberStatus:
        """The member, as soon as it is in the middle of something.

        Raises:
            MissedError: It stays idle, or is gone.
        """
        give_up = time.monotonic() + self.at_work_seconds
        while why := self._why_not_at_work(role, index):
            if time.monotonic() > give_up or self.run.has_ended:
                raise MissedError(f"{role} {index}: {why}")
            time.sleep(0.01)
        return self.run.member_view(role, index)

    def _why_not_at_work(self, role: Role, index: int) -> str:
        member = self.run.member_view(role, index)
        if not self.run.is_training():
            return "no steps are running"
        if role != "master" and member.state != "running":
            return f"it is {member.state}"
        if role == "worker" and member.leases == 0:
            return "it holds no task"
        return ""

    def strike(self, what: str) -> None:
        """Notes a blow that has been dealt."""
        self.strikes.append(Strike(time.monotonic(), what, self.run.now.records.trained))

    def signal(self, role: Role, index: int, number: signal.Signals) -> MemberStatus:
        """Sends a signal to a member that is at work."""
        member = self.require_at_work(role, index)
        self.run.send(member.pid, number)
        self.strike(f"{signal.Signals(number).name} to {role} {index} (process {member.pid})")
        return member

    def expect(self, so: object, otherwise: str) -> None:
        """Notes what does not hold."""
        if not so:
            self.problems.append(otherwise)

    def wait_for_event(self, *words: str, timeout_seconds: float = 60.0) -> None:
        """Waits until the event log tells of something new, all of these words in one event."""

        def told() -> bool:
            return any(
                event.time >= self.since
                and all(word in f"{event.what} {event.done}" for word in words)
                for event in self.run.now.events
            )

        try:
            self.run.wait_for(f"an event with {words}", told, timeout_seconds)
        except OverdueError as error:
            self.problems.append(str(error))

    def wait_until_replaced(self, member: MemberStatus, timeout_seconds: float = 60.0) -> None:
        """Waits until another process is in a member's place and at work."""

        def replaced() -> bool:
            found = self.run.member_view(member.role, member.index)
            return found.pid not in {0, member.pid} and found.state == "running"

        self.run.wait_for(f"a new {member.role} {member.index}", replaced, timeout_seconds)


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        name: For `--fault`.
        what: For the table.
        strike: Does it.
        runtime: Keys of `runtime:` that it needs.
        config: Other sections that it needs, merged by key.
        most_stall_seconds: Longest pause without progress that is allowed; None: any that ends.
        most_repeated_seconds: Work computed again that is allowed for each blow, in seconds of the
            whole run's speed; None: any.
        least_goodput: Of the speed of the undisturbed run with the same seed; None: any.
        ends: Exit code of the run; None: whatever.
        needs_root: It cannot be done by others.
        is_of_disk: It is done to checkpoints on this disk, which a run in a store has none of.
        surroundings: Something that has to be there before the run starts, such as an etcd.
        is_proxied: Members reach each other through proxies.
        is_core: An end-to-end test of its own.
        is_alone: It takes the whole run, so that no other fault can share it.
        is_first: It has to be there when the run starts: of those that share one, the first.
    """

    name: str
    what: str
    strike: Callable[[Disturbance], None]
    runtime: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    most_stall_seconds: float | None = None
    most_repeated_seconds: float | None = None
    least_goodput: float | None = None
    ends: int | None = 0
    needs_root: bool = False
    is_of_disk: bool = False
    surroundings: Callable[[Path], contextlib.AbstractContextManager[Mapping[str, Any]]] | None = (
        None
    )
    is_proxied: bool = False
    is_core: bool = False
    is_alone: bool = False
    is_first: bool = False

    @property
    def needs(self) -> tuple[object, ...]:
        """Faults share a run only if they need the same."""
        return (
            self.name if self.is_alone or self.config or self.ends != 0 else "",
            repr(self.runtime),
            self.surroundings,
            self.is_proxied,
        )


# Workers.


def kill_worker(chaos: Disturbance) -> None:
    """One worker, at once."""
    chaos.wait_for_moment()
    member = chaos.signal("worker", 0, KILL)
    chaos.wait_until_replaced(member)


def kill_all_workers(chaos: Disturbance) -> None:
    """All of them within a millisecond."""
    chaos.wait_for_moment()
    members = [chaos.require_at_work("worker", index) for index in _indices(chaos, "worker")]
    for member in members:
        chaos.run.send(member.pid, KILL)
    chaos.strike(f"SIGKILL to {len(members)} workers")
    for member in members:
        chaos.wait_until_replaced(member)


def kill_workers_again_and_again(chaos: Disturbance) -> None:
    """One every twenty seconds, in turn, until the job is done."""
    chaos.wait_for_moment(0.02, 0.05)
    turn = 0
    while not chaos.run.has_ended:
        indices = _indices(chaos, "worker")
        with contextlib.suppress(MissedError):
            # Validation and the end are no time of steps: the next turn may be.
            if indices:
                chaos.signal("worker", indices[turn % len(indices)], KILL)
                turn += 1
        give_up = time.monotonic() + 20.0
        while time.monotonic() < give_up and not chaos.run.has_ended:
            time.sleep(0.05)
    chaos.expect(turn >= 2, f"only {turn} workers were killed")


def suspend_worker(chaos: Disturbance) -> None:
    """Silent for longer than its lease: its tasks go to others, it is replaced."""
    chaos.wait_for_moment()
    member = chaos.signal("worker", 0, STOP)
    chaos.wait_for_event("worker 0", "not heard")
    chaos.wait_until_replaced(member)


def wake_up_zombie(chaos: Disturbance) -> None:
    """A worker of another host is silent for longer than its lease, then goes on as if nothing was.

    It was started by hand in the place of another one, so that nobody can kill it: only fencing
    keeps what it reports from counting.
    """
    run = chaos.run
    run.wait_for("the job", (run.output / "job" / "spec.json").exists, 120.0)
    config = str(run.output / "config.resolved.yaml")
    stranger = run.member("worker", "--config", config, "--index", "1")
    chaos.wait_for_moment(0.05, 0.2)
    run.wait_for(
        "tasks for the worker started by hand",
        lambda: (
            run.member_view("worker", 1).pid == stranger.pid
            and run.member_view("worker", 1).leases
            and chaos.has_work_for_all()
        ),
        60.0,
    )
    chaos.signal("worker", 1, STOP)
    chaos.wait_for_event("worker 1", "not heard")
    run.wait_for(
        "another worker in its place",
        lambda: run.member_view("worker", 1).pid not in {0, stranger.pid},
        60.0,
    )
    time.sleep(chaos.dice.uniform(0.5, 2.0))
    run.send(stranger.pid, GO_ON)
    chaos.strike("SIGCONT to it")
    stranger.wait(60.0)
    log = (run.folder / "worker-1.log").read_text(encoding="utf-8", errors="replace")
    # The master says so, or a parameter server does, whichever it asks first.
    was_told = "Leases revoked" in log or "Another worker has" in log
    chaos.expect(was_told, "the late worker was not told that its tasks are gone")


def squeeze_worker(chaos: Disturbance) -> None:
    """One more worker is asked for than there is memory for: the system kills one of them."""
    run = chaos.run
    run.wait_for("the job", (run.output / "job" / "endpoint.json").exists, 120.0)
    with _control_group(chaos, "memory") as group:
        chaos.wait_for_moment(0.1, 0.3)
        workers = {run.member_view("worker", index).pid for index in _indices(chaos, "worker")}
        for pid in workers:
            # The process that the user started holds TensorFlow, too; it is not what is meant.
            Path(f"/proc/{pid}/oom_score_adj").write_text("1000", encoding="ascii")
        held = dict(
            line.split() for line in (group / "memory.stat").read_text("ascii").splitlines()
        )
        limit = int(held["rss"]) + 64_000_000
        (group / "memory.limit_in_bytes").write_text(str(limit), encoding="ascii")
        run.call("scale", str(run.output), "--workers", str(len(workers) + 1))
        chaos.strike(f"one more worker within {limit / 1e6:.0f} MB for all")
        run.wait_for("the end of a worker", lambda: not all(map(psutil.pid_exists, workers)), 90.0)
        (group / "memory.limit_in_bytes").write_text("-1", encoding="ascii")
        chaos.wait_for_event("ran out of memory")
        run.call("scale", str(run.output), "--workers", str(len(workers)))


@contextlib.contextmanager
def _control_group(chaos: Disturbance, controller: str) -> Iterator[Path]:
    """A control group of version 1 that all processes of the run are in meanwhile."""
    parent = _CGROUPS / controller
    group = parent / f"ctrpipe-chaos-{chaos.run.mark}"
    group.mkdir()
    try:
        _move(chaos.run, group)
        yield group
    finally:
        _move(chaos.run, parent)
        with contextlib.suppress(OSError):
            group.rmdir()


def _move(run: WatchedRun, group: Path) -> None:
    """Every process of the run becomes one of a control group."""
    for process in run.processes():
        with contextlib.suppress(OSError):  # it may have ended
            (group / "cgroup.procs").write_text(str(process.pid), encoding="ascii")


def slow_down_worker(chaos: Disturbance) -> None:
    """A worker stands still for most of the time: the others take its tasks, and it is reported.

    On few cores it has one to itself while it runs, which the others share: to be half as fast as
    they are it has to rest for longer than half of the time.
    """
    chaos.wait_for_moment(0.1, 0.3)
    with _slowed(chaos, "worker", 0, fraction=0.85):
        chaos.wait_for_event("worker 0", "slow", timeout_seconds=90.0)


def refuse_starts(chaos: Disturbance) -> None:
    """The system starts no process and no thread for half a minute; a worker and a server die."""
    chaos.wait_for_moment(0.1, 0.3)
    with _control_group(chaos, "pids") as group:
        limit = group / "pids.max"
        limit.write_text("1", encoding="ascii")
        try:
            chaos.strike("no more processes and threads")
            killed = [chaos.signal("worker", 0, KILL), chaos.signal("ps", 0, KILL)]
            time.sleep(30.0)
            chaos.wait_for_event("cannot be started", timeout_seconds=5.0)
        finally:
            limit.write_text("max", encoding="ascii")
        chaos.strike("as many as are asked for")
        for member in killed:
            chaos.wait_until_replaced(member)


# Parameter servers.


def kill_server(chaos: Disturbance) -> None:
    """One parameter server, at once."""
    chaos.wait_for_moment()
    member = chaos.signal("ps", chaos.dice.randrange(2), KILL)
    chaos.wait_until_replaced(member)


def kill_all_servers(chaos: Disturbance) -> None:
    """All parameter servers at once."""
    chaos.wait_for_moment()
    members = [chaos.require_at_work("ps", index) for index in _indices(chaos, "ps")]
    for member in members:
        chaos.run.send(member.pid, KILL)
    chaos.strike(f"SIGKILL to {len(members)} parameter servers")
    for member in members:
        chaos.wait_until_replaced(member)


def kill_server_in_state(state: str) -> Callable[[Disturbance], None]:
    """A parameter server dies while scores are made: `validating`, or `scoring` at the end."""

    def strike(chaos: Disturbance) -> None:
        run = chaos.run
        run.wait_for(f"a job that is {state}", lambda: run.now.state == state, 900.0)
        member = run.member_view("ps", chaos.dice.randrange(2))
        run.send(member.pid, KILL)
        chaos.strike(f"SIGKILL to ps {member.index} (process {member.pid}) in '{run.now.state}'")
        chaos.wait_until_replaced(member)

    return strike


def kill_servers_after_training(chaos: Disturbance) -> None:
    """Every parameter server is killed from the end of the job on: export and proof need none."""
    run = chaos.run
    run.wait_for("the last score", lambda: run.now.state == "finished", 900.0)
    servers = [member for member in run.now.members if member.role == "ps"]
    number = 0
    for member in servers:
        with contextlib.suppress(MissedError):
            run.send(member.pid, KILL)
            number += 1
    chaos.strike(f"SIGKILL to {number} of {len(servers)} parameter servers, the others had left")


def suspend_server(chaos: Disturbance) -> None:
    """A server hangs for good: it has to be replaced."""
    chaos.wait_for_moment()
    member = chaos.signal("ps", 1, STOP)
    chaos.wait_until_replaced(member, 120.0)


def kill_server_between_acknowledgements(chaos: Disturbance) -> None:
    """One server has applied a push that the other has not when that one dies."""
    chaos.wait_for_moment()
    member = chaos.signal("ps", 1, STOP)
    _wait_for_half_acknowledged_pushes(chaos)
    chaos.run.send(member.pid, KILL)
    chaos.strike("SIGKILL to it, with pushes half acknowledged")
    chaos.wait_until_replaced(member)


def kill_worker_between_acknowledgements(chaos: Disturbance) -> None:
    """A worker dies when one server has applied its push and the other has not."""
    chaos.wait_for_moment()
    server = chaos.signal("ps", 1, STOP)
    _wait_for_half_acknowledged_pushes(chaos)
    worker = chaos.run.member_view("worker", 0)
    chaos.run.send(worker.pid, KILL)
    chaos.strike("SIGKILL to worker 0, with its push half acknowledged")
    chaos.run.send(server.pid, GO_ON)
    chaos.wait_until_replaced(worker)


def _wait_for_half_acknowledged_pushes(chaos: Disturbance) -> None:
    """Waits, with one server stopped, until the workers stand still.

    A worker's next batch has its rows by then, so that it computes and pushes it to both servers:
    what it stands still for is the answer of the one that is stopped. Only a worker that was asking
    for the rows of its first batch stands still with nothing pushed.

    Raises:
        MissedError: Records were counted all the time.
    """
    give_up = time.monotonic() + 3.0
    trained, since = chaos.run.now.records.trained, time.monotonic()
    while time.monotonic() < since + 0.4:
        if time.monotonic() > give_up:
            raise MissedError("the workers do not wait for the server that stands still")
        if chaos.run.now.records.trained != trained:
            trained, since = chaos.run.now.records.trained, time.monotonic()
        time.sleep(0.02)
    time.sleep(chaos.dice.uniform(0.0, 0.5))


def slow_down_server(chaos: Disturbance) -> None:
    """Half of the time it stands still: slower, and nothing else."""
    chaos.wait_for_moment(0.1, 0.3)
    restarts = chaos.run.member_view("ps", 0).restarts
    with _slowed(chaos, "ps", 0, fraction=0.5):
        time.sleep(8.0)
    chaos.expect(
        chaos.run.member_view("ps", 0).restarts == restarts, "a slow parameter server was restarted"
    )


# The master, and several at once.


def kill_master(chaos: Disturbance) -> None:
    """The master alone: workers go on with what they hold."""
    chaos.wait_for_moment()
    member = chaos.signal("master", 0, KILL)
    chaos.wait_until_replaced(member)


def suspend_master(chaos: Disturbance) -> None:
    """Eight seconds without a master, as of a machine that swaps: nobody is held to be dead."""
    chaos.wait_for_moment()
    restarts = _restarts(chaos, "worker") + _restarts(chaos, "ps")
    member = chaos.signal("master", 0, STOP)
    time.sleep(8.0)
    chaos.run.send(member.pid, GO_ON)
    chaos.run.wait_for("running steps", chaos.run.is_training, 60.0)
    found = _restarts(chaos, "worker") + _restarts(chaos, "ps")
    chaos.expect(found == restarts, "members were restarted while the master was suspended")


def kill_master_and_worker(chaos: Disturbance) -> None:
    """Both within a millisecond."""
    _kill_together(chaos, ("master", 0), ("worker", 0))


def kill_master_and_server(chaos: Disturbance) -> None:
    """Both within a millisecond."""
    _kill_together(chaos, ("master", 0), ("ps", 0))


def kill_everything(chaos: Disturbance) -> None:
    """All processes at once, as of a machine that restarts; then `--resume`."""
    chaos.wait_for_moment()
    chaos.require_at_work("worker", 0)
    processes = chaos.run.processes()
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
    chaos.strike(f"SIGKILL to all {len(processes)} processes")
    chaos.run.wait(60.0)
    _resume(chaos)


def kill_launcher(chaos: Disturbance) -> None:
    """The process that the user started: everything goes with it; then `--resume`."""
    chaos.wait_for_moment()
    chaos.require_at_work("worker", 0)
    pids = [process.pid for process in chaos.run.processes()]
    chaos.run.send(chaos.run.pid, KILL)
    chaos.strike("SIGKILL to the process that the user started")
    chaos.run.wait(60.0)
    chaos.expect(wait_until_gone(pids, 60.0), "processes outlived the one that started them")
    _resume(chaos)


def suspend_everything(chaos: Disturbance) -> None:
    """A suspended machine: every clock leaps by twenty seconds for everyone at once."""
    chaos.wait_for_moment()
    chaos.require_at_work("worker", 0)
    restarts = sum(chaos.run.restarts.values())
    processes = chaos.run.processes()
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.suspend()
    chaos.strike(f"SIGSTOP to all {len(processes)} processes")
    time.sleep(20.0)
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.resume()
    chaos.run.wait_for("running steps", chaos.run.is_training, 60.0)
    found = sum(chaos.run.restarts.values())
    chaos.expect(found == restarts, f"{found - restarts} members restarted after the suspension")


# Scale.


def scale_up_and_down(chaos: Disturbance) -> None:
    """1 → 4 → 2 workers while training; a number that had a worker before counts as a restart."""
    chaos.wait_for_moment(0.05, 0.2)
    run = chaos.run

    def training() -> list[MemberStatus]:
        return [
            member
            for member in run.now.members
            if member.role == "worker" and member.state == "running" and member.leases
        ]

    restarts = sum(run.restarts.values())
    before = present = len(_indices(chaos, "worker"))
    known, again = set(range(before)), 0
    # The first makes it begin with one, the last leaves it as it was.
    for number in (1, 4, 2, before):
        began = time.monotonic()
        run.call("scale", str(run.output), "--workers", str(number))
        chaos.strike(f"scale to {number}")
        run.wait_for(f"{number} workers at work", lambda n=number: len(training()) == n, 60.0)
        seconds = time.monotonic() - began
        chaos.expect(seconds < 30.0, f"{number} workers took {seconds:.0f} s")
        joined = set(range(present, number))
        again += len(joined & known)
        known |= joined
        present = number
    restarts = sum(run.restarts.values()) - restarts
    chaos.expect(restarts == again, f"{restarts} members restarted by scaling, not {again}")


# Garbage.


def send_garbage_everywhere(chaos: Disturbance) -> None:
    """Random bytes, HTTP and half a TLS greeting to every port that members listen on."""
    from tests.distributed.faults.proxy import send_garbage

    chaos.wait_for_moment()
    restarts = sum(chaos.run.restarts.values())
    pids = {process.pid for process in chaos.run.processes()}
    ports = sorted(
        {
            connection.laddr.port
            for connection in psutil.net_connections("tcp")
            if connection.pid in pids and connection.status == psutil.CONN_LISTEN
        }
    )
    chaos.expect(len(ports) >= 3, f"only {len(ports)} ports were found")
    for port in ports:
        for data in (
            chaos.dice.randbytes(4096),
            b"GET / HTTP/1.1\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + chaos.dice.randbytes(512),
        ):
            send_garbage(f"127.0.0.1:{port}", data, timeout_seconds=2.0)
    chaos.strike(f"garbage to {len(ports)} ports")
    chaos.run.wait_for("running steps", chaos.run.is_training, 30.0)
    found = sum(chaos.run.restarts.values())
    chaos.expect(found == restarts, "garbage ended a member")


# Checkpoints.


def kill_while_partitions_move(role: Role, index: int) -> Callable[[Disturbance], None]:
    """Servers are scaled from two to three, a member dies meanwhile, and back to two."""

    def strike(chaos: Disturbance) -> None:
        run = chaos.run

        def scale(number: int) -> None:
            run.call("scale", str(run.output), "--parameter-servers", str(number))
            chaos.strike(f"scale to {number} parameter servers")

        def wait_until_moved(times: int) -> None:
            def moved() -> bool:
                told = [one.what for one in run.now.events if one.time >= chaos.since]
                return told.count("partitions are where they are to be") == times

            run.wait_for(f"{times} times all partitions in their places", moved, 120.0)

        chaos.wait_for_moment(0.05, 0.4)
        scale(3)
        run.wait_for(
            "the third server",
            lambda: any(
                (one.role, one.index, one.state) == ("ps", 2, "running") for one in run.now.members
            ),
            60.0,
        )
        time.sleep(chaos.dice.uniform(0.0, 0.5))
        told = [one.what for one in run.now.events if one.time >= chaos.since]
        if "partitions are where they are to be" in told:
            raise MissedError("all partitions had moved before")
        member = chaos.signal(role, index, KILL)
        chaos.wait_until_replaced(member)
        wait_until_moved(1)
        scale(2)
        wait_until_moved(2)

    return strike


def spoil_checkpoint(how: str) -> Callable[[Disturbance], None]:
    """The newest cut is damaged, and then a parameter server dies: the one before is used."""

    def strike(chaos: Disturbance) -> None:
        run = chaos.run

        def cuts() -> int:
            checkpoint = run.now.checkpoint
            return checkpoint.number if checkpoint else 0

        run.wait_for("two checkpoints", lambda: cuts() >= 2, 300.0)
        chaos.wait_for_moment(0.0, 0.3)
        # Right after a cut in the middle of steps, so that no newer one comes between damage and
        # death: it may be a base, which needs no file before it.
        newest = 0
        for _ in range(_TRIES):
            before = cuts()
            run.wait_for("the next checkpoint", lambda before=before: cuts() > before, 120.0)
            newest = cuts()
            member = chaos.require_at_work("ps", 0)
            if cuts() == newest:
                break
        else:
            raise MissedError("another checkpoint came before the last one could be spoiled")
        path = _newest_file(run.output / "checkpoints")
        data = path.read_bytes()
        match how:
            case "truncated":
                path.write_bytes(data[: len(data) // 2])
            case "flipped":
                spot = len(data) // 2
                path.write_bytes(data[:spot] + bytes([data[spot] ^ 1]) + data[spot + 1 :])
            case _:
                path.unlink()
        run.send(member.pid, KILL)
        chaos.strike(f"{path.name} of cut {newest} {how}, SIGKILL to ps 0 (process {member.pid})")
        chaos.wait_until_replaced(member)
        chaos.wait_for_event("checkpoint")

    return strike


_AWAY_SECONDS = 60.0


def take_checkpoints_away(chaos: Disturbance) -> None:
    """The folder of the checkpoints is gone for a minute, and a server dies meanwhile."""
    folder = chaos.run.output / "checkpoints"

    def leave() -> Path:
        return folder.rename(folder.with_name("checkpoints-away"))

    def come_back(away: Path) -> None:
        away.rename(folder)

    _lose_storage(chaos, "the checkpoints' folder", leave, come_back)


def make_checkpoint_unreadable(chaos: Disturbance) -> None:
    """A file of the newest cut cannot be opened for a minute, and a server dies meanwhile.

    A link to itself is what anybody can make of it: an error of the system, and no damage.
    """
    path = Path()

    def leave() -> Path:
        nonlocal path
        path = _newest_file(chaos.run.output / "checkpoints")
        away = path.rename(path.with_name("unreadable"))
        path.symlink_to(path.name)
        return away

    def come_back(away: Path) -> None:
        away.replace(path)

    _lose_storage(chaos, "a file of the newest checkpoint", leave, come_back)


def _lose_storage(
    chaos: Disturbance, what: str, leave: Callable[[], Path], come_back: Callable[[Path], None]
) -> None:
    run = chaos.run
    run.wait_for("a checkpoint", lambda: run.now.checkpoint is not None, 300.0)
    chaos.wait_for_moment(0.1, 0.4)
    member = chaos.require_at_work("ps", 0)
    trained = run.now.records.trained
    away = leave()
    try:
        gone_at = time.monotonic()
        run.send(member.pid, KILL)
        chaos.strike(f"{what} is away, SIGKILL to ps 0 (process {member.pid})")
        run.wait_for(
            "a job that waits for storage",
            lambda: run.now.reason.startswith("waiting for storage"),
            30.0,
        )
        time.sleep(max(0.0, gone_at + _AWAY_SECONDS - time.monotonic()))
        chaos.expect(run.now.state == "restoring", f"the job is '{run.now.state}' meanwhile")
    finally:
        come_back(away)
    chaos.strike("it is back")
    run.wait_for("steps again", run.is_training, 60.0)
    chaos.expect(run.now.records.trained > trained // 2, "more was given up than since a cut")


def lose_ledger(chaos: Disturbance) -> None:
    """The ledger is deleted and its master killed, while the servers live."""
    run = chaos.run
    run.wait_for("a checkpoint", lambda: run.now.checkpoint is not None, 300.0)
    chaos.wait_for_moment(0.15, 0.5)
    member = chaos.require_at_work("master", 0)
    generation, trained = run.now.generation, run.now.records.trained
    for path in (run.output / "job").glob("ledger.sqlite*"):
        path.unlink()
    run.send(member.pid, KILL)
    chaos.strike(f"ledger deleted, SIGKILL to the master (process {member.pid})")
    run.wait_for("another master", lambda: run.now.members[0].pid not in {0, member.pid}, 30.0)
    run.wait_for("steps again", run.is_training, 60.0)
    chaos.expect(run.now.generation > generation, "the servers were not told to go back")
    chaos.expect(run.now.records.trained > trained // 2, "more was given up than since a cut")


_ROOM_LEFT = 16 << 20  # bytes; less than that is no disk that has room before the fault


def fill_disk(chaos: Disturbance) -> None:
    """No room for a checkpoint for a while: training goes on, and so do checkpoints later."""
    run = chaos.run
    chaos.wait_for_moment(0.1, 0.3)
    folder = run.output / "checkpoints"
    filler = folder / "filler"
    if shutil.disk_usage(folder).free < _ROOM_LEFT:
        raise MissedError("the checkpoints alone fill their disk")
    # Unbuffered: closing a file writes what its buffer holds, and there is no room for that.
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * (1 << 16))
    chaos.strike("disk of the checkpoints filled")
    taken = run.now.checkpoint.number if run.now.checkpoint else 0
    trained = run.now.records.trained
    chaos.wait_for_event("disk", timeout_seconds=60.0)
    run.wait_for("training goes on", lambda: run.now.records.trained > trained, 30.0)
    filler.unlink()
    chaos.strike("room again")
    run.wait_for(
        "a checkpoint after that",
        lambda: run.now.checkpoint is not None and run.now.checkpoint.number > taken,
        60.0,
    )


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Mapping[str, Any]]:
    """A disk of 400 MB for the checkpoints of the run in `folder`; a run at full size needs 200."""
    target = folder / "run" / "checkpoints"
    target.mkdir(parents=True)
    # What makes it a run folder, which a folder with other files is not.
    (folder / "run" / ".lock").touch()
    options = ["-t", "tmpfs", "-o", "size=400m", "chaos", str(target)]
    subprocess.run(["mount", *options], check=True)
    try:
        yield {}
    finally:
        subprocess.run(["umount", "--lazy", str(target)], check=True)


_STALL_SECONDS = 8.0


@contextlib.contextmanager
def disk_that_stalls(folder: Path) -> Iterator[Mapping[str, Any]]:
    """A file system of its own for the checkpoints, which can be frozen."""
    target, image = folder / "run" / "checkpoints", folder / "disk"
    target.mkdir(parents=True)
    (folder / "run" / ".lock").touch()
    with image.open("wb") as file:
        file.truncate(2 << 30)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(target)], check=True)
    shutil.rmtree(target / "lost+found")
    try:
        yield {}
    finally:
        subprocess.run(["umount", "--lazy", str(target)], check=True)


def stall_disk(chaos: Disturbance) -> None:
    """The disk takes nothing for eight seconds while a cut is written, three times."""
    run = chaos.run
    folder = run.output / "checkpoints"
    run.wait_for("a checkpoint", lambda: run.now.checkpoint is not None, 300.0)
    restarts = sum(run.restarts.values())
    for part in (0.1, 0.3, 0.5):
        chaos.wait_for_moment(part, part + 0.05)
        taken = _cut(run)
        run.wait_for("a new checkpoint", lambda t=taken: _cut(run) > t, 120.0)
        before = run.now
        # The next one begins while nothing can be written.
        subprocess.run(["fsfreeze", "--freeze", str(folder)], check=True)
        try:
            chaos.strike(f"the disk stands still for {_STALL_SECONDS:g} s")
            time.sleep(_STALL_SECONDS)
        finally:
            subprocess.run(["fsfreeze", "--unfreeze", str(folder)], check=True)
        frozen = _cut(run)
        # The cut at the end of an epoch is waited for, and so is its validation.
        is_same_epoch = {before.state, run.now.state} == {"training"}
        chaos.expect(
            not is_same_epoch or run.now.records.trained > before.records.trained,
            "training stood still with the disk",
        )
        run.wait_for("a checkpoint after that", lambda f=frozen: _cut(run) > f, 60.0)
    found = sum(run.restarts.values())
    chaos.expect(found == restarts, f"{found - restarts} members were restarted for a slow disk")


def _cut(run: WatchedRun) -> int:
    return 0 if run.now.checkpoint is None else run.now.checkpoint.number


# etcd.

_ETCD: dict[str, Any] = {}


@contextlib.contextmanager
def real_etcd(folder: Path) -> Iterator[Mapping[str, Any]]:
    """An etcd server for the ledger."""
    from tests.etcd.etcd_server import EtcdServer, obtain_etcd

    with EtcdServer(obtain_etcd(), folder / "etcd") as server:
        _ETCD["server"] = server
        yield {"ledger": {"etcd": server.url, "prefix": "/chaos/"}}


def restart_etcd(chaos: Disturbance) -> None:
    """The store etcd is killed and back after three seconds."""
    chaos.wait_for_moment()
    chaos.require_at_work("worker", 0)
    _ETCD["server"].kill()
    chaos.strike("SIGKILL to etcd")
    time.sleep(3.0)
    _ETCD["server"].start()
    chaos.strike("etcd is back")


def stall_etcd(chaos: Disturbance) -> None:
    """The store etcd hangs for longer than the lock's lease."""
    chaos.wait_for_moment()
    chaos.require_at_work("worker", 0)
    _ETCD["server"].stall()
    chaos.strike("SIGSTOP to etcd")
    time.sleep(9.0)
    _ETCD["server"].go_on()
    chaos.strike("SIGCONT to etcd")


def take_lock_away(chaos: Disturbance) -> None:
    """The lock of the master is deleted: it ends, another begins."""
    from tests.etcd.etcd_server import delete_keys

    chaos.wait_for_moment()
    member = chaos.require_at_work("master", 0)
    deleted = delete_keys(_ETCD["server"].url, "/chaos/", ending="/lock")
    if deleted != 1:
        raise MissedError(f"{deleted} locks were found")
    chaos.strike("the master's lock deleted")
    chaos.wait_until_replaced(member)


# A crash loop.

BUGGY_MODEL = '''
"""DeepFM's linear part, and a bug that begins when a file appears."""

from pathlib import Path

import keras


def build_model(inputs, options):
    if Path(options["bug"]).exists():
        raise ValueError("a bug in my model")
    return keras.ops.squeeze(keras.layers.Dense(1)(inputs.flat_BK), axis=-1)
'''


def crash_loop(chaos: Disturbance) -> None:
    """Every new worker fails from some moment on: the run stops with its traceback."""
    chaos.wait_for_moment()
    (chaos.run.folder / "bug").touch()
    for index in _indices(chaos, "worker"):
        with contextlib.suppress(MissedError):
            chaos.signal("worker", index, KILL)
    code = chaos.run.wait(300.0)
    text = chaos.run.log.read_text(encoding="utf-8", errors="replace")
    chaos.expect(code == 1, f"exit code {code} instead of 1")
    chaos.expect("a bug in my model" in text, "the worker's own error is not told")
    chaos.expect("Traceback" in text, "the worker's traceback is not told")


# Helpers of the above.


def _indices(chaos: Disturbance, role: Role) -> list[int]:
    return [
        member.index
        for member in chaos.run.now.members
        if member.role == role and member.state != "left"
    ]


def _restarts(chaos: Disturbance, role: Role) -> int:
    return sum(count for (one, _), count in chaos.run.restarts.items() if one == role)


def _kill_together(chaos: Disturbance, *members: tuple[Role, int]) -> None:
    chaos.wait_for_moment()
    found = [chaos.require_at_work(role, index) for role, index in members]
    for member in found:
        chaos.run.send(member.pid, KILL)
    chaos.strike("SIGKILL to " + " and ".join(f"{role} {index}" for role, index in members))
    for member in found:
        chaos.wait_until_replaced(member)


def _resume(chaos: Disturbance) -> None:
    chaos.run.start(chaos.command, "--resume")
    chaos.resumed = True
    chaos.run.wait_for("running steps", chaos.run.is_training, 120.0)


def _newest_file(folder: Path) -> Path:
    """The largest file that the newest cut wrote. Files of old cuts may vanish while it looks."""
    found: list[tuple[Path, os.stat_result]] = []
    for path in (folder / "parts").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append((path, path.stat()))
    newest = max(stat.st_mtime for _, stat in found)
    recent = [(stat.st_size, path) for path, stat in found if newest - stat.st_mtime < 2.0]
    return max(recent)[1]


@contextlib.contextmanager
def _slowed(chaos: Disturbance, role: Role, index: int, *, fraction: float) -> Iterator[None]:
    """A member stands still for a fraction of the time."""
    member = chaos.require_at_work(role, index)
    chaos.strike(f"{role} {index} stands still for {fraction:.0%} of the time")
    with slowed(member.pid, fraction):
        yield


_THREE_WORKERS = {"workers": {"min": 1, "max": 3}}

FAULTS: tuple[Fault, ...] = (
    Fault(
        "worker_killed",
        "worker `kill -9`",
        kill_worker,
        most_stall_seconds=2.0,
        most_repeated_seconds=1.0,
    ),
    Fault(
        "all_workers_killed", "all workers `kill -9`", kill_all_workers, most_repeated_seconds=1.0
    ),
    Fault(
        "worker_killed_every_20s",
        "a worker `kill -9` every 20 s",
        kill_workers_again_and_again,
        most_stall_seconds=2.0,
        most_repeated_seconds=1.0,
        least_goodput=0.75,
        is_alone=True,
    ),
    Fault(
        "worker_hung",
        "worker SIGSTOP for good",
        suspend_worker,
        most_stall_seconds=2.0,
    ),
    Fault(
        "worker_zombie",
        "worker SIGSTOP beyond its lease, then SIGCONT",
        wake_up_zombie,
        runtime=_THREE_WORKERS,
        is_first=True,
    ),
    Fault(
        "worker_out_of_memory",
        "worker out of memory",
        squeeze_worker,
        needs_root=True,
        is_alone=True,
    ),
    Fault(
        "worker_crash_loop",
        "bug in the model's file: crash loop",
        crash_loop,
        config={"model": {"name": "custom", "file": "buggy_model.py"}},
        ends=1,
    ),
    Fault(
        "starts_refused",
        "no process or thread starts for 30 s, a worker and a PS `kill -9`",
        refuse_starts,
        most_stall_seconds=60.0,
        needs_root=True,
    ),
    Fault("worker_slow", "slow worker", slow_down_worker, runtime=_THREE_WORKERS),
    Fault("ps_killed", "PS `kill -9`", kill_server, most_stall_seconds=10.0),
    Fault("all_ps_killed", "all PS `kill -9`", kill_all_servers, most_stall_seconds=10.0),
    Fault(
        "ps_killed_in_validation",
        "PS `kill -9` while an epoch is validated",
        kill_server_in_state("validating"),
        is_alone=True,
    ),
    Fault(
        "ps_killed_in_scoring",
        "PS `kill -9` while the test rows are scored",
        kill_server_in_state("scoring"),
        is_alone=True,
    ),
    Fault(
        "ps_killed_after_training",
        "all PS `kill -9` before export and proof",
        kill_servers_after_training,
        is_alone=True,
    ),
    Fault("ps_hung", "PS SIGSTOP for good", suspend_server, most_stall_seconds=10.0),
    Fault(
        "ps_killed_between_acks",
        "PS `kill -9` between two PS's acknowledgements",
        kill_server_between_acknowledgements,
        most_stall_seconds=10.0,
        is_core=True,
    ),
    Fault(
        "worker_killed_between_acks",
        "worker `kill -9` between two PS's acknowledgements",
        kill_worker_between_acknowledgements,
        most_stall_seconds=2.0,
        most_repeated_seconds=1.0,
    ),
    Fault("ps_slow", "slow PS", slow_down_server),
    Fault("master_killed", "master `kill -9`", kill_master, most_stall_seconds=5.0),
    Fault("master_suspended", "master SIGSTOP for 8 s", suspend_master),
    Fault(
        "master_and_worker_killed",
        "master and a worker `kill -9`",
        kill_master_and_worker,
        most_stall_seconds=5.0,
    ),
    Fault(
        "master_and_ps_killed",
        "master and a PS `kill -9`",
        kill_master_and_server,
        most_stall_seconds=5.0,
    ),
    Fault(
        "everything_killed", "everything `kill -9`, then --resume", kill_everything, is_core=True
    ),
    Fault("launcher_killed", "launcher `kill -9`, then --resume", kill_launcher),
    Fault("machine_suspended", "everything SIGSTOP for 20 s", suspend_everything),
    Fault("scaled", "scale 1 → 4 → 2", scale_up_and_down, runtime=_THREE_WORKERS),
    Fault(
        "move_source_killed",
        "2 → 3 → 2 PS, the one that gives `kill -9`",
        kill_while_partitions_move("ps", 0),
        most_stall_seconds=10.0,
    ),
    Fault(
        "move_target_killed",
        "2 → 3 → 2 PS, the one that takes `kill -9`",
        kill_while_partitions_move("ps", 2),
        most_stall_seconds=10.0,
    ),
    Fault(
        "move_master_killed",
        "2 → 3 → 2 PS, master `kill -9`",
        kill_while_partitions_move("master", 0),
        most_stall_seconds=5.0,
        most_repeated_seconds=1.0,
    ),
    Fault("garbage", "garbage on every port", send_garbage_everywhere),
    Fault(
        "checkpoint_truncated",
        "checkpoint truncated, PS `kill -9`",
        spoil_checkpoint("truncated"),
        is_of_disk=True,
    ),
    Fault(
        "checkpoint_flipped",
        "checkpoint bit-flipped, PS `kill -9`",
        spoil_checkpoint("flipped"),
        is_core=True,
        is_of_disk=True,
    ),
    Fault(
        "checkpoint_file_missing",
        "a PS's file missing, PS `kill -9`",
        spoil_checkpoint("gone"),
        is_of_disk=True,
    ),
    Fault(
        "checkpoints_away",
        "checkpoints' folder away for 60 s, PS `kill -9`",
        take_checkpoints_away,
        most_stall_seconds=90.0,
        is_of_disk=True,
    ),
    Fault(
        "checkpoint_unreadable",
        "a checkpoint unreadable for 60 s, PS `kill -9`",
        make_checkpoint_unreadable,
        most_stall_seconds=90.0,
        is_of_disk=True,
    ),
    Fault("ledger_lost", "ledger deleted, master `kill -9`", lose_ledger, most_stall_seconds=10.0),
    Fault(
        "disk_full",
        "disk full in a checkpoint",
        fill_disk,
        surroundings=small_disk,
        needs_root=True,
        is_of_disk=True,
    ),
    Fault(
        "disk_stalled",
        "checkpoints' disk stands still for 8 s in three cuts",
        stall_disk,
        # The cut at the end of an epoch waits for the disk, and may have failed once before that.
        most_stall_seconds=20.0,
        surroundings=disk_that_stalls,
        needs_root=True,
        is_of_disk=True,
    ),
    Fault("etcd_restarted", "etcd `kill -9`, back in 3 s", restart_etcd, surroundings=real_etcd),
    Fault("etcd_stalled", "etcd SIGSTOP for 9 s", stall_etcd, surroundings=real_etcd),
    Fault(
        "etcd_lock_lost",
        "the master's lock in etcd deleted",
        take_lock_away,
        surroundings=real_etcd,
        is_core=True,
    ),
)
"""Faults in the order of the table; those of the network have a module of their own."""
