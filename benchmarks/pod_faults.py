"""What befalls the pods of a job on a test cluster, and how the job recovers from it.

Left out are a driver whose node is cut off, which nothing replaces before the node is back, and
which then goes on; a driver that fails at each start, which Kubernetes starts ever more seldom; and
one that is deleted by force, beside which Kubernetes starts none while it may run.
"""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from job_watch import OverdueError
from pod_run import PodRun

from ctr_pipeline.distributed.coordination.messages import Role
from tests.cluster.kubernetes_cluster import ClusterError, waiting_pod
from tests.cluster.python_image import CTRPIPE_IMAGE

FIRST_NODE, SECOND_NODE = "node0", "node1"
_RECOVERY_SECONDS = 240.0
_BY_FORCE = ("--grace-period=0", "--force")
_FILL_MEMORY = """
import os, signal, time
read, write = os.pipe()
signal.alarm(60)
while os.fork():
    os.read(read, 1)
block = b"x" * (256 << 20)
os.write(write, b"x")
time.sleep(60)
"""
"""One process after the other takes a block, so that the largest in the pod is the member."""
_FAILED_STARTS = 2
"""After a third one of a server, the job would fail."""

Strike = Callable[[PodRun, Sequence[Role]], contextlib.AbstractContextManager[None]]
"""Does it to the first pods of roles; what it changed around them is mended at the end."""


@dataclass(frozen=True)
class Fault:
    """One kind of fault.

    Attributes:
        name: For `--fault`, and for tables.
        strike: Does it.
        hits: The roles that it is done to; several roles of one entry at the same time.
        told: Words of `status`, of which it says one; the first of them if it can.
        is_held: No other pod can run before the end of the strike.
        on_second_node: The pods are moved there before.
    """

    name: str
    strike: Strike
    hits: tuple[tuple[Role, ...], ...]
    told: tuple[str, ...]
    is_held: bool = False
    on_second_node: bool = False


@dataclass(frozen=True)
class Recovery:
    """What one fault cost.

    Attributes:
        may_run_seconds: From the fault until Kubernetes had a place for another pod and, if the
            fault keeps pods from running, its end; to the second.
        back_seconds: From then until the last one was in its place; the master is once steps run.
        pause_seconds: Longest pause between counts of records; of a fault that keeps pods from
            running, after its end.
        repeated: Records computed again.
        others: Members started again that were not hit.
        told: What `status` said of it.
    """

    may_run_seconds: float
    back_seconds: float
    pause_seconds: float
    repeated: int
    others: int
    told: str


@contextlib.contextmanager
def kill(run: PodRun, roles: Sequence[Role]) -> Iterator[None]:
    """SIGKILL."""
    for role in roles:
        run.cluster.crash_pod(run.name, run.first_pod(role))
    yield


@contextlib.contextmanager
def delete(run: PodRun, roles: Sequence[Role]) -> Iterator[None]:
    """As a person does: the pods are asked to end."""
    run.delete_pods(roles)
    yield


@contextlib.contextmanager
def delete_by_force(run: PodRun, roles: Sequence[Role]) -> Iterator[None]:
    """As an impatient person does."""
    run.delete_pods(roles, *_BY_FORCE)
    yield


@contextlib.contextmanager
def evict(run: PodRun, roles: Sequence[Role]) -> Iterator[None]:
    """Through the API for evictions."""
    for role in roles:
        run.cluster.evict_pod(run.name, run.first_pod(role))
    yield


@contextlib.contextmanager
def drain(run: PodRun, roles: Sequence[Role]) -> Iterator[None]:
    """Evicted, and their node takes no others meanwhile."""
    with _cordoned(run, roles), evict(run, roles):
        yield


@contextlib.contextmanager
def delete_where_no_node_is_free(run: PodRun, roles: Sequence[Role]) -> Iterator[None]:
    """Deleted, and no node takes others meanwhile."""
    with _cordoned(run, roles), delete(run, roles):
        yield


@contextlib.contextmanager
def preempt(run: PodRun, roles: Sequence[Role]) -> Iterator[None]:
    """A pod of a higher priority takes the node, and bears none of them beside it."""
    name = f"{run.name}-first"
    terms = [
        {
            "labelSelector": {"matchLabels": run.labels_of(role)},
            "topologyKey": "kubernetes.io/hostname",
        }
        for role in roles
    ]
    run.cluster.make_priority_class(name, 1000)
    run.cluster.apply(
        waiting_pod(
            run.name,
            name,
            1,
            priorityClassName=name,
            nodeSelector={"kubernetes.io/hostname": run.node_of(roles[0])},
            affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
        )
    )
    try:
        yield
    finally:
        run.cluster.kubectl("delete", "pod", name, "--namespace", run.name, "--grace-period=1")
        run.cluster.kubectl("delete", "priorityclass", name)


