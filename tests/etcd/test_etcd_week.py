"""A week of a large job in etcd, by shortened time: the real job machine and a real etcd."""

import pytest

from ctr_pipeline.distributed.coordination.events import Persist, Tick
from ctr_pipeline.distributed.coordination.messages import BatchLoss, HeldLease, TaskReport
from ctr_pipeline.distributed.coordination.task_plans import EpochPlan
from ctr_pipeline.distributed.master.ledger.etcd import EtcdLedger
from ctr_pipeline.distributed.master.ledger.store import LedgerIdentity
from tests.distributed.coordination.job_bench import Bench
from tests.etcd.etcd_server import call_gateway

pytestmark = [pytest.mark.nightly, pytest.mark.slow, pytest.mark.timeout(600)]

WORKERS = 200
TASK_SECONDS = 3.2
TASKS_OF_A_WEEK = int(7 * 86_400 * WORKERS / TASK_SECONDS)
MOST_BYTES = 64_000_000
BATCHES = 64
TRANSACTIONS = 4
"""Of the machine, in one of etcd, at most: what waits while one is written goes into the next."""


class LargeJob(Bench):
    """200 workers that hold two tasks each and end one in 3.2 seconds; its ledger is in etcd."""

    def __init__(self, ledger):
        self.ledger, self.waiting = ledger, []
        super().__init__(
            min_workers=WORKERS,
            max_workers=WORKERS,
            epochs=1,
            plan_epoch=lambda epoch: EpochPlan(epoch, TASKS_OF_A_WEEK, BATCHES * 1024, 1024, ()),
            checkpoint_seconds=8.0,
            silence_seconds=1e6,
        )
        self.begin_training(*(self.name(index) for index in range(WORKERS)))
        self.held = {index: self.take(index, ()) for index in range(WORKERS)}

    def name(self, index):
        return f"worker{index:010d}"

    def do(self, actions):
        self.waiting += [action for action in actions if isinstance(action, Persist)]
        if len(self.waiting) >= TRANSACTIONS:
            records = {}
            for transaction in self.waiting:
                records.update(transaction.records)
            self.ledger.commit(records, durable=True)
            self.waiting = []
        super().do(actions)
        self.log.clear()

    def take(self, index, held):
        names = tuple(HeldLease(task.key, task.attempt) for task in held)
        reply = self.lease(index, self.name(index), most=2 - len(held), held=names)
        return (*held, *reply.tasks)

    def train(self, tasks):
        """So many are ended, by one worker after the other."""
        for number in range(tasks):
            self.now += TASK_SECONDS / WORKERS
            index = number % WORKERS
            first, *rest = self.held[index]
            losses = tuple(BatchLoss(batch, 460.123456789) for batch in range(BATCHES))
            mask = 2**BATCHES - 1
            report = TaskReport(
                first.key, first.attempt, mask, 0, losses, True, "", TASK_SECONDS, None
            )
            self.heartbeat("worker", index, self.name(index), report)
            self.held[index] = self.take(index, tuple(rest))
            if not number % 50:
                self.tell(Tick())


def test_a_week_of_200_workers_is_far_below_64_megabytes(etcd):
    ledger = EtcdLedger(etcd.url, "/x/", LedgerIdentity("job-1", "config", "rows"))
    job = LargeJob(ledger)

    def size_after(tasks):
        job.train(tasks)
        return int(call_gateway(etcd.url, "/maintenance/status", {})["dbSize"])

    first, *sizes = (size_after(4000) for _ in range(4))
    ledger.close()
    assert len(job.cuts) > 4
    assert job.job.status().trained == 16_000 * BATCHES * 1024
    # Etcd forgets what was overwritten: after the first compactions its file grows no more, ...
    assert max(sizes) <= 1.25 * max(first, sizes[0])
    assert max(sizes) < MOST_BYTES / 2
    # ... and what is there to be kept, which is all that a week could add to, does not either.
    kept = sum(len(name) + len(str(record)) for name, record in job.disk.items())
    assert kept < 1_000_000
