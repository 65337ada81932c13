"""Fixtures of tests with a real Kubernetes."""

import os
import uuid
from collections.abc import Iterator

import pytest
from cluster_binaries import NoBinaries, find_binaries
from kubernetes_cluster import Cluster
from namespaces import missing_rights, this_process
from python_image import write_python_image


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A running cluster of two nodes with the image `localhost/python:1`."""
    if lack := missing_rights():
        pytest.skip(f"no Kubernetes can be started here: {lack}")
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
def python_image(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of an image with Python alone, loaded on all nodes."""
    archive = tmp_path_factory.mktemp("image") / "python.tar"
    name = "localhost/python:1"
    write_python_image(archive, name)
    cluster.load_image(archive)
    return name


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A restricted namespace of its own."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    cluster.make_namespace(name)
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")
