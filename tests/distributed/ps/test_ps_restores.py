"""Cuts and restores: what a cut holds is what was applied, and nothing is applied again."""

import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from ctr_pipeline.distributed.coordination.codec import decode, encode
from ctr_pipeline.distributed.coordination.messages import (
    PartitionFiles,
    RestoreRequest,
    SnapshotRequest,
    TaskBitmap,
)
from ctr_pipeline.distributed.ps import server_state as server_state_module
from ctr_pipeline.distributed.ps.core import PsCore
from ctr_pipeline.distributed.rpc.packed import DenseRequest, Status
from ctr_pipeline.embeddings.partition import partitions_of
from ctr_pipeline.embeddings.row_log import RowLogWriter
from ctr_pipeline.embeddings.snapshot import RowSnapshot
from ctr_pipeline.embeddings.store import EmbeddingStore
from ctr_pipeline.embeddings.update_kernels import HEADER_WORDS
from tests.distributed.ps_requests import Caller, batch, counting, key, owned_keys
from tests.distributed.waiting import wait_until

KEYS = np.array([key(0, 1), key(0, 2), key(1, 33), key(2, 700), key(2, 701)])


def restore_request(replies, generation, cut):
    """As the master makes it of its manifest; each message travels as JSON."""
    replies = [decode(type(reply), encode(reply)) for reply in replies]
    chains = {}
    for server, reply in enumerate(replies):
        assert not reply.refused
        for file in reply.files:
            if file.kind != "dense":
                chains.setdefault(file.partition, ([], server))[0].append(file)
    request = RestoreRequest(
        generation=generation,
        cut=cut,
        partitions=tuple(
            PartitionFiles(partition, tuple(files), server)
            for partition, (files, server) in sorted(chains.items())
        ),
        dense=tuple(file for reply in replies for file in reply.files if file.kind == "dense"),
        bitmaps=tuple(reply.bitmaps for reply in replies),
    )
    return decode(RestoreRequest, encode(request))


def take_cut(cores, generation, cut, parent=0, oldest_step=0):
    request = SnapshotRequest(generation, cut, parent, parent == 0, oldest_step)
    return [core.checkpoints.snapshot(request) for core in cores]


def restored(spec, request):
    cores = [PsCore(spec, index) for index in range(spec.num_parameter_servers)]
    for core in cores:
        assert not core.checkpoints.restore(request).refused
    return cores


class Job:
    """Batches of a counting job on some servers; each names some of a few rows."""

    def __init__(self, cores, generation):
        self.generation = generation
        self.callers = [Caller(core) for core in cores]
        self.spec = cores[0].spec

    def keys_of(self, number, server):
        named = KEYS[[number % 5, (number + 2) % 5]]
        return named[np.isin(named, owned_keys(self.spec, server))]

    def push(self, number, server):
        caller, keys = self.callers[server], self.keys_of(number, server)
        caller.pull(keys, batch=batch(number), generation=self.generation)
        # Versions are not looked at: the mode is asynchronous.
        return caller.push(keys, batch(number), generation=self.generation).status

    def train(self, numbers):
        for number in numbers:
            for server in range(len(self.callers)):
                assert self.push(number, server) in {Status.DONE, Status.REPEATED}

    def counts(self):
        """Times that each row was updated, and each dense value."""
        rows = dict.fromkeys(KEYS.tolist(), 0.0)
        dense = []
        for server, caller in enumerate(self.callers):
            keys = KEYS[np.isin(KEYS, owned_keys(self.spec, server))]
            values, own = caller.values(keys, self.generation)
            rows.update(zip(keys.tolist(), values, strict=True))
            dense += own
        return list(rows.values()), dense


