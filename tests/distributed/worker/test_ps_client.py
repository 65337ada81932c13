"""What a worker does when servers are away, slow, restored, or of another mind."""

import threading
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from ctr_pipeline.distributed.coordination.messages import RestoreRequest
from ctr_pipeline.distributed.coordination.rounds import BatchId
from ctr_pipeline.distributed.ps.service import ps_methods
from ctr_pipeline.distributed.rpc.failures import CallRefused, PeerUnavailable
from ctr_pipeline.distributed.worker.ps_calls import RolledBack, Superseded
from ctr_pipeline.distributed.worker.ps_client import PsClient
from ctr_pipeline.embeddings.rows import RowStorage
from ctr_pipeline.specs.course import UpdateRule
from ctr_pipeline.specs.initializer import ZEROS
from tests.distributed.network import Clock, Wire

NUM_DENSE = 37
ASYNC = UpdateRule()


class World:
    """A counting job, its servers and one worker's client."""

    def __init__(self, spec, cores, access, **options):
        self.spec, self.cores = spec, cores
        self.wire = Wire(
            {
                index: ps_methods(core, lambda: None, lambda peer: None)
                for index, core in enumerate(cores)
            }
        )
        self.client = PsClient(spec, access, connect=self.connect, **options)
        self.client.route(0, tuple(map(str, range(len(cores)))))

    def connect(self, address):
        return self.wire.connect(int(address))

    def prepare(self, seed=0, size=32):
        rng = np.random.default_rng(seed)
        sizes = [table.num_ids for table in self.spec.tables]
        ids = np.stack([rng.integers(0, min(n, 60), size) for n in sizes], axis=1)
        return self.client.prepare(ids.astype(np.int32), size)

    def pull(self, prepared, number=0, *, client=None, **options):
        client = client or self.client
        return client.start_pull(prepared, create=True, batch=batch(number), **options)

    def push(self, pull, number=0, **options):
        return self.start_push(pull, number, **options).wait()

    def start_push(self, pull, number=0, *, client=None, refresh=None, attempt=1):
        client = client or self.client
        client.dense(pull)
        shape = pull.prepared.batch.shape
        return client.start_push(
            pull,
            (np.full((*shape, 1), -1.0, np.float32), np.full((*shape, 4), -1.0, np.float32)),
            np.full(NUM_DENSE, -1.0, np.float32),
            batch(number, attempt),
            step=number + 1,
            learning_rate_factor=1.0,
            num_examples=1,
            refresh=refresh,
        )

    def counts(self, prepared, client=None):
        """How often each place's row was updated, as a new pull sees it."""
        client = client or self.client
        pull = client.start_pull(prepared, create=False, batch=None)
        return client.gather_parts(pull, 1)[0][:, :, 0]


def batch(number, attempt=1):
    return BatchId(0, 0, attempt, number)


def occurrences(prepared):
    """How often the id of each place occurs: what one counting push adds to its row."""
    shape = prepared.batch.shape
    return prepared.batch.num_occurrences[prepared.batch.inverse_P].reshape(shape)


@pytest.fixture
def start(make_spec, make_core, make_optimizer, access):
    worlds = []

    def make(num_servers=2, *, rule=ASYNC, timeout=15.0, **options):
        sgd = make_optimizer("sgd", 1.0)
        spec = make_spec(num_parameter_servers=num_servers, update_rule=rule, dense_optimizer=sgd)
        segments = tuple(
            replace(s, optimizer=sgd, reduction="sum", l2_strength=0.0, initializer=ZEROS)
            for s in spec.segments
        )
        spec = replace(spec, segments=segments)
        cores = [
            make_core(spec, index, round_timeout_seconds=timeout) for index in range(num_servers)
        ]
        world = World(spec, cores, access, **options)
        world.client.init_dense(np.zeros(NUM_DENSE, np.float32))
        worlds.append(world)
        return world

    yield make
    for world in worlds:
        world.client.close()


def test_one_call_a_server_for_a_pull_and_one_for_a_push(start):
    world = start(3)
    prepared = world.prepare()
    world.wire.calls.clear()
    world.push(world.pull(prepared))
    assert sorted(world.wire.calls) == [
        (server, method) for server in range(3) for method in ("Pull", "Push")
    ]


