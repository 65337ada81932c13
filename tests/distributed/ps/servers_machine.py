"""The real parameter servers of a job, and what each part of them must hold, side by side.

What servers hold has *parts*: partitions of rows, and places of the dense vector. The model of a
part is the set of batches that it has. Every batch moves what it names by a power of two of its
own, so that a value tells which batches are in it, and how often.
"""

import itertools
import shutil
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ctr_pipeline.distributed.coordination.codec import decode, encode
from ctr_pipeline.distributed.coordination.ledger import Ledger
from ctr_pipeline.distributed.coordination.messages import RestoreRequest, SnapshotRequest
from ctr_pipeline.distributed.coordination.placement import balanced_placement
from ctr_pipeline.distributed.coordination.rounds import BatchId
from ctr_pipeline.distributed.master.manifests import CutFacts, CutManifest, chain_files
from ctr_pipeline.distributed.ps.core import PsCore
from ctr_pipeline.distributed.rpc.packed import Status
from ctr_pipeline.embeddings.cut_storage import CutStorage
from ctr_pipeline.embeddings.partition import partitions_of
from ctr_pipeline.errors import RunFolderError
from ctr_pipeline.specs.table import TableSpec
from tests.distributed.ps_requests import Caller, all_keys, owned_keys

NUM_EPOCHS, NUM_TASKS, TASK_BATCHES = 3, 2, 4
MOST_SERVERS = 3
EPOCH_BATCHES = NUM_TASKS * TASK_BATCHES
# Sums of distinct powers of two are exact in float32 as long as there are not more.
assert NUM_EPOCHS * EPOCH_BATCHES <= 24


@dataclass(frozen=True)
class Batch:
    """One batch of the job; it names two or three of the rows and every dense value."""

    epoch: int
    number: int

    @property
    def task(self):
        return self.number // TASK_BATCHES

    @property
    def weight(self):
        return 2.0 ** (self.epoch * EPOCH_BATCHES + self.number)

    def attempt(self, attempt):
        return BatchId(self.epoch, self.task, attempt, self.number % TASK_BATCHES)


@dataclass
class Held:
    """What the job holds, by part, and which rows there are."""

    batches: dict
    rows: frozenset

    @classmethod
    def nothing(cls):
        return cls(defaultdict(frozenset), frozenset())

    def copy(self):
        return replace(self, batches=self.batches.copy())


