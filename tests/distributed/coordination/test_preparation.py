"""Every row is encoded once, by one attempt that counts, whatever becomes of the workers."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.distributed.coordination.preparation import (
    MOST_UNITS,
    PreparationBoard,
    UnitReport,
    plan_units,
)

SILENCE_SECONDS = 5.0
MAX_FAILURES = 3
UNITS = [*plan_units("train", [10, 10, 10], 10), *plan_units("test", [4], 10)]


def make_board(records=None, units=UNITS):
    return PreparationBoard(
        units, records or {}, silence_seconds=SILENCE_SECONDS, max_failures=MAX_FAILURES
    )


def finish(board, worker, lease, now=0.0):
    report = UnitReport(worker, lease, lease.unit.num_rows, finished=True)
    return board.report(report, now).has_lease


@given(
    part_rows=st.lists(st.integers(1, 100), min_size=1, max_size=600),
    rows_per_unit=st.integers(1, 1000),
)
def test_units_hold_all_parts_in_order_and_are_few(part_rows, rows_per_unit):
    units = plan_units("train", part_rows, rows_per_unit)
    assert len(units) <= MOST_UNITS
    part = row = 0
    for number, unit in enumerate(units):
        assert (unit.number, unit.first_part, unit.first_row) == (number, part, row)
        assert unit.num_rows == sum(part_rows[part : part + unit.num_parts])
        assert unit.num_rows >= rows_per_unit or unit is units[-1]
        part, row = part + unit.num_parts, row + unit.num_rows
    assert (part, row) == (len(part_rows), sum(part_rows))


def test_units_are_leased_in_order_and_then_workers_wait_and_end():
    board = make_board()
    leases = [board.lease(f"w{number}", 0.0).lease for number in range(len(UNITS))]
    assert [lease.unit for lease in leases] == UNITS
    assert board.lease("late", 0.0).verdict == "wait"
    for number, lease in enumerate(leases):
        assert finish(board, f"w{number}", lease)
    assert board.lease("late", 0.0).verdict == "end"
    assert board.parts_of("train") == ["00000-1", "00001-1", "00002-1"]
    assert board.parts_of("test") == ["00000-1"]


def test_an_older_attempt_does_not_count():
    board = make_board()
    old = board.lease("a", 0.0).lease
    assert board.take_silent(SILENCE_SECONDS + 0.1) == ["a"]
    new = board.lease("b", 6.0).lease
    assert (new.unit, new.attempt) == (old.unit, 2)
    assert not finish(board, "a", old)
    assert board.num_done == 0
    assert finish(board, "b", new)
    assert not finish(board, "a", old)
    assert board.parts_of("train")[0] == new.part


def test_a_report_whose_answer_was_lost_is_answered_again():
    board = make_board()
    lease = board.lease("a", 0.0).lease
    assert finish(board, "a", lease)
    assert finish(board, "a", lease)
    assert board.num_done == 1


def test_a_worker_that_reports_keeps_its_unit():
    board = make_board()
    lease = board.lease("a", 0.0).lease
    for now in range(1, 30):
        board.report(UnitReport("a", lease, now % 10), float(now))
        assert not board.take_silent(now + SILENCE_SECONDS - 0.1)
    assert board.rows_done == 29 % 10


def test_a_unit_that_fails_too_often_fails_the_job_and_lost_workers_do_not():
    board = make_board()
    for number in range(10):
        board.lease(f"lost{number}", 0.0)
        board.lose(f"lost{number}", "")
    assert not board.failure
    for number in range(MAX_FAILURES):
        lease = board.lease(f"bad{number}", 0.0).lease
        assert lease.unit == UNITS[0]
        board.report(UnitReport(f"bad{number}", lease, 0, failure="the disk is full"), 0.0)
    assert "rows 0 to 9 of train" in board.failure
    assert "the disk is full" in board.failure
    assert board.lease("next", 0.0).verdict == "end"


def test_what_is_done_outlives_the_board_and_attempts_are_never_used_twice():
    board, records = make_board(), {}
    done, open_ = board.lease("a", 0.0).lease, board.lease("b", 0.0).lease
    finish(board, "a", done)
    records |= json.loads(json.dumps(board.take_changed()))
    after = make_board(records)
    assert after.num_done == 1
    again = after.lease("c", 0.0).lease
    assert again.unit == open_.unit
    assert again.attempt == open_.attempt + 1
    assert after.parts_of("train")[0] == done.part


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["lease", "rows", "finish", "fail", "lose", "blame", "silent", "restart"]),
        st.integers(0, 3),
        st.floats(0.0, 4.0),
    ),
    max_size=80,
)


@given(EVENTS)
def test_one_attempt_of_each_unit_counts_in_any_order_of_events(events):
    """A model of the disk: what attempts finished; leases that workers believe that they hold."""
    board, records, now = make_board(), {}, 0.0
    believed, written, used = {}, set(), set()
    for what, number, seconds in events:
        now += seconds
        worker = f"w{number}"
        lease = believed.get(worker)
        if what == "lease":
            reply = board.lease(worker, now)
            believed[worker] = reply.lease
            if reply.lease is not None:
                attempt = (reply.lease.unit.name, reply.lease.attempt)
                assert attempt not in used
                used.add(attempt)
        elif what in {"rows", "finish", "fail"} and lease is not None:
            if what == "finish":
                written.add((lease.unit.name, lease.attempt))
            failure = "bad" if what == "fail" else ""
            report = UnitReport(worker, lease, 3, finished=what == "finish", failure=failure)
            board.report(report, now)
        elif what in {"lose", "blame"}:
            board.lose(worker, "crashed" if what == "blame" else "")
            believed.pop(worker, None)
        elif what == "silent":
            board.take_silent(now)
        records |= json.loads(json.dumps(board.take_changed()))
        if what == "restart":
            board = make_board(records)
        for name, record in records.items():
            if record["is_done"]:
                assert (name, record["attempt"]) in written
        held = [board.unit_of(f"w{one}") for one in range(4)]
        named = [unit.name for unit in held if unit is not None]
        assert len(named) == len(set(named))
        assert 0 <= board.rows_done <= board.num_rows
    board = make_board(records)
    while (reply := board.lease("last", now)).lease is not None:
        assert (reply.lease.unit.name, reply.lease.attempt) not in used
        assert finish(board, "last", reply.lease, now)
    assert board.is_over
    assert board.rows_done == board.num_rows


@pytest.mark.parametrize("finished", [False, True])
def test_reports_on_other_units_are_refused(finished):
    board = make_board()
    (other,) = plan_units("train", [30], 30)
    lease = make_board(units=[other]).lease("a", 0.0).lease
    assert not board.report(UnitReport("a", lease, 3, finished=finished), 0.0).has_lease
    assert board.num_done == 0