@pytest.mark.parametrize("servers", [(1, 3), (3, 1), (2, 4)])
def test_rows_that_are_old_at_a_cut_are_gone_for_good(
    make_spec, make_core, make_optimizer, tmp_path, servers
):
    spec = counting(make_spec(), make_optimizer, num_partitions=5)
    specs = [replace(spec, num_parameter_servers=number) for number in servers]
    cores = [make_core(specs[0], index) for index in range(servers[0])]
    callers = [Caller(core) for core in cores]

    def push(number, keys):
        for server, caller in enumerate(callers):
            named = np.asarray(keys)[np.isin(keys, owned_keys(specs[0], server))]
            caller.pull(named)
            assert caller.push(named, batch(number)).status is Status.DONE

    for caller in callers:
        caller.init()
    # Of steps 1, 2, 3 and 4; the second key goes on, the fifth is pulled and not yet trained.
    push(0, KEYS[:2])
    base = take_cut(cores, 0, 1)
    push(1, KEYS[2:3])
    push(2, KEYS[1:2])
    push(3, KEYS[3:4])
    for server, caller in enumerate(callers):
        caller.pull(KEYS[4:][np.isin(KEYS[4:], owned_keys(specs[0], server))])
    delta = take_cut(cores, 0, 2, parent=1, oldest_step=3)
    assert sum(core.state.num_evicted for core in cores) == 2
    assert sum(core.state.num_rows for core in cores) == 3
    # The same request again, as after a lost answer, removes no more.
    assert take_cut(cores, 0, 2, parent=1, oldest_step=3) == delta
    kinds = {file.kind for reply in delta for file in reply.files if file.kind != "dense"}
    assert kinds == {"delta"}

    chained = [
        replace(
            after,
            files=(*(file for file in before.files if file.kind != "dense"), *after.files),
        )
        for before, after in zip(base, delta, strict=True)
    ]
    again = restored(specs[1], restore_request(chained, 1, 2))
    counts = {}
    for server, core in enumerate(again):
        keys = KEYS[np.isin(KEYS, owned_keys(specs[1], server))]
        counts.update(zip(keys.tolist(), Caller(core).values(keys, 1)[0], strict=True))
    assert sum(core.state.num_rows for core in again) == 3
    assert [counts[one] for one in KEYS.tolist()] == [0.0, 2.0, 0.0, 1.0, 0.0]


def expected_counts(numbers):
    rows = np.zeros(5)
    for number in numbers:
        rows[[number % 5, (number + 2) % 5]] += 1
    return rows.tolist(), [float(len(numbers))] * 37


def test_a_batch_that_only_some_parts_have_is_applied_to_the_others(
    make_spec, make_core, make_optimizer
):
    spec = counting(make_spec(), make_optimizer)
    two = replace(spec, num_parameter_servers=2)
    cores = [make_core(two, index) for index in range(2)]
    for core in cores:
        Caller(core).init()
    job = Job(cores, 0)
    # Server 0 has batch 0, server 1 does not: the worker died between the acknowledgements.
    assert job.push(0, 0) is Status.DONE
    job = Job(restored(spec, restore_request(take_cut(cores, 0, 1), 1, 1)), 1)
    dense_before = job.counts()[1]
    assert dense_before == [1.0] * 18 + [0.0] * 19
    assert job.push(0, 0) is Status.DONE
    assert job.counts() == expected_counts([0])
    assert job.push(0, 0) is Status.REPEATED


def test_marks_of_equal_parts_are_one(make_spec, make_core, make_optimizer):
    core = make_core(counting(make_spec(), make_optimizer))
    Caller(core).init()
    Job([core], 0).train([0, 1, 5])
    (reply,) = take_cut([core], 0, 1)
    assert reply.bitmaps == (TaskBitmap(0, 0, 0b100011, None),)
    assert reply.version == 3