def test_gradients_of_equal_ids_are_summed_before_they_are_sent(start):
    world = start()
    prepared = world.prepare()
    assert prepared.batch.num_occurrences.max() > 1
    outcome = world.push(world.pull(prepared))
    assert (outcome.verdict, outcome.repeated) == ("applied", False)
    np.testing.assert_array_equal(world.counts(prepared), occurrences(prepared))


def test_a_pull_after_a_push_knows_of_it_at_each_server(start):
    world = start()
    prepared = world.prepare()
    pull = world.pull(prepared)
    pull.wait()
    released = threading.Event()

    def hold(server, method, _number):
        if (server, method) == (1, "Push"):
            assert released.wait(10)

    world.wire.fate = hold
    world.wire.calls.clear()
    push = world.start_push(pull)
    ahead = world.pull(prepared, 1, after=push)
    while (0, "Pull") not in world.wire.calls:
        push.wait_server(0)
    assert (1, "Pull") not in world.wire.calls
    released.set()
    counts = world.client.gather_parts(ahead, 1)[0][:, :, 0]
    np.testing.assert_array_equal(counts, occurrences(prepared))
    assert push.wait().verdict == "applied"
    assert ahead.versions == [1, 1]


def test_a_pull_after_a_push_that_failed_is_made_all_the_same(start):
    world = start(deadline_seconds=0.0)
    prepared = world.prepare()
    pull = world.pull(prepared)
    pull.wait()
    world.wire.fate = lambda server, method, _: "lost" if (server, method) == (0, "Push") else None
    push = world.start_push(pull)
    ahead = world.pull(prepared, 1, after=push)
    ahead.wait()
    assert ahead.versions == [0, 1]
    with pytest.raises(PeerUnavailable):
        push.wait()


def test_a_lost_reply_applies_nothing_twice_and_is_no_repetition(start):
    world = start()
    world.wire.fate = lambda server, method, number: (
        "reply_lost" if method == "Push" and number == 0 and server == 1 else None
    )
    prepared = world.prepare()
    outcome = world.push(world.pull(prepared))
    assert (outcome.verdict, outcome.repeated) == ("applied", False)
    np.testing.assert_array_equal(world.counts(prepared), occurrences(prepared))
    assert world.cores[1].updates.counts.repeated == 1


def test_a_batch_that_a_lost_worker_left_half_done_is_repeated(start, access):
    world = start()
    prepared = world.prepare()
    heir = PsClient(world.spec, access, incarnation="heir", connect=world.connect)
    heir.route(0, ("0", "1"))
    # The first worker reached server 0 alone, then it died.
    world.wire.fate = lambda server, method, _: "lost" if (server, method) == (1, "Push") else None
    clock = Clock()
    dying = PsClient(world.spec, access, connect=world.connect, deadline_seconds=0.0, clock=clock)
    dying.route(0, ("0", "1"))
    with pytest.raises(PeerUnavailable):
        world.push(world.pull(prepared, client=dying), client=dying)
    world.wire.fate = lambda *_: None
    outcome = world.push(world.pull(prepared, client=heir), client=heir)
    assert (outcome.verdict, outcome.repeated) == ("applied", True)
    np.testing.assert_array_equal(world.counts(prepared), occurrences(prepared))
    dying.close()
    heir.close()


def test_a_push_that_failed_can_be_handed_in_again(start):
    world = start(deadline_seconds=0.0)
    prepared = world.prepare()
    pull = world.pull(prepared)
    pull.wait()
    world.wire.fate = lambda server, method, _: "lost" if (server, method) == (0, "Push") else None
    with pytest.raises(PeerUnavailable):
        world.push(pull)
    world.wire.fate = lambda *_: None
    outcome = world.push(pull)
    # Server 1 had it, from this very worker: nothing was trained again.
    assert (outcome.verdict, outcome.repeated) == ("applied", False)
    assert [core.updates.counts.repeated for core in world.cores] == [0, 1]
    np.testing.assert_array_equal(world.counts(prepared), occurrences(prepared))


def test_calls_are_tried_until_the_deadline(start):
    clock = Clock()
    world = start(1, deadline_seconds=10.0, clock=clock)
    prepared = world.prepare()

    def pass_time(_server, _method, _number):
        clock.now += 3.0
        return "lost"

    world.wire.fate = pass_time
    world.wire.calls.clear()
    with pytest.raises(PeerUnavailable, match="lost"):
        world.pull(prepared).wait()
    assert len(world.wire.calls) == 4


