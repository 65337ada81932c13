"""Kills and drains pods of a job on Kubernetes before your eyes; nothing is lost.

A Kubernetes of two nodes starts on this machine, as root, in networks that lead nowhere, with an
image of this environment. `ctrpipe submit` trains there on a parameter server and two workers. The
pods of a worker, of the server and of the master are killed, one after the other; then the node of
the server is drained, which costs no record. What the job makes of it is shown as it happens. At
the end the report is fetched, the records are counted, and everything is removed but the output.

    export PYTHONPATH=.
    python benchmarks/kubernetes_demo.py configs/criteo_elastic.yaml --data FILE --output FOLDER
"""

import argparse
import contextlib
import sys
import time
from pathlib import Path
from typing import Any

from elastic_demo import Story, load_config, lose, sum_up, wait_until_trained
from job_watch import CommandError, MissedError, OverdueError
from pod_faults import FAULTS
from pod_run import ANY_NODE, PodRun, pod_config, started_cluster, volume_folder

from ctr_pipeline.distributed.coordination.messages import Role
from tests.cluster.cluster_binaries import NoBinaries
from tests.cluster.kubernetes_cluster import ClusterError
from tests.cluster.namespaces import missing_rights
from tests.cluster.python_image import CTRPIPE_IMAGE

_START_SECONDS = 300.0
_RUN_SECONDS = 1800.0
KILLED: tuple[Role, ...] = ("worker", "ps", "master")
"""One after the other."""


def kill(run: PodRun, story: Story, role: Role) -> None:
    """Ends the pod of a member, and waits until another one is in its place."""
    others = run.incarnations()

    def strike() -> str:
        with FAULTS["killed"].strike(run, (role,)):
            return f"kill -9 of all that runs in pod {pod}: {role}-0 is dead"

    pod, is_back = run.first_pod(role), run.watch_for_next(role)
    lose(run, story, f"{role}-0", strike, is_back)
    if role == "master":
        is_same = run.incarnations() == others
        same = "the same pods as before" if is_same else "not all the same pods as before"
        story.tell(f"         servers and workers are {same}")


def drain(run: PodRun, story: Story) -> bool:
    """Empties the node of the server, as before its maintenance; whether that cost no record."""
    node = run.node_of("ps")
    members = run.members_on(node)
    are_next = [run.watch_for_next(role, index) for role, index in members]
    names = ", ".join(sorted(f"{role}-{index}" for role, index in members))
    command = ("drain", node, "--force", "--delete-emptydir-data", "--ignore-daemonsets")

    def strike() -> str:
        run.cluster.kubectl(*command)
        return f"kubectl {' '.join(command)}: {names} were asked to end, and have ended"

    try:
        repeated = lose(run, story, names, strike, lambda: all(is_next() for is_next in are_next))
    finally:
        run.cluster.kubectl("uncordon", node)
    if repeated:
        story.tell(f"this is not as it should be: the drain cost {repeated:,} records")
    return not repeated


def show(run: PodRun, config: dict[str, Any], output: Path) -> int:
    """Submits the job, kills its pods, fetches, deletes; 1 if something is not as it should be."""
    story = Story(run)
    story.tell(f"ctrpipe submit {run.config_path}")
    run.call("submit", str(run.config_path))
    run.wait_for("training", run.is_training, _START_SECONDS)
    story.tell("training; 'ctrpipe jobs' shows")
    print(run.call("jobs", "--namespace", run.name))
    faults = len(KILLED) + 1
    for number, role in enumerate(KILLED, 1):
        wait_until_trained(run, story, number / (1 + faults))
        kill(run, story, role)
    wait_until_trained(run, story, faults / (1 + faults))
    is_free = drain(run, story)
    until = time.monotonic() + _RUN_SECONDS
    while not run.has_ended and time.monotonic() < until:
        story.tell_events()
        time.sleep(0.2)
    story.tell_events()
    if not run.has_ended or run.summary.state != "finished":
        raise OverdueError(f"the job is {run.summary.state}: {run.summary.reason}; {run.tail(30)}")
    story.tell(f"the job has ended: ctrpipe fetch {run.address} --output {output}")
    run.call("fetch", run.address, "--output", str(output))
    story.tell(f"ctrpipe delete {run.address}")
    left = run.delete()
    story.tell(f"left in the namespace: {', '.join(left) or 'nothing'}")
    code = sum_up(run.metrics(output), output / "report.html", config["train"]["epochs"], KILLED)
    return 1 if left or not is_free else code


def main() -> int:
    """Runs the demonstration; exit code 1 if it does not show what it claims."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", type=Path, help="Of a job in several processes.")
    parser.add_argument("--data", type=Path, required=True, help="Training rows.")
    parser.add_argument("--output", type=Path, required=True, help="Folder for what is fetched.")
    parser.add_argument("--epochs", type=int, default=20, help="Passes over the rows.")
    parser.add_argument("--cluster", help=f"One that runs and has the image {CTRPIPE_IMAGE}.")
    arguments = parser.parse_args()
    if lack := missing_rights():
        sys.exit(f"No Kubernetes can be started here: {lack}")
    config = pod_config(load_config(arguments.config, arguments.epochs))
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(volume_folder())
        cluster = stack.enter_context(started_cluster(arguments.cluster, nodes=2))
        stack.enter_context(cluster.network())
        run = PodRun(cluster, folder, config, arguments.data, name="demo", pods=ANY_NODE)
        stack.enter_context(run)
        try:
            return show(run, config, arguments.output.resolve())
        except (MissedError, OverdueError) as error:
            print(f"this did not go as it should: {error}")
            return 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ClusterError, CommandError, NoBinaries) as error:
        sys.exit(str(error))