def test_a_restored_server_trains_on_with_the_same_bits(make_spec, make_core):
    """Slots, training counts and the dense optimizer's state are all in the cut."""
    spec = make_spec()
    keys = owned_keys(spec, 0)[::50]
    initial = np.random.default_rng(8).standard_normal(37).astype(np.float32)

    def train(caller, numbers, generation):
        for number in numbers:
            rng = np.random.default_rng(number)
            caller.pull(keys, generation=generation)
            caller.push(
                keys,
                batch(number),
                generation=generation,
                step=number + 1,
                sums=rng.standard_normal((len(keys), 5)).astype(np.float32),
                dense=rng.standard_normal(37).astype(np.float32),
            )

    whole, stopped = (Caller(make_core(spec)) for _ in range(2))
    for caller in (whole, stopped):
        caller.core.updates.init_dense(DenseRequest(0, 0, initial))
    train(whole, range(6), 0)
    train(stopped, range(3), 0)
    request = restore_request(take_cut([stopped.core], 0, 1), 1, 1)
    again = Caller(restored(spec, request)[0])
    train(again, range(3, 6), 1)
    expected, found = whole.pull(keys), again.pull(keys, generation=1)
    np.testing.assert_array_equal(found.values, expected.values)
    np.testing.assert_array_equal(found.dense, expected.dense)


def test_deltas_and_their_base_are_the_rows_at_the_last_cut(make_spec, make_core, make_optimizer):
    spec = counting(make_spec(), make_optimizer)
    core = make_core(spec)
    Caller(core).init()
    job = Job([core], 0)
    job.train([0, 1])
    (base,) = take_cut([core], 0, 1)
    job.train([2])
    (delta,) = take_cut([core], 0, 2, parent=1)
    job.train([3])
    rows = [file for file in delta.files if file.kind == "delta"]
    assert rows
    assert sum(file.num_rows for file in rows) == 2
    chained = replace(
        delta,
        files=tuple(file for file in base.files if file.kind == "base") + delta.files,
    )
    job = Job(restored(spec, restore_request([chained], 1, 2)), 1)
    assert job.counts() == expected_counts([0, 1, 2])
    job.train(range(4))
    assert job.counts() == expected_counts(range(4))


def test_a_cut_after_one_that_the_master_gave_up_holds_all_rows(
    make_spec, make_core, make_optimizer
):
    core = make_core(counting(make_spec(), make_optimizer))
    Caller(core).init()
    job = Job([core], 0)
    job.train([0])
    take_cut([core], 0, 1)
    job.train([1])
    # Another server failed at cut 2: the master builds on cut 1 again.
    take_cut([core], 0, 2, parent=1)
    (reply,) = take_cut([core], 0, 3, parent=1)
    assert {file.kind for file in reply.files} == {"base", "dense"}


def test_a_repeated_request_for_a_cut_gets_the_same_answer(make_spec, make_core, make_optimizer):
    core = make_core(counting(make_spec(), make_optimizer))
    Caller(core).init()
    job = Job([core], 0)
    job.train([0])
    (first,) = take_cut([core], 0, 1)
    job.train([1])
    assert take_cut([core], 0, 1) == [first]


def test_cut_of_another_generation_or_without_dense_values_is_refused(make_spec, make_core):
    core = make_core(make_spec())
    (reply,) = take_cut([core], 0, 1)
    assert "dense" in reply.refused
    (reply,) = take_cut([core], 4, 1)
    assert "generation 4" in reply.refused


def test_a_full_disk_is_told_and_the_next_cut_holds_all_rows(make_spec, make_core, make_optimizer):
    core = make_core(counting(make_spec(), make_optimizer))
    Caller(core).init()
    job = Job([core], 0)
    job.train([0])
    (base,) = take_cut([core], 0, 1)
    folder = Path(core.spec.checkpoints_folder)
    moved = folder.with_name("moved")
    folder.rename(moved)
    job.train([1])
    (failed,) = take_cut([core], 0, 2, parent=1)
    assert failed.refused
    moved.rename(folder)
    # Training went on, and what the failed cut had begun is forgotten.
    job.train([2])
    (reply,) = take_cut([core], 0, 3, parent=1)
    assert {file.kind for file in reply.files} == {"base", "dense"}
    assert base.files != reply.files


