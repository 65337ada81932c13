"""A server alone: every batch is applied once, by whoever may, to the rows it names."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ctr_pipeline.distributed.coordination.messages import RestoreReply
from ctr_pipeline.distributed.ps.core import PsCore
from ctr_pipeline.distributed.rpc.failures import Refusal
from ctr_pipeline.distributed.rpc.packed import DenseRequest, Status
from ctr_pipeline.embeddings import row_kernels
from ctr_pipeline.embeddings.counts import unpack_counts
from ctr_pipeline.embeddings.rows import RowStorage
from tests.distributed.ps_requests import Caller, batch, counting, key, nothing_trained, owned_keys

KEYS = (key(0, 1), key(0, 2), key(2, 700))


@pytest.fixture
def spec(make_spec, make_optimizer):
    return counting(make_spec(), make_optimizer)


@pytest.fixture
def caller(spec, make_core):
    found = Caller(make_core(spec))
    found.init()
    found.pull(KEYS)
    return found


def test_a_push_moves_its_rows_and_the_dense_values(caller):
    reply = caller.push(KEYS[:2], batch(0))
    assert (reply.status, reply.version) == (Status.DONE, 1)
    assert caller.values(KEYS) == ([1.0, 1.0, 0.0], [1.0] * 37)
    assert reply.dense.tolist() == [1.0] * 37


def test_a_repeated_push_changes_nothing_and_says_so(caller):
    caller.push(KEYS, batch(0))
    reply = caller.push(KEYS, batch(0), fresh_keys=np.array(KEYS))
    assert (reply.status, reply.version) == (Status.REPEATED, 1)
    # The first reply may be lost: this one brings what it brought.
    assert reply.fresh[:, 0].tolist() == [1.0, 1.0, 1.0]
    assert reply.dense.tolist() == [1.0] * 37
    assert caller.values(KEYS)[0] == [1.0, 1.0, 1.0]


def test_a_later_attempt_repeats_nothing_and_shuts_out_the_earlier(caller):
    caller.push(KEYS, batch(0, attempt=1))
    assert caller.push(KEYS, batch(0, attempt=2)).status is Status.REPEATED
    # The zombie's batch was never applied, and is not by it.
    assert caller.push(KEYS, batch(1, attempt=1)).status is Status.SUPERSEDED
    assert caller.pull(KEYS, batch=batch(2, attempt=1)).status is Status.SUPERSEDED
    assert caller.push(KEYS, batch(1, attempt=2)).status is Status.DONE
    assert caller.values(KEYS)[0] == [2.0, 2.0, 2.0]


def test_a_pull_shuts_out_earlier_attempts_too(caller):
    caller.pull(KEYS, batch=batch(0, attempt=5))
    assert caller.push(KEYS, batch(0, attempt=4)).status is Status.SUPERSEDED
    assert caller.push(KEYS, batch(0, task=1, attempt=4)).status is Status.DONE


def test_an_epoch_that_is_over_is_shut_out(caller):
    caller.push(KEYS, batch(0, epoch=0))
    caller.push(KEYS, batch(0, epoch=1))
    assert caller.push(KEYS, batch(1, epoch=0, attempt=9)).status is Status.SUPERSEDED
    assert caller.values(KEYS)[0] == [2.0, 2.0, 2.0]


def test_other_generations_are_not_served(caller):
    assert caller.push(KEYS, batch(0), generation=1).status is Status.NOT_READY
    caller.core.checkpoints.restore(nothing_trained(3))
    for generation, status in ((0, Status.ROLLED_BACK), (2, Status.ROLLED_BACK)):
        reply = caller.push(KEYS, batch(0), generation=generation)
        assert (reply.status, reply.generation) == (status, 3)
        assert caller.pull(KEYS, generation=generation).status is status
    assert caller.core.state.num_rows == 0


def test_server_serves_nothing_before_the_first_restore(spec):
    waiting = Caller(PsCore(spec, 0))
    assert waiting.pull(KEYS).status is Status.NOT_READY
    assert waiting.push(KEYS, batch(0)).status is Status.NOT_READY
    assert waiting.init().status is Status.NOT_READY


def test_a_restore_forgets_attempts_of_the_generation_before(caller):
    caller.push(KEYS, batch(0, attempt=7))
    caller.core.checkpoints.restore(nothing_trained(1))
    caller.init(generation=1)
    caller.pull(KEYS, generation=1)
    assert caller.push(KEYS, batch(0, attempt=1), generation=1).status is Status.DONE


def test_a_repeated_restore_changes_nothing(caller):
    caller.pull(KEYS)
    assert caller.core.checkpoints.restore(nothing_trained(0)) == RestoreReply("", 3)


def test_a_master_without_its_ledger_is_told_which_generation_is_beyond_those_of_before(caller):
    caller.core.checkpoints.restore(nothing_trained(9))
    caller.init(generation=9)
    caller.push(KEYS, batch(0), generation=9)
    # Older, of another cut, and the very same after an update: none of them is done.
    for request in (
        nothing_trained(8),
        replace(nothing_trained(9), cut=4),
        nothing_trained(9),
    ):
        reply = caller.core.checkpoints.restore(request)
        assert (reply.refused != "", reply.announced, reply.damaged) == (True, 9, False)
        assert caller.core.serving.version == 1
    assert caller.core.checkpoints.restore(nothing_trained(10)).refused == ""
    assert caller.core.state.num_rows == 0


def test_an_older_restore_is_refused(caller):
    caller.core.checkpoints.restore(nothing_trained(2))
    assert "generation 2" in caller.core.checkpoints.restore(nothing_trained(1)).refused
    assert caller.core.serving.generation == 2


def test_a_pull_that_may_not_create_reads_zeros_and_makes_nothing(make_spec, make_core):
    reader = Caller(make_core(make_spec()))
    reader.init()
    found = reader.pull(KEYS, create=False)
    assert not found.values.any()
    assert reader.core.state.num_rows == 0
    made = reader.pull(KEYS, create=True)
    assert made.values.any()
    np.testing.assert_array_equal(reader.pull(KEYS, create=False).values, made.values)


def test_rows_are_the_same_whoever_makes_them_in_whatever_order(make_spec, make_core):
    one, other = (Caller(make_core(make_spec())) for _ in range(2))
    one.init()
    other.init()
    forwards = one.pull(KEYS).values
    for single in reversed(KEYS):
        other.pull([single])
    np.testing.assert_array_equal(forwards, other.pull(KEYS).values)


def test_dense_values_come_only_if_they_are_newer(caller):
    assert caller.pull(KEYS, dense_version=None).dense is None
    assert caller.pull(KEYS, dense_version=0).dense is None
    caller.push(KEYS, batch(0))
    assert caller.pull(KEYS, dense_version=0).dense.tolist() == [1.0] * 37
    assert caller.pull(KEYS, dense_version=1).dense is None


def test_bytes_of_dense_gradients_and_values_are_counted(caller):
    counts, before = caller.core.updates.counts, caller.core.updates.counts.dense_bytes
    assert caller.pull(KEYS).dense is not None
    assert counts.dense_bytes - before == 37 * 4
    caller.push(KEYS, batch(0))
    assert counts.dense_bytes - before == 3 * 37 * 4
    assert caller.pull(KEYS, dense_version=1).dense is None
    assert counts.dense_bytes - before == 3 * 37 * 4


def test_the_first_dense_values_win_and_differing_ones_are_refused(spec, make_core):
    first = Caller(make_core(spec))
    assert first.pull(KEYS).status is Status.NOT_READY
    assert first.pull(KEYS, dense_version=None).status is Status.DONE
    assert first.push(KEYS, batch(0)).status is Status.NOT_READY
    assert first.init(0.5).status is Status.DONE
    first.push(KEYS, batch(0))
    # Of another worker that starts later, when they have moved already.
    assert first.init(0.5).status is Status.REPEATED
    with pytest.raises(Refusal, match="other initial values"):
        first.init(0.25)
    assert first.values(KEYS)[1] == [1.5] * 37


def test_dense_values_of_another_model_are_refused(caller):
    with pytest.raises(Refusal, match="0 … 36"):
        caller.core.updates.init_dense(DenseRequest(0, 0, np.zeros(36, np.float32)))
    with pytest.raises(Refusal, match="dense gradients"):
        caller.push(KEYS, batch(0), dense=np.zeros(3, np.float32))


def test_rows_of_another_model_are_refused(caller):
    with pytest.raises(Refusal, match="values"):
        caller.push(KEYS, batch(0), sums=np.zeros((3, 4), np.float32))
    assert caller.push(KEYS, batch(0)).status is Status.DONE


@pytest.mark.parametrize("wrong", [key(0, 7), key(3, 0), -1, key(2, 2**43)])
def test_keys_that_cannot_be_are_refused(caller, wrong):
    with pytest.raises(Refusal, match="not one of server 0"):
        caller.pull([*KEYS, wrong])
    with pytest.raises(Refusal, match="not one of server 0"):
        caller.push([*KEYS, wrong], batch(0))
    assert caller.core.state.num_rows == 3


def test_keys_of_another_server_are_refused(spec, make_core):
    divided = replace(spec, num_parameter_servers=2)
    second = Caller(make_core(divided, 1))
    second.init()
    assert second.pull(owned_keys(divided, 1)).status is Status.DONE
    with pytest.raises(Refusal, match="not one of server 1"):
        second.pull(owned_keys(divided, 0)[:1])


def test_a_key_that_stands_twice_is_summed(caller):
    twice = [KEYS[0], KEYS[1], KEYS[0]]
    caller.push(twice, batch(0))
    assert caller.values(KEYS)[0] == [2.0, 1.0, 0.0]


def test_a_key_that_is_asked_for_twice_has_one_row(caller):
    ours, other = key(1, 5), key(1, 6)
    caller.pull([ours, other, ours])
    assert caller.core.state.num_rows == len(KEYS) + 2
    reply = caller.push([ours], batch(0), fresh_keys=np.array([ours, ours]))
    assert reply.fresh[:, 0].tolist() == [1.0, 1.0]
    assert caller.values([ours, other, ours])[0] == [1.0, 0.0, 1.0]


def test_a_pull_that_finds_no_room_is_refused_for_good(caller, monkeypatch):
    monkeypatch.setattr(RowStorage, "capacity", len(KEYS))
    more = [*KEYS, key(1, 39)]
    with pytest.raises(Refusal, match=r"no_room: 4 .* room for 3\. Lower vocabulary sizes"):
        caller.pull(more)
    # The server goes on with the rows that it has.
    assert caller.push(KEYS, batch(0)).status is Status.DONE
    assert caller.values(more)[0] == [1.0, 1.0, 1.0, 0.0]


@given(
    st.lists(st.tuples(st.integers(0, 39), st.booleans()), unique_by=lambda item: item[0]),
    st.randoms(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_vanished_key_never_moves_another_row(
    make_spec, make_core, make_optimizer, chosen, random
):
    # The rows of some keys are gone between pull and push: as if never made.
    caller = Caller(make_core(counting(make_spec(), make_optimizer)))
    caller.init()
    kept = [key(1, number) for number, stays in chosen if stays]
    caller.pull(kept)
    pushed = [key(1, number) for number, _ in chosen]
    random.shuffle(pushed)
    sums = -np.array([[place % (1 << 44) + 1] * 5 for place in pushed], np.float32).reshape(-1, 5)
    caller.push(pushed, batch(0), sums=sums)
    assert caller.values(kept)[0] == [number + 1 for number, stays in chosen if stays]
    assert caller.core.state.num_rows == len(kept)
    assert caller.core.updates.counts.vanished_keys == len(pushed) - len(kept)


@st.composite
def deliveries(draw):
    """Pushes of several batches, repeated and in any order, some by earlier attempts."""
    batches = draw(st.integers(1, 12))
    order = draw(st.lists(st.tuples(st.integers(0, batches - 1), st.integers(1, 3)), max_size=40))
    return batches, order


@given(deliveries())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_order_of_pushes_applies_each_batch_once(make_spec, make_core, make_optimizer, sent):
    num_batches, order = sent
    caller = Caller(make_core(counting(make_spec(), make_optimizer)))
    caller.init()
    rows = [key(1, number) for number in range(num_batches)]
    caller.pull(rows)
    newest, applied = 0, set()
    for number, attempt in order:
        # Each batch names its own row and one that all share.
        reply = caller.push([rows[number], key(0, 0)], batch(number, attempt=attempt))
        if attempt < newest:
            assert reply.status is Status.SUPERSEDED
            continue
        newest = attempt
        assert reply.status is (Status.REPEATED if number in applied else Status.DONE)
        applied.add(number)
    values, dense = caller.values(rows)
    assert values == [float(number in applied) for number in range(num_batches)]
    assert dense == [float(len(applied))] * 37 or (not applied and not dense)
    assert caller.core.serving.version == len(applied)


def test_training_counts_become_part_of_the_rows(make_spec, make_core, make_optimizer):
    # One segment of L2 by count shows them: w -= lr · strength · n / count · w, without gradient.
    spec = make_spec()
    segment = replace(
        spec.segments[1],
        optimizer=make_optimizer("sgd", 1.0),
        reduction="sum",
        l2_strength=0.5,
        l2_count_power=1,
    )
    caller = Caller(make_core(replace(spec, segments=(segment,))))
    caller.init()
    keys = [key(1, 5), key(2, 11)]
    before = caller.pull(keys).values
    caller.push(keys, batch(0), gradient=0.0)
    tables = unpack_counts(np.load(spec.counts_file), [table.num_ids for table in spec.tables])
    counts = np.array([tables[1].look_up(np.array([5])), tables[2].look_up(np.array([11]))])
    expected = before * (1 - 0.5 / np.maximum(counts, 1))
    np.testing.assert_allclose(caller.pull(keys).values, expected, rtol=1e-6)


def test_a_job_without_tables_has_dense_values_alone(make_spec, make_core, make_optimizer):
    spec = counting(make_spec(tables=(), counts_file=""), make_optimizer)
    caller = Caller(make_core(spec))
    caller.init()
    assert caller.push([], batch(0), sums=np.zeros((0, 5), np.float32)).status is Status.DONE
    assert caller.values([])[1] == [1.0] * 37
    with pytest.raises(Refusal):
        caller.pull(KEYS)


def test_an_update_that_fails_half_way_ends_the_server(
    make_spec, make_core, make_optimizer, monkeypatch
):
    ended = []
    core = make_core(counting(make_spec(), make_optimizer), fail_stop=ended.append)
    caller = Caller(core)
    caller.init()
    caller.pull(KEYS)

    def no_room(*_, **__):
        raise MemoryError

    # The rows have moved by then.
    monkeypatch.setattr("ctr_pipeline.distributed.ps.dense.DenseRange.update", no_room)
    with pytest.raises(MemoryError):
        caller.push(KEYS, batch(0))
    assert [type(error) for error in ended] == [MemoryError]


def test_rows_that_are_half_made_end_the_server(make_spec, make_core, make_optimizer, monkeypatch):
    ended = []
    core = make_core(counting(make_spec(), make_optimizer), fail_stop=ended.append)
    caller = Caller(core)
    caller.init()
    caller.pull(KEYS)

    def no_room(*_, **__):
        raise MemoryError

    # They can be found by then, and their values are yet to be written.
    monkeypatch.setattr(row_kernels, "write_fresh_rows", no_room)
    caller.pull(KEYS)
    assert not ended
    with pytest.raises(MemoryError):
        caller.pull([key(1, 5)])
    assert [type(error) for error in ended] == [MemoryError]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("MemoryError()", 71),
        ("ValueError('x')", 72),
        ('RuntimeError("can\'t start new thread")', 73),
    ],
)
def test_the_end_of_a_server_tells_why(error, code):
    program = (
        "import logging; logging.basicConfig();"
        "from ctr_pipeline.distributed.ps.fail_stop import end_process;"
        f"end_process({error}); print('goes on')"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert found.returncode == code
    assert "An update failed half way" in found.stderr
    assert "goes on" not in found.stdout