class Servers:
    """What can befall the parameter servers of a job, done as the master and workers do it."""

    def __init__(self, spec):
        self.spec = spec
        self.keys = all_keys(spec)
        self.partition_of = dict(
            zip(
                self.keys.tolist(),
                partitions_of(self.keys, spec.num_partitions).tolist(),
                strict=True,
            )
        )
        self.generation = 0
        self.cores = []
        self.last_cut = self.last_begun_cut = 0
        self.cuts = {0: (None, Held.nothing(), 0)}
        self.attempts = defaultdict(lambda: 1)
        self.restore(0, 1)

    # What the model says.

    def named(self, batch, server=None):
        """Keys of a batch: all of them, or those of one server."""
        places = {batch.number, (3 * batch.number + 1) % len(self.keys), 5 * (batch.number % 2)}
        keys = self.keys[sorted(places)]
        return keys if server is None else keys[np.isin(keys, owned_keys(self.now, server))]

    def parts_of(self, server):
        first, last = balanced_placement(self.now).range_of(server)
        rows = [
            ("rows", partition) for partition in balanced_placement(self.now).partitions_of(server)
        ]
        return [*rows, *(("dense", place) for place in range(first, last))]

    def expected_row(self, key):
        batches = self.held.batches["rows", self.partition_of[key]]
        return sum(batch.weight for batch in batches if key in self.named(batch))

    def expected_dense(self, server):
        parts = [part for part in self.parts_of(server) if part[0] == "dense"]
        return [sum(batch.weight for batch in self.held.batches[part]) for part in parts]

    def check(self):
        for server, core in enumerate(self.cores):
            keys = owned_keys(self.now, server)
            reply = Caller(core).pull(keys, create=False, generation=self.generation)
            assert reply.status is Status.DONE
            assert (core.serving.generation, reply.generation) == (self.generation,) * 2
            expected = [self.expected_row(key) for key in keys.tolist()]
            np.testing.assert_array_equal(reply.values, np.array(expected)[:, None] + np.zeros(5))
            assert reply.dense.tolist() == self.expected_dense(server)
            assert core.state.num_rows == len(self.held.rows.intersection(keys.tolist()))

    # What workers do.

    def deliver(self, batch, server):
        """A worker pulls what a batch names and pushes its gradients."""
        caller, keys = Caller(self.cores[server]), self.named(batch, server)
        named = batch.attempt(self.attempts[batch.epoch, batch.task])
        pulled = caller.pull(keys, batch=named, generation=self.generation)
        assert pulled.status is Status.DONE
        assert pulled.values[:, 0].tolist() == [self.expected_row(key) for key in keys.tolist()]
        reply = self.push(batch, named, server, self.generation)
        parts = self.parts_of(server)
        is_new = any(batch not in self.held.batches[part] for part in parts)
        assert reply.status is (Status.DONE if is_new else Status.REPEATED)
        for part in parts:
            self.held.batches[part] |= {batch}
        self.held.rows |= frozenset(keys.tolist())
        assert reply.dense.tolist() == self.expected_dense(server)
        assert reply.fresh[:, 0].tolist() == [self.expected_row(key) for key in keys.tolist()]

    def push(self, batch, named, server, generation):
        keys = self.named(batch, server)
        return Caller(self.cores[server]).push(
            keys, named, generation=generation, gradient=-batch.weight, fresh_keys=keys
        )

    def deliver_late(self, batch, server, *, attempts_ago):
        """A task that has a new worker now is still worked at by its old one."""
        self.deliver(batch, server)
        named = batch.attempt(self.attempts[batch.epoch, batch.task] - attempts_ago)
        keys = self.named(batch, server)
        pulled = Caller(self.cores[server]).pull(keys, batch=named, generation=self.generation)
        assert pulled.status is Status.SUPERSEDED
        other = Batch(batch.epoch, batch.task * TASK_BATCHES + (batch.number + 1) % TASK_BATCHES)
        for late in (batch, other):
            named = late.attempt(named.attempt)
            reply = self.push(late, named, server, self.generation)
            assert reply.status is Status.SUPERSEDED

    def lease_again(self, task):
        self.attempts[self.epoch, task] += 1

    def begin_epoch(self, server):
        """A worker that was away while an epoch ended comes back with a batch of it."""
        # An epoch ends when all servers have its batches.
        for one in range(len(self.cores)):
            self.deliver(Batch(self.epoch, 0), one)
        self.epoch += 1
        self.deliver(Batch(self.epoch, 0), server)
        late = Batch(self.epoch - 1, 1)
        assert self.push(late, late.attempt(99), server, self.generation).status is (
            Status.SUPERSEDED
        )

    def push_of_another_generation(self, batch, server, *, ahead):
        named = batch.attempt(99)
        reply = self.push(batch, named, server, self.generation + ahead)
        assert reply.status is (Status.ROLLED_BACK if ahead < 0 else Status.NOT_READY)

    # What the master does.

    def take_cut(self, *, full, late, failing=None):
        """A cut of all servers, one after another, as nothing makes them take it at one instant.

        Args:
            full: All rows, not only those that have changed.
            late: Batches that each server gets after its instant, while its files are written.
            failing: Server whose disk is full, so that the cut is given up; None: none.
        """
        self.last_begun_cut = cut = self.last_begun_cut + 1
        parent = 0 if full else self.last_cut
        request = SnapshotRequest(self.generation, cut, parent, full=parent == 0)
        taken, replies = Held.nothing(), []

        for server, core in enumerate(self.cores):

            def go_on(server=server):
                for part in self.parts_of(server):
                    taken.batches[part] = self.held.batches[part]
                taken.rows |= self.held.rows.intersection(owned_keys(self.now, server).tolist())
                for batch in late:
                    self.deliver(batch, server)
                if server == failing:
                    raise RunFolderError("the disk is full")

            with before(core.state, "write_cut", go_on):
                reply = core.checkpoints.snapshot(request)
            assert bool(reply.refused) == (server == failing)
            # The answer was lost, and the master asks again.
            assert server == failing or core.checkpoints.snapshot(request) == reply
            replies.append(decode(type(reply), encode(reply)))
        if failing is not None:
            return
        facts = CutFacts(
            cut=cut,
            parent=parent,
            generation=self.generation,
            job=self.spec.job,
            config_fingerprint="",
            rows_fingerprint="",
            plan_fingerprint="",
            num_partitions=self.spec.num_partitions,
            num_parameter_servers=len(self.cores),
            epoch=self.epoch,
            step=0,
            best_cut=0,
            taken_at=0.0,
        )
        manifest = CutManifest(
            facts, chain_files(facts, self.cuts[parent][0], replies, Ledger().freeze()), {}, ()
        )
        self.cuts[cut] = (manifest, taken, self.epoch)
        self.last_cut = cut

    def restore(self, cut, num_servers, *, survive=True):
        """Everybody goes back to a cut, under this or another number of servers.

        Args:
            cut: Number; 0: nothing was trained.
            num_servers: From now on.
            survive: Servers that there were go on, if their number stays.
        """
        self.generation += 1
        self.now = replace(self.spec, num_parameter_servers=num_servers)
        if not survive or len(self.cores) != num_servers:
            self.cores = [PsCore(self.now, server) for server in range(num_servers)]
        manifest, held, self.epoch = self.cuts[cut]
        if manifest is None:
            request = RestoreRequest(self.generation, 0, (), (), ())
        else:
            request = manifest.restore_request(self.generation, balanced_placement(self.now))
        self.request = decode(RestoreRequest, encode(request))
        self.last_cut = cut
        self.held = held.copy()
        for server, core in enumerate(self.cores):

            def knock(server=server):
                self.push_of_another_generation(Batch(self.epoch, 0), server, ahead=-1)
                early = Batch(self.epoch, 1)
                reply = self.push(early, early.attempt(99), server, self.generation)
                assert reply.status is Status.NOT_READY

            with before(core.state, "restore", knock):
                assert core.checkpoints.restore(self.request).refused == ""
            if cut == 0:
                assert Caller(core).init(generation=self.generation).status is Status.DONE

    def restore_again(self):
        """The answer was lost, or overtaken by the request before; or the ledger was lost."""
        for core in self.cores:
            reply = core.checkpoints.restore(self.request)
            # Once a batch was applied, the same request is of a master that has forgotten it.
            assert reply.announced in {0, self.generation}
            assert bool(reply.refused) == bool(reply.announced)
            older = replace(self.request, generation=self.generation - 1)
            assert "was announced before" in core.checkpoints.restore(older).refused

    def end(self):
        """The epoch is trained to its end, and everything is in a last cut."""
        batches = [Batch(self.epoch, number) for number in range(EPOCH_BATCHES)]
        for _ in range(2):
            for batch, server in itertools.product(reversed(batches), range(len(self.cores))):
                self.deliver(batch, server)
        assert all(
            self.held.batches[part].issuperset(batches)
            for server in range(len(self.cores))
            for part in self.parts_of(server)
        )
        self.check()
        self.take_cut(full=False, late=())
        self.restore(self.last_cut, len(self.cores) % MOST_SERVERS + 1)
        self.check()