@pytest.mark.parametrize("kind", ["rows", "dense"])
def test_a_damaged_file_is_named_and_an_earlier_cut_can_be_restored_instead(
    make_spec, make_core, make_optimizer, kind
):
    spec = counting(make_spec(), make_optimizer)
    core = make_core(spec)
    Caller(core).init()
    job = Job([core], 0)
    job.train([0])
    good = restore_request(take_cut([core], 0, 1), 2, 1)
    job.train([1])
    bad = restore_request(take_cut([core], 0, 2), 1, 2)
    files = bad.dense if kind == "dense" else [f for p in bad.partitions for f in p.files]
    name = max(files, key=lambda file: file.num_bytes).name
    path = Path(spec.checkpoints_folder) / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    reply = core.checkpoints.restore(bad)
    assert name in reply.refused
    # It serves nobody until there is something to serve.
    assert job.callers[0].pull([], generation=1).status is Status.NOT_READY
    assert reply.damaged
    assert core.checkpoints.restore(good).refused == ""
    assert Job([core], 2).counts() == expected_counts([0])


def test_files_that_are_away_are_no_damage_and_are_restored_once_they_are_back(
    make_spec, make_core, make_optimizer
):
    core = make_core(counting(make_spec(), make_optimizer))
    Caller(core).init()
    Job([core], 0).train([0])
    request = restore_request(take_cut([core], 0, 1), 1, 1)
    folder = Path(core.spec.checkpoints_folder)
    moved = folder.rename(folder.with_name("moved"))
    # As under the place where a volume is mounted.
    folder.mkdir()
    reply = core.checkpoints.restore(request)
    assert ("not there" in reply.refused, reply.damaged, reply.announced) == (True, False, 0)
    folder.rmdir()
    moved.rename(folder)
    assert core.checkpoints.restore(request).refused == ""
    assert Job([core], 1).counts() == expected_counts([0])


def test_a_restore_waits_for_threads_as_for_storage(
    make_spec, make_core, make_optimizer, monkeypatch
):
    core = make_core(counting(make_spec(), make_optimizer))
    Caller(core).init()
    Job([core], 0).train([0])
    request = restore_request(take_cut([core], 0, 1), 1, 1)
    with monkeypatch.context() as refused:

        def refuse(_):
            raise RuntimeError("can't start new thread")

        refused.setattr("threading.Thread.start", refuse)
        reply = core.checkpoints.restore(request)
        assert (reply.refused, reply.damaged) == ("the system allows no more threads", False)
    assert core.checkpoints.restore(request).refused == ""
    assert Job([core], 1).counts() == expected_counts([0])


def test_no_cut_is_written_where_its_folder_is_away(make_spec, make_core, make_optimizer):
    core = make_core(counting(make_spec(), make_optimizer))
    Caller(core).init()
    Job([core], 0).train([0])
    folder = Path(core.spec.checkpoints_folder)
    folder.rename(folder.with_name("moved"))
    folder.mkdir()
    (reply,) = take_cut([core], 0, 1)
    assert reply.of_storage
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("kind", ["rows", "dense"])
def test_a_cut_with_a_value_that_is_not_finite_is_given_up(
    make_spec, make_core, make_optimizer, kind
):
    core = make_core(counting(make_spec(), make_optimizer))
    caller = Caller(core)
    caller.init()
    Job([core], 0).train([0])
    if kind == "rows":
        core.state.store.rows.records_NR[0, HEADER_WORDS] = np.nan
    else:
        # Each gradient is finite, and their sum is not.
        for number in (1, 2):
            dense = np.full(caller.last - caller.first, 3e38, np.float32)
            caller.push(owned_keys(core.spec, 0), batch(number), dense=dense)
    (reply,) = take_cut([core], 0, 1)
    assert ("not finite" in reply.refused, reply.of_storage) == (True, False)


