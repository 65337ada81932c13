"""Two servers whose rounds fell apart never keep two workers waiting for each other."""

import threading
import time

import numpy as np
import pytest

from ctr_pipeline.distributed.coordination.placement import balanced_placement
from ctr_pipeline.distributed.coordination.rounds import (
    ROUND_TIMEOUT_SECONDS,
    BatchId,
    worker_number,
)
from ctr_pipeline.distributed.rpc.packed import PushRequest, Status
from ctr_pipeline.distributed.worker.ps_client import PsClient
from ctr_pipeline.specs.course import UpdateRule
from tests.distributed.network import Answered

IDS = np.arange(24, dtype=np.int32).reshape(8, 3) % 7


class Worker:
    """A client with one batch after another of the same ids."""

    def __init__(self, spec, access, addresses, name, task):
        self.client = PsClient(spec, access, incarnation=name)
        self.client.route(0, addresses)
        self.client.init_dense(np.zeros(spec.num_dense, np.float32))
        self.spec, self.task, self.client_name = spec, task, name
        self.pulled = None

    def pull(self, number):
        self.batch = BatchId(0, self.task, 1, number)
        prepared = self.client.prepare(IDS, len(IDS))
        self.pulled = self.client.start_pull(prepared, create=True, batch=self.batch)
        self.pulled.wait()

    def push(self):
        linear, embeddings = self.client.gather_parts(self.pulled, 1)
        dense = self.client.dense(self.pulled)
        return (
            self.client.start_push(
                self.pulled,
                (np.ones_like(linear), np.ones_like(embeddings)),
                np.ones_like(dense),
                self.batch,
                step=1,
                learning_rate_factor=1.0,
                num_examples=len(IDS),
                refresh=None,
            )
            .wait()
            .verdict
        )


@pytest.fixture
def world(make_spec, make_core, serve, access):
    spec = make_spec(
        num_parameter_servers=2, update_rule=UpdateRule(update="sync", grads_to_wait=2)
    )
    cores = [make_core(spec, index) for index in range(2)]
    served = serve(cores)
    workers = {
        name: Worker(spec, access, served.addresses, name, task)
        for task, name in enumerate(("first", "second"))
    }
    yield cores, workers
    for worker in workers.values():
        worker.client.close()


def in_thread(call):
    answers = []
    thread = threading.Thread(target=lambda: answers.append(call()))
    thread.start()
    return thread, answers


def deliver(cores, worker, server):
    """A worker's batch reaches one server alone."""
    keys = worker.client.prepare(IDS, len(IDS))
    first, last = keys.bounds[server : server + 2]
    low, high = balanced_placement(worker.spec).range_of(server)
    cores[server].updates.set_active_workers([worker.client_name])
    reply = cores[server].updates.push(
        PushRequest(
            generation=0,
            batch=worker.batch,
            worker=worker_number(worker.client_name),
            step=1,
            learning_rate_factor=1.0,
            num_examples=len(IDS),
            version=cores[server].serving.version,
            keys=keys.keys_U[first:last],
            num_occurrences=keys.num_occurrences_U[first:last],
            sums=np.ones((last - first, 5), np.float32),
            dense=np.ones(high - low, np.float32),
            fresh_keys=np.empty(0, np.int64),
        )
    )
    assert Answered(reply).reply.status is Status.DONE


@pytest.mark.slow
def test_workers_whose_batches_one_server_has_do_not_wait_for_each_other(world):
    cores, workers = world
    first, second = workers.values()
    # Server 0 has the batch of the first worker, server 1 that of the second.
    for server, worker in enumerate((first, second)):
        worker.pull(0)
        deliver(cores, worker, server)
    for core in cores:
        core.updates.set_active_workers([first.client_name, second.client_name])
    started = time.monotonic()
    first.pull(0)
    second.pull(0)
    pushes = [in_thread(worker.push) for worker in (first, second)]
    for thread, _ in pushes:
        thread.join(60)
    assert [answers for _, answers in pushes] == [["applied"], ["applied"]]
    assert time.monotonic() - started < ROUND_TIMEOUT_SECONDS / 2
    assert [core.updates.counts.applied for core in cores] == [2, 2]
