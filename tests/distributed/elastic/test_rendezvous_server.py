"""The rendezvous over real connections."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from ctr_pipeline.distributed.coordination.rendezvous import (
    EXIT_TAG,
    NodeRange,
    RendezvousTimes,
    World,
)
from ctr_pipeline.distributed.elastic.client import RendezvousClient
from ctr_pipeline.distributed.elastic.secrets import load_access, make_access
from ctr_pipeline.distributed.elastic.service import RendezvousServer
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.failures import CallRefused, PeerUnavailable
from ctr_pipeline.errors import CtrPipelineError, RunFolderError
from tests.distributed.waiting import wait_until

TIMES = RendezvousTimes(gather_seconds=0.3, lease_seconds=2.0)
NODES = NodeRange(2, 3)


class Served:
    """A rendezvous, and clients of it whose calls run in threads."""

    def __init__(self, stack, times=TIMES):
        self._stack = stack
        self.access = Access.within_process()
        self.server = stack.enter_context(RendezvousServer("127.0.0.1:0", self.access, times))
        self.threads = stack.enter_context(ThreadPoolExecutor(16))

    def client(self, address):
        client = RendezvousClient(self.server.address, address, self.access)
        self._stack.callback(client.close)
        return client

    def join(self, client, **options):
        options = {"nodes": NODES, "timeout_seconds": 30.0, **options}
        return self.threads.submit(lambda: client.get_cluster_spec(**options))

    def form(self, *addresses):
        """Clients in a world of that order."""
        clients = []
        calls = []
        for number, address in enumerate(addresses):
            clients.append(self.client(address))
            calls.append(self.join(clients[-1]))
            wait_until(lambda number=number: len(self.server.nodes) > number)
        for call in calls:
            call.result(60)
        return clients


@pytest.fixture
def served():
    with ExitStack() as stack:
        yield Served(stack)


def test_bringup(served):
    assert int(served.server.address.rpartition(":")[2]) > 0
    assert not served.server.wait_until_finished(0.0)


def test_single_connect(served):
    call = served.join(served.client("a:1"), nodes=NodeRange(1, 3))
    assert call.result(60) == World(1, ("a:1",), 0)


def test_multi_connect(served):
    clients = [served.client(f"{name}:1") for name in "abc"]
    worlds = [call.result(60) for call in [served.join(client) for client in clients]]
    assert {world.rank for world in worlds} == {0, 1, 2}
    for client, world in zip(clients, worlds, strict=True):
        assert world.addresses[world.rank] == client.address


@pytest.mark.slow
def test_rendezvous_times_out_with_too_few_nodes(served):
    with pytest.raises(PeerUnavailable):
        served.client("a:1").get_cluster_spec(NODES, timeout_seconds=0.6)


def test_waiting_workers(served):
    first, second = served.form("a:1", "b:1")
    assert first.get_waiting_nodes(1) == 0
    late = served.join(served.client("c:1"))
    wait_until(lambda: first.get_waiting_nodes(1) == 1)
    assert second.get_waiting_nodes(1) == 1
    assert not late.done()


def test_reset_workers(served):
    first, second = served.form("a:1", "b:1")
    late = served.join(served.client("c:1"))
    wait_until(lambda: first.get_waiting_nodes(1) == 1)
    calls = [served.join(first), served.join(second), late]
    worlds = [call.result(60) for call in calls]
    assert [world.rank for world in worlds] == [0, 1, 2]
    assert {world.version for world in worlds} == {2}
    assert second.get_waiting_nodes(2) == 0


@pytest.mark.slow
def test_a_member_that_falls_silent_is_lost():
    with ExitStack() as stack:
        served = Served(stack, RendezvousTimes(gather_seconds=0.3, lease_seconds=0.5))
        first, _ = served.form("a:1", "b:1")
        wait_until(lambda: first.get_waiting_nodes(1) == -1)


def test_a_member_whose_process_ends_while_it_waits_is_lost(served):
    waiting = served.client("a:1")
    call = served.join(waiting)
    wait_until(lambda: served.server.nodes)
    waiting.cancel()
    with pytest.raises(PeerUnavailable):
        call.result(60)
    wait_until(lambda: not served.server.nodes)


def test_synchronize(served):
    first, second = served.form("a:1", "b:1")
    call = served.threads.submit(first.synchronize, "step", "12", 30.0)
    assert second.synchronize("step", "13", 60.0) == ("12", "13")
    assert call.result(60) == ("12", "13")


@pytest.mark.slow
def test_synchronize_fail(served):
    first, _ = served.form("a:1", "b:1")
    with pytest.raises(CallRefused, match="b:1 did not come") as caught:
        first.synchronize("step", "12", 0.3)
    assert caught.value.code == "timeout"


@pytest.mark.slow
def test_barrier(served):
    first, second = served.form("a:1", "b:1")
    call = served.threads.submit(first.barrier, "epoch", 30.0)
    time.sleep(0.1)
    assert not call.done()
    second.barrier("epoch", 60.0)
    call.result(60)


@pytest.mark.slow
def test_barrier_fail(served):
    first, _ = served.form("a:1", "b:1")
    with pytest.raises(CallRefused, match="b:1 did not come") as caught:
        first.barrier("epoch", 0.3)
    assert caught.value.code == "timeout"


def test_the_server_knows_when_the_job_has_finished(served):
    first, second = served.form("a:1", "b:1")
    call = served.threads.submit(first.barrier, EXIT_TAG, 30.0)
    second.barrier(EXIT_TAG, 60.0)
    call.result(60)
    first.leave()
    assert not served.server.wait_until_finished(0.0)
    second.leave()
    assert served.server.wait_until_finished(60.0)


def test_worlds_of_a_server_that_comes_after_are_later_ones(tmp_path):
    access = Access.within_process()
    for versions in ((1, 2), (3, 4)):
        with RendezvousServer("127.0.0.1:0", access, TIMES, worlds=tmp_path / "newest") as server:
            client = RendezvousClient(server.address, "a:1", access)
            for version in versions:
                world = client.get_cluster_spec(NodeRange(1, 1), reset=True, timeout_seconds=30.0)
                assert world.version == version
            client.close()


@pytest.mark.parametrize("content", [b"", b"7 or 8", b"\xff"])
def test_a_damaged_file_of_worlds_is_named(tmp_path, content):
    (tmp_path / "newest").write_bytes(content)
    access = Access.within_process()
    with pytest.raises(RunFolderError, match=r"newest: cannot be read as .* remove the file"):
        RendezvousServer("127.0.0.1:0", access, TIMES, worlds=tmp_path / "newest")


def test_rendezvous_admits_only_holders_of_the_access_folder(tmp_path):
    assert make_access(tmp_path / "one")
    assert not make_access(tmp_path / "one")
    make_access(tmp_path / "other")
    with RendezvousServer("127.0.0.1:0", load_access(tmp_path / "one", "master"), TIMES) as server:
        for folder, seconds, expected in (("one", 30.0, World), ("other", 0.6, PeerUnavailable)):
            client = RendezvousClient(
                server.address, "a:1", load_access(tmp_path / folder, "worker")
            )
            try:
                found = client.get_cluster_spec(NodeRange(1, 1), timeout_seconds=seconds)
            except PeerUnavailable as error:
                found = error
            client.close()
            assert isinstance(found, expected)


def test_an_empty_access_folder_is_explained(tmp_path):
    with pytest.raises(CtrPipelineError, match="elastic-rendezvous"):
        load_access(tmp_path, "worker")