def test_updates_go_on_while_a_cut_is_written_and_are_not_in_it(
    make_spec, make_core, make_optimizer, monkeypatch
):
    spec = counting(make_spec(), make_optimizer)
    core = make_core(spec)
    caller = Caller(core)
    caller.init()
    keys = owned_keys(spec, 0)
    caller.pull(keys)
    caller.push(keys, batch(0))
    ended, is_written = threading.Event(), threading.Event()
    pushed = []
    write = RowLogWriter.flush

    def note_that_it_is_written(self):
        is_written.set()
        write(self)

    monkeypatch.setattr(RowLogWriter, "flush", note_that_it_is_written)

    def train():
        for number in range(1, 60):
            caller.push(keys, batch(number))
            pushed.append(number)
            if ended.is_set():
                return
            if number == 30:
                # However fast it is, some come later than the cut begins.
                is_written.wait(60)

    thread = threading.Thread(target=train)
    thread.start()
    wait_until(lambda: len(pushed) >= 2)
    (reply,) = take_cut([core], 0, 1)
    ended.set()
    thread.join()
    again = Caller(restored(spec, restore_request([reply], 1, 1))[0])
    values, dense = again.values(keys, 1)
    applied = reply.version
    assert 3 <= applied < core.serving.version
    assert set(values) == {float(applied)}
    assert set(dense) == {float(applied)}
    # Its bitmaps say exactly what it holds.
    assert reply.bitmaps == (TaskBitmap(0, 0, (1 << applied) - 1, None),)


def test_a_rollback_ends_a_cut_that_is_being_written(make_spec, make_core, make_optimizer):
    spec = counting(make_spec(), make_optimizer)
    core = make_core(spec)
    caller = Caller(core)
    caller.init()
    caller.pull(owned_keys(spec, 0))
    replies = []
    # The writer of rows cannot go on while somebody holds the rows' own lock.
    with core.state.store.rows.lock:
        thread = threading.Thread(target=lambda: replies.extend(take_cut([core], 0, 1)))
        thread.start()
        pause = threading.Event()
        pause.wait(0.05)
    restoring = core.checkpoints.restore(RestoreRequest(1, 0, (), (), ()))
    thread.join(60)
    assert not restoring.refused
    assert core.serving.generation == 1
    # Written in time or given up, never a mixture.
    assert replies[0].refused in {
        "",
        "the job was rolled back meanwhile",
        "generation 0 is not the one that is served",
    }


def test_rows_go_to_the_servers_of_their_partitions(make_spec, make_core, make_optimizer):
    spec = counting(make_spec(), make_optimizer)
    core = make_core(spec)
    caller = Caller(core)
    caller.init()
    keys = owned_keys(spec, 0)
    caller.pull(keys)
    request = restore_request(take_cut([core], 0, 1), 1, 1)
    three = replace(spec, num_parameter_servers=3)
    for server, restored_core in enumerate(restored(three, request)):
        mine = keys[partitions_of(keys, spec.num_partitions) % 3 == server]
        assert restored_core.state.num_rows == len(mine)


def stall_disk(monkeypatch, *, timeout_seconds):
    """Cuts have room for a row and stop at the disk: told when one does, and until it may go on."""
    monkeypatch.setattr(
        server_state_module,
        "RowSnapshot",
        partial(RowSnapshot, saved_bytes=1, chunk_bytes=1, timeout_seconds=timeout_seconds),
    )
    stalls, disk_goes_on = threading.Event(), threading.Event()
    write = RowLogWriter.flush

    def stall(self):
        stalls.set()
        assert disk_goes_on.wait(60)
        write(self)

    monkeypatch.setattr(RowLogWriter, "flush", stall)
    return stalls, disk_goes_on