def test_a_server_that_is_back_is_used_again(start):
    world = start()
    world.wire.fate = lambda _server, _method, number: "lost" if number % 3 else None
    prepared = world.prepare()
    for number in range(4):
        assert world.push(world.pull(prepared, number), number).verdict == "applied"
    np.testing.assert_array_equal(world.counts(prepared), 4 * occurrences(prepared))


def test_a_rollback_is_told_by_the_servers(start):
    world = start()
    pull = world.pull(world.prepare())
    pull.wait()
    for core in world.cores:
        core.checkpoints.restore(RestoreRequest(3, 0, (), (), ()))
    with pytest.raises(RolledBack) as caught:
        world.push(pull)
    assert caught.value.generation == 3
    with pytest.raises(RolledBack):
        world.pull(world.prepare()).wait()


def test_a_rollback_that_one_server_tells_ends_calls_to_others(start):
    world = start(2, deadline_seconds=1000.0)
    pull = world.pull(world.prepare())
    pull.wait()
    world.cores[0].checkpoints.restore(RestoreRequest(1, 0, (), (), ()))
    # Server 1 is the one that died: it says nothing until it is back.
    world.wire.fate = lambda server, _method, _number: "lost" if server == 1 else None
    with pytest.raises(RolledBack):
        world.push(pull)


def test_a_new_route_ends_calls_of_the_old_generation_at_once(start):
    world = start(1, deadline_seconds=1000.0)
    prepared = world.prepare()
    tried = threading.Event()

    def lose(*_):
        tried.set()
        return "lost"

    world.wire.fate = lose
    pull = world.pull(prepared)
    assert tried.wait(10)
    world.client.route(1, ("0",))
    with pytest.raises(RolledBack) as caught:
        pull.wait()
    assert caught.value.generation == 1
    with pytest.raises(RolledBack):
        world.client.dense(pull)


def test_connections_that_are_left_are_closed_and_others_kept(start):
    world = start(2)
    world.client.route(0, ("0", "0"))
    assert world.wire.closed == [1]


def test_a_server_that_is_not_there_yet_is_waited_for(start, access):
    world = start(1)
    late = PsClient(world.spec, access, connect=world.connect, deadline_seconds=100.0)
    late.route(0, ("",))
    prepared = world.prepare()
    pull = late.start_pull(prepared, create=True, batch=None)
    waiter = threading.Thread(target=pull.wait)
    waiter.start()
    assert waiter.is_alive()
    late.route(0, ("0",))
    waiter.join(20)
    assert not waiter.is_alive()
    pull.wait()
    assert late.dense(pull).tolist() == [0.0] * NUM_DENSE
    late.close()


def test_a_client_without_a_route_is_told_so(make_spec, access):
    spec = make_spec()
    with closing(PsClient(spec, access, deadline_seconds=0.0)) as client:
        ids = np.zeros((1, len(spec.tables)), np.int32)
        pull = client.start_pull(client.prepare(ids, 1), create=True, batch=batch(0))
        with pytest.raises(PeerUnavailable, match="has not started yet"):
            pull.wait()


def test_another_workers_attempt_is_told(start, access):
    world = start()
    prepared = world.prepare()
    pull = world.pull(prepared)
    pull.wait()
    other = PsClient(world.spec, access, connect=world.connect)
    other.route(0, ("0", "1"))
    other.start_pull(prepared, create=True, batch=batch(0, attempt=2)).wait()
    with pytest.raises(Superseded):
        world.push(pull)
    other.close()


def test_answers_that_cannot_be_read_are_not_asked_for_again(start):
    world = start(1)
    world.wire.fate = lambda *_: "junk"
    world.wire.calls.clear()
    with pytest.raises(CallRefused, match="cannot be read"):
        world.pull(world.prepare()).wait()
    assert len(world.wire.calls) == 1


def test_differing_initial_values_are_refused(start, access):
    world = start()
    world.client.init_dense(np.zeros(NUM_DENSE, np.float32))
    with pytest.raises(CallRefused, match="other initial values"):
        world.client.init_dense(np.ones(NUM_DENSE, np.float32))
    with pytest.raises(ValueError, match="dense values"):
        world.client.init_dense(np.ones(3, np.float32))


def test_padding_gets_zeros_and_gives_no_gradient(start):
    world = start()
    ids = np.full((8, 3), 5, np.int32)
    ids[6:] = -1
    prepared = world.client.prepare(ids, 6)
    world.push(world.pull(prepared))
    counts = world.counts(prepared)
    assert counts[:6].tolist() == [[6.0] * 3] * 6
    assert not counts[6:].any()