@contextlib.contextmanager
def exhaust_memory(run: PodRun, roles: Sequence[Role]) -> Iterator[None]:
    """Processes in the pod fill its memory, and the kernel kills the largest one."""
    for role in roles:
        pod = run.first_pod(role)
        # The command ends with the pod.
        with contextlib.suppress(ClusterError):
            run.cluster.kubectl(
                "exec", pod, "--namespace", run.name, "--", "python", "-c", _FILL_MEMORY
            )
    yield


@contextlib.contextmanager
def delete_without_image(run: PodRun, roles: Sequence[Role]) -> Iterator[None]:
    """Deleted, and their node lacks the image meanwhile."""
    with run.cluster.without_image(run.node_of(roles[0]), CTRPIPE_IMAGE), delete(run, roles):
        yield


@contextlib.contextmanager
def fail_at_each_start(run: PodRun, roles: Sequence[Role]) -> Iterator[None]:
    """Killed, and those that start meanwhile cannot read the config."""
    config = run.work / "runs" / run.name / "config.resolved.yaml"
    mode, began_at = config.stat().st_mode, time.time()
    config.chmod(0)
    try:
        run.delete_pods(roles, *_BY_FORCE)

        def have_failed() -> bool:
            what = [event.what for event in run.now.events if event.time >= began_at]
            return sum(" failed" in one for one in what) >= _FAILED_STARTS * len(roles)

        run.wait_for("starts that fail", have_failed, _RECOVERY_SECONDS)
        yield
    finally:
        config.chmod(mode)


@contextlib.contextmanager
def lose_node(run: PodRun, roles: Sequence[Role]) -> Iterator[None]:
    """The second node ends at once with all that runs there, and comes back later."""
    cluster, index = run.cluster, int(SECOND_NODE.removeprefix("node"))
    cluster.kill_node(index)
    with contextlib.ExitStack() as node:
        node.callback(cluster.start_node, index)
        if "master" in roles:
            cluster.wait_for(lambda: not cluster.node_is_ready(SECOND_NODE), "lost node")
            # Before, nothing would replace a driver.
            node.close()
        yield


@contextlib.contextmanager
def cut_off_node(run: PodRun, roles: Sequence[Role]) -> Iterator[None]:
    """The second node is cut off with all that runs there, which others replace; it comes back.

    First its network does, so that the members there call again, with no kubelet to end them.

    Raises:
        OverdueError: They were not sent away, or their pods did not end.
    """
    cluster, index = run.cluster, int(SECOND_NODE.removeprefix("node"))
    zombies = run.pods_on(SECOND_NODE)
    cluster.signal_program(SECOND_NODE, "kubelet", signal.SIGKILL)
    cluster.cut_node(index)
    try:
        yield
        if run.pods_on(SECOND_NODE) != zombies:
            raise OverdueError("pods of a node that is cut off ended without a word of that node")
        logs = [run.work / f"runs/{run.name}/logs/{role}-0.log" for role in roles]
        written = [len(log.read_text()) for log in logs]
        cluster.heal_node(index)

        def were_sent_away() -> bool:
            told = [log.read_text()[start:] for log, start in zip(logs, written, strict=True)]
            return all("The master says to leave" in text for text in told)

        run.wait_for("members that are sent away", were_sent_away, _RECOVERY_SECONDS)
    finally:
        cluster.heal_node(index)
        cluster.start_again(SECOND_NODE, "kubelet")
    run.wait_for("the end of their pods", lambda: not run.pods_on(SECOND_NODE), _RECOVERY_SECONDS)


_WORKER: tuple[Role, ...] = ("worker",)
_SERVER: tuple[Role, ...] = ("ps",)
_MASTER: tuple[Role, ...] = ("master",)
_BOTH: tuple[Role, ...] = ("ps", "worker")
_EACH = (_WORKER, _SERVER, _MASTER)
_NO_NODE = "no node can take it"
_LOST = "master was lost"
"""What the next master says."""

