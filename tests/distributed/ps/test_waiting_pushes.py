"""Pushes that wait for their round, over the loopback device."""

import pytest

from ctr_pipeline.distributed.coordination.messages import SnapshotReply, SnapshotRequest
from ctr_pipeline.distributed.ps.service import SERVICE
from ctr_pipeline.distributed.rpc.client import RpcClient
from ctr_pipeline.distributed.rpc.packed import PushReply, Status
from ctr_pipeline.specs.course import UpdateRule
from tests.distributed.ps_requests import Caller, batch, counting, key

KEYS = (key(0, 1),)
NUM_WORKERS = 40
NUM_HANDLERS = 4


@pytest.fixture
def core(make_spec, make_core, make_optimizer):
    spec = counting(
        make_spec(update_rule=UpdateRule(update="sync", grads_to_wait=NUM_WORKERS)), make_optimizer
    )
    core = make_core(spec)
    Caller(core).init()
    Caller(core).pull(KEYS)
    core.updates.set_active_workers([str(number) for number in range(NUM_WORKERS)])
    return core


@pytest.fixture
def client(core, serve, access):
    served = serve([core], num_threads=NUM_HANDLERS)
    client = RpcClient(SERVICE, served.addresses[0], access)
    yield client
    client.close()


def start_push(client, core, worker):
    request = Caller(core, str(worker)).request(KEYS, batch(0, task=worker))
    return client.start_bytes("Push", request.encode(), deadline_seconds=60)


def statuses(calls):
    return [PushReply.decode(call.result()).status for call in calls]


def test_a_round_may_have_more_members_than_the_server_has_handlers(core, client):
    calls = [start_push(client, core, worker) for worker in range(NUM_WORKERS)]
    assert statuses(calls) == [Status.DONE] * NUM_WORKERS
    assert core.serving.version == 1
    assert Caller(core).values(KEYS)[0] == [float(NUM_WORKERS)]


def test_a_cut_is_not_queued_behind_waiting_pushes(core, client, tmp_path):
    (tmp_path / "checkpoints").mkdir(exist_ok=True)
    calls = [start_push(client, core, worker) for worker in range(NUM_WORKERS - 1)]
    request = SnapshotRequest(0, 1, 0, full=True)
    reply = client.call("Snapshot", request, SnapshotReply, deadline_seconds=60)
    assert (reply.refused, core.serving.version) == ("", 0)
    calls.append(start_push(client, core, NUM_WORKERS - 1))
    assert statuses(calls) == [Status.DONE] * NUM_WORKERS
