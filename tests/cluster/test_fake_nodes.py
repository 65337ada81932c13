"""Nodes that KWOK plays."""

import pytest

from tests.cluster.fake_nodes import ON_FAKE_NODES, fake_nodes
from tests.cluster.kubernetes_cluster import restricted_pod

pytestmark = [pytest.mark.cluster, pytest.mark.nightly, pytest.mark.slow]


def test_a_pod_on_such_a_node_counts_as_running_until_it_is_deleted(cluster, namespace):
    places = {
        "nodeSelector": ON_FAKE_NODES["node_selector"],
        "tolerations": list(ON_FAKE_NODES["tolerations"]),
    }
    with fake_nodes(cluster, 3):
        cluster.apply(restricted_pod(namespace, "played", "localhost/none:1", "", **places))
        pod = cluster.wait_for_phase(namespace, "played", "Running")
        assert pod["spec"]["nodeName"] in {"fake0", "fake1", "fake2"}
        cluster.kubectl("delete", "pod", "played", "--namespace", namespace)
        assert cluster.get("pods", "--namespace", namespace)["items"] == []