def test_an_update_does_not_wait_for_a_stalled_disk(
    make_spec, make_core, make_optimizer, monkeypatch
):
    spec = counting(make_spec(), make_optimizer)
    core = make_core(spec)
    caller = Caller(core)
    caller.init()
    keys = owned_keys(spec, 0)
    caller.pull(keys)
    stalls, disk_goes_on = stall_disk(monkeypatch, timeout_seconds=0.0)
    replies = []
    thread = threading.Thread(target=lambda: replies.extend(take_cut([core], 0, 1)))
    thread.start()
    wait_until(stalls.is_set)
    try:
        assert caller.push(keys, batch(0)).status is Status.DONE
        # So does every other caller.
        assert caller.values(keys)[0] == [1.0] * len(keys)
    finally:
        disk_goes_on.set()
        thread.join(60)
    # The cut fails; tried again, it holds what was pushed.
    assert "the disk has stalled" in replies[0].refused
    monkeypatch.undo()
    reply = take_cut([core], 0, 2)[0]
    assert not reply.refused
    assert reply.bitmaps == (TaskBitmap(0, 0, 1, None),)


def test_calls_wait_for_a_disk_only_to_update_rows_that_a_cut_still_needs(
    make_spec, make_core, make_optimizer, monkeypatch
):
    spec = counting(make_spec(), make_optimizer)
    core = make_core(spec)
    caller = Caller(core)
    caller.init()
    keys = owned_keys(spec, 0)
    caller.pull(keys)
    stalls, disk_goes_on = stall_disk(monkeypatch, timeout_seconds=10.0)
    waits = threading.Event()
    await_room = RowSnapshot.await_room

    def note_wait(self, num_rows):
        waits.set()
        await_room(self, num_rows)

    monkeypatch.setattr(RowSnapshot, "await_room", note_wait)
    cuts, pushed = [], []
    threads = [threading.Thread(target=lambda: cuts.extend(take_cut([core], 0, 1)))]
    threads[0].start()
    wait_until(stalls.is_set)
    try:
        # A buffer holds one record: there is room for these, not for those.
        assert caller.push(keys[:5], batch(0)).status is Status.DONE
        assert len(keys) > 10
        threads.append(
            threading.Thread(target=lambda: pushed.append(caller.push(keys[-5:], batch(1))))
        )
        threads[1].start()
        assert waits.wait(60)
        assert caller.values(keys)[0] == [1.0] * 5 + [0.0] * (len(keys) - 5)
        assert not pushed
    finally:
        disk_goes_on.set()
        for thread in threads:
            thread.join(60)
    assert pushed[0].status is Status.DONE
    # The cut is of the instant before both.
    assert not cuts[0].refused
    assert cuts[0].bitmaps == ()


def test_calls_are_turned_away_without_waiting_while_rows_are_removed(
    make_spec, make_core, make_optimizer, monkeypatch
):
    spec = counting(make_spec(), make_optimizer)
    core = make_core(spec)
    caller = Caller(core)
    caller.init()
    caller.pull(owned_keys(spec, 0))
    assert caller.push(owned_keys(spec, 0)[:2], batch(0)).status is Status.DONE
    seen = []
    evict = EmbeddingStore.evict

    def look_on(store, oldest_step):
        # In this very thread: a lock that was held would never be given.
        seen.append(caller.pull(owned_keys(spec, 0)).status)
        seen.append(caller.push(owned_keys(spec, 0)[2:3], batch(1)).status)
        return evict(store, oldest_step)

    monkeypatch.setattr(EmbeddingStore, "evict", look_on)
    reply = take_cut([core], 0, 1, oldest_step=5)[0]
    assert seen == [Status.NOT_READY] * 2
    assert not reply.refused
    assert core.state.num_evicted == 2
    # Served again, and what was turned away is welcome.
    assert caller.push(owned_keys(spec, 0)[2:3], batch(1)).status is Status.DONE