_FAULTS = (
    Fault("killed", kill, _EACH, ("was killed", _LOST)),
    Fault("deleted", delete, _EACH, ("is asked to end", "was ended by SIGTERM", _LOST)),
    Fault("deleted by force", delete_by_force, (_WORKER, _SERVER), ("was killed",)),
    Fault("evicted", evict, _EACH, ("was evicted", _LOST)),
    Fault("drained", drain, (_BOTH, _MASTER), (_NO_NODE,), is_held=True),
    Fault("preempted", preempt, _EACH, ("gave way", _NO_NODE), is_held=True),
    Fault("out of memory", exhaust_memory, _EACH, ("ran out of memory", _LOST)),
    Fault("no node", delete_where_no_node_is_free, _EACH, (_NO_NODE,), is_held=True),
    Fault("no image", delete_without_image, _EACH, ("its image cannot be pulled",), is_held=True),
    Fault("crash loop", fail_at_each_start, (_WORKER, _SERVER), ("failed",), is_held=True),
    Fault(
        "node lost",
        lose_node,
        (_BOTH, _MASTER),
        ("not heard", _LOST),
        on_second_node=True,
    ),
    Fault("node cut off", cut_off_node, (_BOTH,), ("not heard",), on_second_node=True),
)
FAULTS: Mapping[str, Fault] = {fault.name: fault for fault in _FAULTS}


def undergo(run: PodRun, fault: Fault, roles: Sequence[Role]) -> Recovery:
    """Does a fault to a job that trains, and waits until it trains again with others in place.

    Raises:
        OverdueError: It does not in time, or `status` does not name the fault.
    """
    if fault.on_second_node:
        _move_to_second_node(run, roles)
    with run.cluster.only_on(FIRST_NODE):
        return _undergo(run, fault, roles)


def _undergo(run: PodRun, fault: Fault, roles: Sequence[Role]) -> Recovery:
    run.wait_for("running steps", run.is_training, _RECOVERY_SECONDS)
    are_next = [run.watch_for_next(role) for role in roles]
    before, repeated = run.incarnations(), run.now.records.repeated
    began, began_at = time.monotonic(), time.time()

    def are_back() -> bool:
        is_led = "master" not in roles or run.is_training()
        return is_led and all(is_next() for is_next in are_next)

    def what_is_told() -> str:
        said = _say(run, roles, began_at)
        return next((one for word in fault.told for one in said if word in one), "")

    what = f"{fault.name}: {' and '.join(roles)}"
    with fault.strike(run, roles):
        run.wait_for(what, what_is_told if fault.is_held else are_back, _RECOVERY_SECONDS)
        told, back, since = what_is_told(), time.monotonic(), began
    if fault.is_held:
        since = time.monotonic()
        run.wait_for(what, are_back, _RECOVERY_SECONDS)
        back = time.monotonic()
    run.wait_for("running steps", run.is_training, _RECOVERY_SECONDS)
    pauses = run.progress_seconds(since, time.monotonic())
    if not (told := told or what_is_told()):
        raise OverdueError(f"{what}: status says {_say(run, roles, began_at)}")
    placed_at = max(run.placed_at(role) for role in roles)
    may_run = max(began + placed_at - began_at, since)
    now = run.incarnations()
    hit = {f"{role}-0" for role in roles}
    return Recovery(
        may_run_seconds=may_run - began,
        back_seconds=max(back - may_run, 0.0),
        pause_seconds=pauses[0] if pauses else 0.0,
        repeated=run.now.records.repeated - repeated,
        others=sum(now.get(name) != before[name] for name in before.keys() - hit),
        told=told,
    )


def _say(run: PodRun, roles: Sequence[Role], since: float) -> list[str]:
    """What `status` says of the first members of roles, and of what happened since a time."""
    waits = [run.member_view(role, 0).waits_for for role in roles]
    events = [event.sentence for event in run.now.events if event.time >= since]
    return [one for one in (*waits, run.summary.reason, *events) if one]


def _move_to_second_node(run: PodRun, roles: Sequence[Role]) -> None:
    are_next = [run.watch_for_next(role) for role in roles]

    def are_there() -> bool:
        return all(is_next() for is_next in are_next)

    with run.cluster.only_on(SECOND_NODE), delete(run, roles):
        run.wait_for(f"{' and '.join(roles)} on {SECOND_NODE}", are_there, _RECOVERY_SECONDS)


@contextlib.contextmanager
def _cordoned(run: PodRun, roles: Sequence[Role]) -> Iterator[None]:
    node = run.node_of(roles[0])
    run.cluster.kubectl("cordon", node)
    try:
        yield
    finally:
        run.cluster.kubectl("uncordon", node)