@contextmanager
def before(owner, name, first):
    """Does something whenever a method of an object is about to run."""
    original = getattr(owner, name)

    def method(*arguments):
        first()
        return original(*arguments)

    setattr(owner, name, method)
    try:
        yield
    finally:
        delattr(owner, name)


numbers = st.integers(0, EPOCH_BATCHES - 1)
any_server = st.integers(0, MOST_SERVERS - 1)
few_batches = st.lists(numbers, max_size=3)


class ServersMachine(RuleBasedStateMachine):
    """Servers, and what befalls them in any order.

    Args:
        spec: Of a job that counts, see `small`.
        folder: For cuts.
    """

    examples = itertools.count()

    def __init__(self, spec, folder):
        super().__init__()
        self.folder = folder / f"cuts-{next(self.examples)}"
        CutStorage.at(self.folder).begin("job-1")
        self.servers = Servers(replace(spec, checkpoints_folder=str(self.folder)))

    def server(self, number):
        return number % len(self.servers.cores)

    @initialize(num_servers=st.integers(1, MOST_SERVERS), delivered=few_batches, where=any_server)
    def begin(self, num_servers, delivered, where):
        self.servers.restore(0, num_servers)
        for number in delivered:
            self.servers.deliver(Batch(0, number), self.server(where + number))

    @rule(number=numbers, server=any_server, everywhere=st.booleans())
    def deliver(self, number, server, everywhere):
        chosen = range(len(self.servers.cores)) if everywhere else [self.server(server)]
        for one in chosen:
            self.servers.deliver(Batch(self.servers.epoch, number), one)

    @rule(number=numbers, server=any_server)
    def lease_again(self, number, server):
        batch = Batch(self.servers.epoch, number)
        self.servers.lease_again(batch.task)
        self.servers.deliver_late(batch, self.server(server), attempts_ago=1)

    @precondition(lambda self: self.servers.epoch < NUM_EPOCHS - 1)
    @rule(server=any_server)
    def begin_epoch(self, server):
        self.servers.begin_epoch(self.server(server))

    @rule(number=numbers, server=any_server, ahead=st.sampled_from([-1, 1]))
    def push_of_another_generation(self, number, server, ahead):
        self.servers.push_of_another_generation(
            Batch(self.servers.epoch, number), self.server(server), ahead=ahead
        )

    @rule(full=st.booleans(), late=few_batches)
    def take_cut(self, full, late):
        self.servers.take_cut(full=full, late=self.batches(late))

    @rule(full=st.booleans(), late=few_batches, failing=any_server)
    def fail_at_a_cut(self, full, late, failing):
        self.servers.take_cut(full=full, late=self.batches(late), failing=self.server(failing))

    @rule(back=st.integers(0, 3), num_servers=st.integers(1, MOST_SERVERS), survive=st.booleans())
    def restore(self, back, num_servers, survive):
        cuts = sorted(self.servers.cuts)
        cut = cuts[max(len(cuts) - 1 - back, 0)]
        self.servers.restore(cut, num_servers, survive=survive)

    @rule(late=few_batches, delivered=few_batches, num_servers=st.integers(1, MOST_SERVERS))
    def fail_after_a_cut(self, late, delivered, num_servers):
        """What single steps would tell too rarely: parts that differ after some restores."""
        self.servers.take_cut(full=False, late=self.batches(late))
        for batch in self.batches(delivered):
            self.servers.deliver(batch, self.server(batch.number))
        self.servers.restore(self.servers.last_cut, num_servers)

    @rule()
    def restore_again(self):
        self.servers.restore_again()

    @invariant()
    def check(self):
        self.servers.check()

    def batches(self, some):
        return [Batch(self.servers.epoch, number) for number in some]

    def teardown(self):
        try:
            self.servers.end()
        finally:
            shutil.rmtree(self.folder)


def small(spec, folder):
    """A job small enough for many cuts: nine rows in four partitions, five dense values."""
    return replace(
        spec,
        tables=(TableSpec("a", 5), TableSpec("b", 4)),
        counts_file="",
        num_dense=5,
        num_partitions=4,
        checkpoints_folder=str(Path(folder)),
    )
