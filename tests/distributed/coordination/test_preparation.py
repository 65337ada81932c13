"""Every row is encoded once, by one attempt that counts, whatever becomes of the workers."""

import json
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.dataset.source import Unit as SourceUnit
from ctr_pipeline.distributed.coordination.preparation import (
    MOST_UNITS,
    PreparationBoard,
    Unit,
    UnitReport,
    plan_units,
)
from ctr_pipeline.pipeline.stages.read import name_of_ranges

SILENCE_SECONDS = 5.0
MAX_FAILURES = 3
UNITS = [*plan_units("train", [10, 10, 10], 10), *plan_units("test", [4], 10)]


def make_board(records=None, units=UNITS):
    return PreparationBoard(
        units, records or {}, silence_seconds=SILENCE_SECONDS, max_failures=MAX_FAILURES
    )


def finish(board, worker, lease, now=0.0):
    report = UnitReport(worker, lease, lease.unit.size, finished=True)
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
        assert (unit.number, unit.first_part, unit.start) == (number, part, row)
        assert unit.size == sum(part_rows[part : part + unit.num_parts])
        assert unit.size >= rows_per_unit or unit is units[-1]
        part, row = part + unit.num_parts, row + unit.size
    assert (part, row) == (len(part_rows), sum(part_rows))


def test_units_are_leased_in_order_until_there_is_none():
    board = make_board()
    leases = [board.lease(f"w{number}", 0.0) for number in range(len(UNITS))]
    assert [lease.unit for lease in leases] == UNITS
    assert board.lease("late", 0.0) is None
    for number, lease in enumerate(leases):
        assert finish(board, f"w{number}", lease)
    assert board.is_over
    assert board.lease("late", 0.0) is None
    assert board.parts_of("train") == ["00000-1", "00001-1", "00002-1"]
    assert board.parts_of("test") == ["00000-1"]


def test_an_older_attempt_does_not_count():
    board = make_board()
    old = board.lease("a", 0.0)
    assert board.take_silent(SILENCE_SECONDS + 0.1) == ["a"]
    new = board.lease("b", 6.0)
    assert (new.unit, new.attempt) == (old.unit, 2)
    assert not finish(board, "a", old)
    assert board.num_done == 0
    assert finish(board, "b", new)
    assert not finish(board, "a", old)
    assert board.parts_of("train")[0] == new.part


def test_a_report_whose_answer_was_lost_is_answered_again():
    board = make_board()
    lease = board.lease("a", 0.0)
    assert finish(board, "a", lease)
    assert finish(board, "a", lease)
    assert board.num_done == 1


def test_a_worker_that_reports_keeps_its_unit():
    board = make_board()
    lease = board.lease("a", 0.0)
    for now in range(1, 30):
        board.report(UnitReport("a", lease, now % 10), float(now))
        assert not board.take_silent(now + SILENCE_SECONDS - 0.1)
    assert board.amount_done == 29 % 10


def test_a_unit_that_fails_too_often_fails_the_job_and_lost_workers_do_not():
    board = make_board()
    for number in range(10):
        board.lease(f"lost{number}", 0.0)
        board.lose(f"lost{number}", "")
    assert not board.failure
    for number in range(MAX_FAILURES):
        lease = board.lease(f"bad{number}", 0.0)
        assert lease.unit == UNITS[0]
        board.report(UnitReport(f"bad{number}", lease, 0, failure="the disk is full"), 0.0)
    assert "rows 0 to 9 of train" in board.failure
    assert "the disk is full" in board.failure


def test_failed_reading_names_the_file_and_its_part():
    ranges = [SourceUnit("train", place, first) for place, first in (("a", 0), ("b", 0), ("b", 9))]
    (both,) = plan_units("train", [5, 5, 5], 15, "bytes", partial(name_of_ranges, ranges))
    one, other = plan_units("train", [5, 5, 5], 10, "bytes", partial(name_of_ranges, ranges))
    assert [unit.where for unit in (both, one, other)] == ["a to b", "a to b", "part 2 of 2 of b"]
    board = make_board(units=[other])
    lease = board.lease("w", 0.0)
    board.report(UnitReport("w", lease, 0, failure="not UTF-8", is_final=True), 1.0)
    assert board.failure == "part 2 of 2 of b could not be read: not UTF-8"
    assert board.lease("next", 0.0) is None


def test_units_done_outlive_the_board_and_attempts_are_never_used_twice():
    board, records = make_board(), {}
    done, open_ = board.lease("a", 0.0), board.lease("b", 0.0)
    finish(board, "a", done)
    records |= json.loads(json.dumps(board.take_changed()))
    after = make_board(records)
    assert after.num_done == 1
    again = after.lease("c", 0.0)
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
            lease = believed[worker] = board.lease(worker, now)
            if lease is not None:
                attempt = (lease.unit.name, lease.attempt)
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
        assert 0 <= board.amount_done <= board.size
    board = make_board(records)
    while (lease := board.lease("last", now)) is not None:
        assert (lease.unit.name, lease.attempt) not in used
        assert finish(board, "last", lease, now)
    assert board.is_over
    assert board.amount_done == board.size


@pytest.mark.parametrize("finished", [False, True])
def test_reports_on_other_units_are_refused(finished):
    board = make_board()
    (other,) = plan_units("train", [30], 30)
    lease = make_board(units=[other]).lease("a", 0.0)
    assert not board.report(UnitReport("a", lease, 3, finished=finished), 0.0).has_lease
    assert board.num_done == 0


def test_a_run_is_a_unit_of_its_stages_and_what_its_worker_says_is_taken_once():
    whole = Unit("run", 0, first_part=0, num_parts=1, start=0, size=5, measure="stages")
    board = PreparationBoard([whole], {}, silence_seconds=5.0, max_failures=2)
    first = board.lease("a", 0.0)
    board.report(UnitReport("a", first, 2, said=("Writing the report",)), 0.0)
    assert (board.amount_done, board.take_said(), board.take_said()) == (
        2,
        ["Writing the report"],
        [],
    )
    board.lose("a", "")
    # It speaks of a lease that it has lost.
    board.report(UnitReport("a", first, 5, finished=True, said=("Done",)), 0.0)
    assert (board.num_done, board.take_said()) == (0, [])
    for worker in ("b", "c"):
        lease = board.lease(worker, 0.0)
        board.report(UnitReport(worker, lease, 0, failure="the disk is full"), 0.0)
    assert board.failure == "the run could not be finished: the disk is full"