def test_scoring_makes_no_rows_and_reads_zeros(start):
    world = start()
    prepared = world.prepare()
    pull = world.client.start_pull(prepared, create=False, batch=None)
    linear, embeddings = world.client.gather_parts(pull, 1)
    assert not linear.any()
    assert not embeddings.any()
    assert sum(core.state.num_rows for core in world.cores) == 0


def test_a_pull_ahead_knows_of_the_push_before_it(start):
    world = start()
    one, other = world.prepare(1), world.prepare(2)
    first = world.pull(one, 0)
    ahead = world.pull(other, 1, dense=False)
    world.push(first, 0, refresh=ahead)
    fresh = world.client.gather_parts(ahead, 1)[0][:, :, 0]
    np.testing.assert_array_equal(fresh, world.counts(other))
    assert fresh.any()
    assert ahead.versions == [1, 1]


def test_a_refresh_does_not_count_what_other_workers_did_meanwhile(start, access):
    """Versions say what values know of: two updates of another worker are missed, ours is not."""
    world = start(1)
    prepared = world.prepare()
    other = PsClient(world.spec, access, incarnation="other", connect=world.connect)
    other.route(0, ("0",))
    first = world.pull(prepared, 0)
    ahead = world.pull(prepared, 1)
    ahead.wait()
    for number in (10, 11):
        world.push(world.pull(prepared, number, client=other), number, client=other)
    world.push(first, 0, refresh=ahead)
    assert world.cores[0].serving.version == 3
    assert ahead.versions == [1]
    other.close()


def test_a_pull_ahead_that_failed_does_not_spoil_the_push(start):
    world = start(1, deadline_seconds=0.0)
    first = world.pull(world.prepare(1), 0)
    first.wait()
    world.wire.fate = lambda _server, method, _number: "lost" if method == "Pull" else None
    ahead = world.pull(world.prepare(2), 1)
    assert world.push(first, 0, refresh=ahead).verdict == "applied"
    with pytest.raises(PeerUnavailable):
        ahead.wait()


def test_a_push_that_came_late_is_applied_and_weighs_less(start, access):
    world = start(2, rule=UpdateRule(update="sync"))
    prepared = world.prepare()
    other = PsClient(world.spec, access, incarnation="other", connect=world.connect)
    other.route(0, ("0", "1"))
    pull = world.pull(prepared, 0)
    pull.wait()
    world.push(world.pull(prepared, 1, client=other), 1, client=other)
    assert world.push(pull, 0).verdict == "applied"
    np.testing.assert_allclose(world.counts(prepared), 1.5 * occurrences(prepared), rtol=1e-6)
    other.close()


def test_gradients_are_as_old_as_the_dense_values_they_were_computed_with(start, access):
    world = start(1, rule=UpdateRule(update="sync"))
    prepared = world.prepare()
    world.client.dense(world.pull(prepared, 0))
    other = PsClient(world.spec, access, incarnation="other", connect=world.connect)
    other.route(0, ("0",))
    world.push(world.pull(prepared, 1, client=other), 1, client=other)
    # Rows of now, dense values of before the other's push.
    mixed = world.pull(prepared, 2, dense=False)
    mixed.wait()
    assert mixed.versions == [1]
    assert world.push(mixed, 2).verdict == "applied"
    # Late by the other's push.
    np.testing.assert_allclose(world.counts(prepared), 1.5 * occurrences(prepared), rtol=1e-6)
    other.close()


def test_a_push_whose_round_fills_on_one_server_alone_counts_once_on_all(start):
    world = start(2, rule=UpdateRule(update="sync", grads_to_wait=2), timeout=0.0)
    prepared = world.prepare()
    world.cores[0].updates.set_active_workers([""])
    world.cores[1].updates.set_active_workers(["", "other"])
    over = threading.Event()

    def keep_time():
        while not over.wait(0.01):
            world.cores[1].updates.keep_time()

    thread = threading.Thread(target=keep_time)
    thread.start()
    try:
        assert world.push(world.pull(prepared, 0), 0).verdict == "stale"
        world.cores[1].updates.set_active_workers([""])
        outcome = world.push(world.pull(prepared, 0), 0)
    finally:
        over.set()
        thread.join()
    assert (outcome.verdict, outcome.repeated) == ("applied", False)
    assert [core.updates.counts.applied for core in world.cores] == [1, 1]
    np.testing.assert_array_equal(world.counts(prepared), occurrences(prepared))


