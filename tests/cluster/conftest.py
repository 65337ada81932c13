"""Fixtures of tests with a real Kubernetes."""

import os
import uuid
from collections.abc import Iterator

import pytest

from tests.cluster.cluster_binaries import NoBinaries, find_binaries
from tests.cluster.kubernetes_cluster import Cluster
from tests.cluster.namespaces import missing_rights, this_process
from tests.cluster.python_image import load_python_image

RUNNING = "CTRPIPE_TEST_CLUSTER"


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster of two nodes, or the one that runs under the name CTRPIPE_TEST_CLUSTER."""
    if lack := missing_rights():
        pytest.skip(f"no Kubernetes can be started here: {lack}")
    if name := os.environ.get(RUNNING):
        yield Cluster(name)
        return
    try:
        find_binaries()
    except NoBinaries as error:
        pytest.skip(str(error))
    one = Cluster(f"test-{os.getpid()}")
    one.start(nodes=2, owner=this_process())
    try:
        yield one
    finally:
        one.stop()


@pytest.fixture(scope="session")
def python_image(cluster: Cluster) -> str:
    """The name of an image with Python alone, loaded on all nodes."""
    return load_python_image(cluster)


@pytest.fixture(scope="session")
def ctrpipe_image(cluster: Cluster) -> None:
    """All nodes have the image of ctrpipe of this tree.

    A cluster that ran already has it, as somebody loaded it.
    """
    if RUNNING not in os.environ:
        load_python_image(cluster, packages=True)


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A restricted namespace of its own."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    cluster.make_namespace(name)
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")
