"""Two servers whose rounds fell apart never keep two workers waiting for each other."""

import threading
import time

import numpy as np
import pytest
from answered import Answered

from ctr_pipeline.distributed.coordination.placement import dense_ranges
from ctr_pipeline.distributed.coordination.rounds import (
    ROUND_PATIENCE_SECONDS,
    BatchId,
    worker_number,
)
from ctr_pipeline.distributed.coordination.spec import UpdateRule
from ctr_pipeline.distributed.rpc.packed import PushRequest, Status
from ctr_pipeline.distributed.worker.ps_client import PsClient

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
    spec = make_spec(num_parameter_servers=2, update=UpdateRule("sync", 2, 0, False))
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


def wait_for(condition):
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


def move_on(cores, worker, server, number):
    """One server alone applies a batch of somebody else."""
    keys = worker.client.prepare(IDS, len(IDS))
    first, last = keys.bounds[server : server + 2]
    low, high = dense_ranges(worker.spec, 2)[server]
    cores[server].set_active_workers(["third"])
    reply = cores[server].push(
        PushRequest(
            generation=0,
            batch=BatchId(0, 9, 1, number),
            worker=worker_number("third"),
            step=1,
            learning_rate_factor=1.0,
            num_examples=len(IDS),
            version=cores[server].version,
            keys=keys.keys_U[first:last],
            num_occurrences=keys.num_occurrences_U[first:last],
            sums=np.ones((last - first, 5), np.float32),
            dense=np.ones(high - low, np.float32),
            fresh_keys=np.empty(0, np.int64),
        )
    )
    assert Answered(reply).reply.status is Status.DONE


def test_a_stale_push_does_not_wait_for_the_round_of_another_server(world):
    cores, workers = world
    first, second = workers.values()

    def active(server, *names):
        cores[server].set_active_workers(names)

    # Server 0 applies a batch of the first worker that server 1 finds too old.
    active(0, "first")
    first.pull(0)
    move_on(cores, first, 1, 0)
    assert first.push() == "stale"
    # The second pulls before server 1 moves on once more.
    second.pull(0)
    move_on(cores, first, 1, 1)

    # Now the first waits at server 1 for the second, and the second, whose push is too old at
    # server 1, would wait at server 0 for the first.
    active(0, "first", "second")
    active(1, "first", "second")
    first.pull(0)
    waiting, answers = in_thread(first.push)
    wait_for(lambda: cores[1].num_waiting == 1)
    started = time.monotonic()
    assert second.push() == "stale"
    second.pull(0)
    others, theirs = in_thread(second.push)
    waiting.join(10)
    assert answers == ["applied"]
    first.pull(1)
    last, _ = in_thread(first.push)
    others.join(10)
    assert theirs == ["applied"]
    active(0, "first")
    active(1, "first")
    last.join(10)
    assert not last.is_alive()
    assert time.monotonic() - started < ROUND_PATIENCE_SECONDS / 2
    # Each server applied each batch once.
    assert [core.counts.applied for core in cores] == [3, 5]


def test_workers_whose_batches_one_server_has_do_not_wait_for_each_other(world):
    cores, workers = world
    first, second = workers.values()
    # Server 0 has the batch of the first worker, server 1 that of the second.
    for server, worker in enumerate((first, second)):
        cores[server].set_active_workers([worker.client_name])
        worker.pull(0)
        move_on(cores, worker, 1 - server, 0)
        assert worker.push() == "stale"
    for core in cores:
        core.set_active_workers([first.client_name, second.client_name])
    started = time.monotonic()
    first.pull(0)
    second.pull(0)
    pushes = [in_thread(worker.push) for worker in (first, second)]
    for thread, _ in pushes:
        thread.join(30)
    assert [answers for _, answers in pushes] == [["applied"], ["applied"]]
    assert time.monotonic() - started < ROUND_PATIENCE_SECONDS / 2
    assert [core.counts.applied for core in cores] == [3, 3]