def test_two_workers_make_one_update_of_a_round(start, access):
    world = start(2, rule=UpdateRule(update="sync", grads_to_wait=2))
    for core in world.cores:
        core.updates.set_active_workers(["", "other"])
    other = PsClient(world.spec, access, incarnation="other", connect=world.connect)
    other.route(0, ("0", "1"))
    prepared = world.prepare()
    outcomes = []

    def work(client, numbers):
        pull = world.pull(prepared, numbers[0], client=client)
        for number, following in zip(numbers, [*numbers[1:], None], strict=True):
            ahead = None
            if following is not None:
                ahead = world.pull(prepared, following, client=client, dense=False)
            outcomes.append(world.push(pull, number, client=client, refresh=ahead).verdict)
            pull = ahead

    threads = [
        threading.Thread(target=work, args=(client, range(first, 10, 2)))
        for first, client in enumerate((world.client, other))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    # Nobody was ever stale: what a round changed came with its replies.
    assert outcomes == ["applied"] * 10
    assert [core.serving.version for core in world.cores] == [5, 5]
    np.testing.assert_array_equal(world.counts(prepared), 10 * occurrences(prepared))
    other.close()


def test_a_model_without_fields_trains_its_dense_values(make_spec, make_core, access):
    spec = make_spec(tables=(), counts_file="")
    world = World(spec, [make_core(spec)], access)
    world.client.init_dense(np.zeros(NUM_DENSE, np.float32))
    prepared = world.client.prepare(np.empty((4, 0), np.int32), 4)
    pull = world.pull(prepared)
    linear, embeddings = world.client.gather_parts(pull, 1)
    assert (linear.shape, embeddings.shape) == ((4, 0, 1), (4, 0, 4))
    assert world.push(pull).verdict == "applied"
    world.client.close()


def test_wrong_shapes_are_told(start):
    world = start(1)
    prepared = world.prepare()
    pull = world.pull(prepared)
    with pytest.raises(ValueError, match="gradients"):
        world.client.start_push(
            pull,
            (np.zeros((3, 3, 1), np.float32), np.zeros((3, 3, 4), np.float32)),
            np.zeros(NUM_DENSE, np.float32),
            batch(0),
            step=1,
            learning_rate_factor=1.0,
            num_examples=1,
            refresh=None,
        )
    with pytest.raises(ValueError, match="not in table"):
        world.client.prepare(np.full((1, 3), 10**6, np.int32), 1)


@pytest.mark.parametrize("code", ["bug", "failed"])
@pytest.mark.parametrize("method", ["Pull", "Push"])
def test_a_fault_of_a_server_is_waited_out_as_its_absence_is(start, method, code):
    world = start(2)
    prepared = world.prepare()
    world.wire.fate = lambda server, called, number: (
        code if (server, called) == (1, method) and number < 2 else None
    )
    pull = world.pull(prepared)
    pull.wait()
    assert world.push(pull).verdict == "applied"
    assert world.wire.calls.count((1, method)) == 3


def test_a_server_that_keeps_failing_is_unavailable(start):
    clock = Clock()
    world = start(1, deadline_seconds=10.0, clock=clock)

    def fail(*_):
        clock.now += 6.0
        return "failed"

    world.wire.fate = fail
    with pytest.raises(PeerUnavailable, match="no room"):
        world.pull(world.prepare()).wait()


def test_a_server_without_room_for_rows_is_not_asked_again(start, monkeypatch):
    world = start(1)
    monkeypatch.setattr(RowStorage, "capacity", 3)
    with pytest.raises(CallRefused, match=r"room for 3\. Lower vocabulary sizes"):
        world.pull(world.prepare()).wait()
    assert world.wire.calls.count((0, "Pull")) == 1


def test_the_first_initial_dense_values_win_where_the_last_bits_differ(start, access, caplog):
    world = start(2)
    ours = np.full(NUM_DENSE, 1e-7, np.float32)
    other = PsClient(world.spec, access, incarnation="other", connect=world.connect)
    other.route(0, ("0", "1"))
    other.init_dense(ours)
    assert caplog.text.count("differ in their last bits") == 2
    # It goes on with what the servers have.
    pull = world.pull(world.prepare(), client=other)
    assert not other.dense(pull).any()
    caplog.clear()
    world.client.init_dense(np.zeros(NUM_DENSE, np.float32))
    assert not caplog.text
    other.close()
