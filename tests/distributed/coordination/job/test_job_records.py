"""What is written to the ledger follows from what has changed, whoever changed it."""

import json
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from ctr_pipeline.distributed.coordination.cuts import CutRecord
from ctr_pipeline.distributed.coordination.job.records import LedgerRecords, read_records
from ctr_pipeline.distributed.coordination.job.state import JobState
from ctr_pipeline.distributed.coordination.members import MemberEnd
from ctr_pipeline.distributed.coordination.recorded import Recorded
from tests.distributed.coordination.job_world import make_settings


@dataclass
class Place(Recorded):
    durable: ClassVar[frozenset[str]] = frozenset({"owner"})
    lazy: ClassVar[frozenset[str]] = frozenset({"visits"})

    owner: str = ""
    visits: int = 0
    heard_at: float = 0.0


def test_a_new_object_has_not_changed():
    assert Place("me", 3).take_change() == (False, False)


@pytest.mark.parametrize(
    ("field", "value", "change"),
    [
        ("owner", "me", (True, True)),
        ("owner", "", (False, False)),
        ("visits", 1, (True, False)),
        ("heard_at", 1.0, (False, False)),
    ],
)
def test_a_change_is_told_once_and_only_where_the_value_is_another(field, value, change):
    place = Place()
    setattr(place, field, value)
    assert place.take_change() == change
    assert place.take_change() == (False, False)


def test_an_urgent_change_stays_urgent_when_a_lazy_one_follows():
    place = Place()
    place.owner, place.visits = "me", 1
    assert place.take_change() == (True, True)


@pytest.fixture
def state():
    """A job with an open epoch, whose beginning is written."""
    state = JobState.begin(make_settings(), 0.0)
    state.ledger.open_epoch(state.settings.plan_epoch(0))
    return state


@pytest.fixture
def records(state):
    records = LedgerRecords(state)
    assert set(records.take(state).records) == {"base", "head"}
    return records


def taken(records, state):
    """Names of the records of the next transaction, and whether it is durable."""
    transaction = records.take(state)
    return None if transaction is None else (set(transaction.records), transaction.durable)


def test_records_are_not_written_while_nothing_changes(records, state):
    state.member("worker", 0).note_heard(3.0)
    state.head.seconds[0] = 2.0
    assert taken(records, state) is None


def lease(state):
    state.head.attempt += 1
    return state.ledger.board.lease_next("w", state.head.attempt, 0.0)


def lose(state):
    state.member("worker", 1).last_end = MemberEnd("killed", -9)


def move(state):
    state.servers = replace(state.servers, wanted=3)


def add_cut(state):
    state.cuts[1] = CutRecord(1, parent=0, depth=0, best_cut=0)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lease, ({"head", "task/0"}, True)),
        (lambda state: state.ledger.board.release(lease(state)), ({"head", "task/0"}, True)),
        (lose, ({"member/worker/1"}, False)),
        (move, ({"servers"}, True)),
        (add_cut, ({"base", "head", "cut/1"}, True)),
        (lambda state: setattr(state.head, "errors_in_row", 1), ({"head"}, False)),
        (lambda state: state.begin_scoring(), ({"scoring"}, True)),
    ],
    ids=["lease", "release", "lose", "move", "cut", "error", "scoring"],
)
def test_a_change_is_written_under_its_name(records, state, change, expected):
    change(state)
    assert taken(records, state) == expected
    assert taken(records, state) is None


def test_a_cut_leaves_records_of_the_tasks_at_work_alone(records, state):
    held = lease(state)
    board = state.ledger.board
    done = lease(state)
    board.drop(done, "unreadable")
    written = dict(records.take(state).records)
    add_cut(state)
    after = records.take(state).records
    written.update(after)
    written = {name: record for name, record in written.items() if record is not None}
    stored = read_records(written, state.settings)
    assert stored.ledger.board.task(held).holder == "w"
    assert stored.ledger.board.task(done).dropped == "unreadable"
    assert stored.head.attempt == 2
    assert stored.cuts == state.cuts


def test_another_master_goes_on_where_the_one_before_ended(records, state):
    lease(state)
    written = {**LedgerRecords(state).take(state).records}
    stored = read_records(written, state.settings)
    heir = JobState.begin(state.settings, 0.0)
    heir.head, heir.ledger, heir.claims = stored.head, stored.ledger, stored.claims
    fresh = LedgerRecords(heir)
    fresh.continue_after(stored, heir)
    assert taken(fresh, heir) is None
    lease(heir)
    assert taken(fresh, heir) == ({"head", "task/1"}, True)


def test_member_end_comes_back_from_the_ledger(state):
    lose(state)
    written = LedgerRecords(state).take(state).records
    stored = read_records(json.loads(json.dumps(written)), state.settings)
    member = stored.members["worker", 1]
    assert member.last_end == MemberEnd("killed", -9)
    assert member.take_change() == (False, False)
