"""Whatever several threads ask of a server at once, it is as if they had asked in turns.

The values count: each batch adds 1 to the rows it names, so a cut holds what its bitmaps say, or a
batch was applied in part, twice, or seen half done.
"""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ctr_pipeline.distributed.coordination.messages import (
    MovedRowsRequest,
    MoveRequest,
    PlacementRequest,
    SnapshotRequest,
)
from ctr_pipeline.distributed.rpc.packed import Status
from tests.distributed.ps.test_ps_restores import restore_request, restored
from tests.distributed.ps_requests import Caller, batch, counting, owned_keys

NUM_THREADS, NUM_BATCHES, NUM_CUTS = 3, 30, 6
OLDEST_STEP = 10


class Worker:
    """Pulls and pushes in a thread; what it pushed is known by task and batch.

    Args:
        core: The server.
        number: Of the worker and its task.
        keys: That it chooses among.
    """

    def __init__(self, core, number, keys):
        self.caller = Caller(core, str(number))
        self.task = number
        self.rng = np.random.default_rng([core.spec.course.seed, number])
        self.keys = keys
        self.pushed = {}
        self.errors = []
        self.thread = threading.Thread(target=self.work, daemon=True)

    def work(self):
        try:
            for number in range(NUM_BATCHES):
                self.train(number)
        except Exception as error:  # noqa: BLE001  told by the test
            self.errors.append(error)

    def train(self, number):
        keys = np.unique(self.rng.choice(self.keys, 40))
        self.pushed[self.task, number] = keys
        step = OLDEST_STEP + number
        pulled = self.until_served(lambda: self.caller.pull(keys))
        # Rows of one batch after another, whole: a value never falls behind what this worker did.
        own = np.array([self.count(one) for one in keys])
        assert (pulled.values[:, 0] >= own).all()

        def push(_=None):
            return self.until_served(
                lambda: self.caller.push(keys, batch(number, task=self.task), step=step)
            )

        if self.rng.random() < 0.3:
            # A call that is given up too early is under way when it is tried again.
            with ThreadPoolExecutor(2) as pool:
                outcomes = [reply.status for reply in pool.map(push, range(2))]
            assert sorted(outcomes) == [Status.DONE, Status.REPEATED]
        else:
            assert push().status is Status.DONE
        if self.rng.random() < 0.3:
            assert push().status is Status.REPEATED

    def count(self, one):
        done = [keys for (_, number), keys in self.pushed.items() if number < len(self.pushed) - 1]
        return sum(one in keys for keys in done)

    @staticmethod
    def until_served(call):
        """Calls again while rows are removed or updates are held."""
        while (reply := call()).status is Status.NOT_READY:
            pass
        return reply


@pytest.fixture
def eager_threads():
    """Threads that give way to each other wherever they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def hold_for_a_moment(core):
    """Begins a move of a partition, holds updates for it, and gives it up."""
    move = MoveRequest(0, core.state.placement.version + 1, "", (0,), takes_dense=False)
    core.moves.show_rows(MovedRowsRequest(move, 0))
    assert not core.moves.hold(move).refused
    assert core.moves.takes_part
    core.moves.place(PlacementRequest(0, core.state.placement, 0))
    assert not core.moves.takes_part


@pytest.mark.usefixtures("eager_threads")
@pytest.mark.parametrize("seed", range(4))
def test_cuts_hold_whole_batches_whatever_goes_on(make_spec, make_core, make_optimizer, seed):
    spec = counting(make_spec(seed=seed), make_optimizer)
    core = make_core(spec)
    caller = Caller(core, "before")
    caller.init()
    keys = np.random.default_rng(seed).permutation(owned_keys(spec, 0))[:400]
    forgotten, trained = np.sort(keys[:100]), keys[100:]
    caller.pull(forgotten)
    first = batch(0, task=NUM_THREADS)
    assert caller.push(forgotten, first, step=1).status is Status.DONE

    workers = [Worker(core, number, trained) for number in range(NUM_THREADS)]
    for worker in workers:
        worker.thread.start()
    replies = []
    for cut in range(1, NUM_CUTS + 1):
        # Every other cut removes what was updated before, and is of all rows.
        oldest = OLDEST_STEP if cut % 2 == 0 else 0
        replies.append(core.checkpoints.snapshot(SnapshotRequest(0, cut, 0, True, oldest)))
        hold_for_a_moment(core)
    for worker in workers:
        worker.thread.join(60)
        assert not worker.thread.is_alive()
        assert worker.errors == []
    replies.append(core.checkpoints.snapshot(SnapshotRequest(0, NUM_CUTS + 1, 0, True)))

    pushed = {place: found for worker in workers for place, found in worker.pushed.items()}
    for cut, reply in enumerate(replies, 1):
        masks = {bitmap.task: bitmap.mask for bitmap in reply.bitmaps}
        expected = dict.fromkeys(trained.tolist(), 0.0)
        for (task, number), found in pushed.items():
            for one in found.tolist() if masks.get(task, 0) >> number & 1 else ():
                expected[one] += 1.0
        (copy,) = restored(spec, restore_request([reply], 1, cut))
        values, dense = Caller(copy).values(trained, generation=1)
        assert values == list(expected.values())
        # The first batch, too, moved the dense values.
        assert set(dense) <= {float(sum(mask.bit_count() for mask in masks.values()))}
        kept = Caller(copy).values(forgotten, generation=1)[0]
        assert kept == [1.0 if cut == 1 else 0.0] * len(forgotten)
    # All of it, once.
    assert {bitmap.task: bitmap.mask.bit_count() for bitmap in replies[-1].bitmaps} == {
        **dict.fromkeys(range(NUM_THREADS), NUM_BATCHES),
        NUM_THREADS: 1,
    }
    assert core.state.num_evicted == len(forgotten)
