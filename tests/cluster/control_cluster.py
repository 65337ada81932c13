"""Starts and stops a test cluster by hand.

python -m tests.cluster.control_cluster up --nodes 2
python -m tests.cluster.control_cluster enter kubectl get nodes
python -m tests.cluster.control_cluster load IMAGE.tar
python -m tests.cluster.control_cluster down
"""

import argparse
import os
import sys
from pathlib import Path

from tests.cluster.cluster_binaries import NoBinaries, find_binaries
from tests.cluster.kubernetes_cluster import Cluster, ClusterError
from tests.cluster.namespaces import missing_rights


def main() -> None:
    parser = argparse.ArgumentParser(description="Starts and stops a test cluster")
    parser.add_argument("--name", default="default", help="of the cluster")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check", help="say whether one can be started here")
    commands.add_parser("up", help="start it").add_argument("--nodes", type=int, default=2)
    commands.add_parser("down", help="stop it, also after a crash")
    commands.add_parser("load", help="import an image on all nodes").add_argument("archive")
    enter = commands.add_parser("enter", help="run a command in its network")
    enter.add_argument("words", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    if lack := missing_rights():
        sys.exit(f"No test cluster can be started here: {lack}")
    cluster = Cluster(arguments.name)
    if arguments.command == "check":
        sys.stdout.write("A test cluster can be started here\n")
    elif arguments.command == "up":
        cluster.start(arguments.nodes)
        sys.stdout.write(
            f"KUBECONFIG={cluster.kubeconfig()}\n"
            f"Next: {sys.executable} -m tests.cluster.control_cluster --name {cluster.name} "
            "enter kubectl get nodes\n"
        )
    elif arguments.command == "down":
        cluster.stop()
    elif not cluster.running:
        sys.exit(f"Cluster '{cluster.name}' does not run: 'up' starts it")
    elif arguments.command == "load":
        cluster.load_image(Path(arguments.archive))
    else:
        words = arguments.words or [os.environ.get("SHELL", "/bin/sh")]
        if words[0] == "kubectl":
            words[0:1] = [str(find_binaries() / "bin" / "kubernetes"), "kubectl"]
        os.environ.setdefault("KUBECONFIG", str(cluster.kubeconfig()))
        command = cluster.inside(words)
        os.execvp(command[0], command)  # noqa: S606


if __name__ == "__main__":
    try:
        main()
    except (ClusterError, NoBinaries, OSError, RuntimeError) as error:
        sys.exit(str(error))
