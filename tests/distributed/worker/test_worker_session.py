import itertools
import threading

import pytest

from ctr_pipeline.distributed.coordination.messages import HeldLease, LeaseReply
from ctr_pipeline.distributed.rpc.failures import CallRefused, PeerUnavailable
from ctr_pipeline.errors import CtrPipelineError
from tests.distributed.network import Clock, ScriptedMaster
from tests.distributed.worker.session_world import (
    beat,
    end,
    leased,
    make_session,
    registered,
    run_for,
    tasks,
    wait,
)


def world(**answers):
    given = {"Register": [registered()], "Heartbeat": [beat()], "Lease": [wait()]} | answers
    master, clock = ScriptedMaster(**given), Clock(100.0)
    return master, clock, make_session(master, clock)


def mark(session, task, batch=0, *, finished=False, seconds=1.0):
    session.mark_batch(
        task, batch, loss_sum=1.0, repeated=False, finished=finished, seconds=seconds
    )


def test_registers_for_ever_with_growing_pauses():
    away = PeerUnavailable("nobody")
    master, clock, session = world(Register=[away] * 20 + [registered()])
    times = []
    for _ in range(100):
        before = len(master.wire.calls)
        pause = session.talk.turn()
        times += [clock.now] * (len(master.wire.calls) - before)
        if session.wait_task(0) is None and session.route.generation:
            break
        clock.now += pause
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert len(master.sent["Register"]) == 21
    assert 0 < gaps[0] <= 0.1
    assert 1.0 <= max(gaps) <= 2.0
    assert session.wait_registered().job == "job-1"
    assert session.route.is_complete
    # Each attempt connects anew: the master may be elsewhere by now.
    assert len(master.wire.lines) == 21


def test_holds_two_tasks_at_first_and_a_minute_of_work_later():
    master, clock, session = world(Lease=[tasks(leased(0), leased(1)), wait()])
    run_for(session, clock, 0.1)
    assert [request.num_tasks for request in master.sent["Lease"]] == [2]
    first = session.wait_task(0)
    mark(session, first, finished=True, seconds=4.0)
    run_for(session, clock, 0.1)
    # Sixteen tasks of four seconds each are a minute and one to work on; one is held.
    assert master.sent["Lease"][-1].num_tasks == 15


def test_a_lease_request_names_what_is_held():
    master, clock, session = world(Lease=[tasks(leased(4, 7)), wait()])
    run_for(session, clock, 3.0)
    held = (HeldLease(leased(4, 7).key, 7),)
    assert master.sent["Lease"][-1].held == held
    assert master.sent["Heartbeat"][-1].held == held


def test_progress_goes_out_within_a_fifth_of_a_second_and_silence_costs_little():
    master, clock, session = world(Lease=[tasks(leased(0), leased(1)), wait(100.0)])
    run_for(session, clock, 0.01)
    before = len(master.sent["Heartbeat"])
    run_for(session, clock, 5.0)
    assert len(master.sent["Heartbeat"]) - before == 5
    task = session.wait_task(0)
    mark(session, task, 0)
    run_for(session, clock, 0.21)
    (report,) = master.sent["Heartbeat"][-1].reports
    assert report.done_mask == 1
    # What was acknowledged is not said again.
    run_for(session, clock, 1.0)
    assert master.sent["Heartbeat"][-1].reports == ()


def test_the_end_of_a_task_does_not_wait():
    master, clock, session = world(Lease=[tasks(leased(0)), wait(100.0)])
    run_for(session, clock, 0.01)
    mark(session, session.wait_task(0), finished=True)
    session.talk.turn()
    assert master.sent["Heartbeat"][-1].reports[0].finished


def test_training_goes_on_while_the_master_is_away_and_reports_afterwards():
    away = PeerUnavailable("killed")
    master, clock, session = world(
        Lease=[tasks(leased(0), leased(1)), wait(1000.0)], Heartbeat=[beat(), away, away, beat()]
    )
    run_for(session, clock, 1.5)
    first = session.wait_task(0)
    for batch in range(5):
        mark(session, first, batch)
        run_for(session, clock, 0.05)
    assert session.holds(first)
    run_for(session, clock, 10.0)
    masks = [beat.reports[0].done_mask for beat in master.sent["Heartbeat"] if beat.reports]
    assert masks[-1] == 0b11111
    assert session.holds(first)
    assert len(master.wire.lines) > 1


def test_a_rollback_voids_leases_and_waits_for_servers():
    _, clock, session = world(
        Lease=[tasks(leased(0)), wait(1.5), tasks(leased(0, 2), generation=2), wait(generation=2)],
        Heartbeat=[
            beat(),
            beat(generation=2, addresses=("", "ps:2")),
            beat("go_on", 2, ("a", "b")),
        ],
    )
    run_for(session, clock, 1.5)
    old = session.wait_task(0)
    assert session.holds(old)
    run_for(session, clock, 0.6)
    assert not session.holds(old)
    assert session.route.generation == 2
    assert not session.route.is_complete
    run_for(session, clock, 1.0)
    assert session.wait_route(2).addresses == ("a", "b")
    run_for(session, clock, 2.0)
    assert session.wait_task(0).attempt == 2


def test_a_reply_of_an_older_generation_is_late():
    _, clock, session = world(
        Lease=[tasks(leased(0), generation=1)], Heartbeat=[beat(generation=1)]
    )
    session.talk.turn()
    session.rolled_back(5)
    run_for(session, clock, 2.0)
    assert session.route.generation == 5
    assert session.wait_task(0) is None


def test_a_server_that_knows_of_a_rollback_makes_us_ask_at_once():
    master, clock, session = world(Heartbeat=[beat(), beat(generation=2)])
    run_for(session, clock, 1.1)
    before = len(master.sent["Heartbeat"])
    session.rolled_back(2)
    session.talk.turn()
    assert len(master.sent["Heartbeat"]) == before + 1
    assert session.route.addresses == ("ps:1",)


def test_revoked_leases_are_dropped_and_others_stay():
    _, clock, session = world(
        Lease=[tasks(leased(0), leased(1)), wait(100.0)],
        Heartbeat=[beat(), beat(revoked=[HeldLease(leased(0).key, 1)]), beat()],
    )
    run_for(session, clock, 0.5)
    first, second = session.wait_task(0), session.wait_task(0)
    run_for(session, clock, 2.0)
    assert not session.holds(first)
    assert session.holds(second)


def test_an_unknown_worker_registers_again_with_nothing_in_hand():
    master, clock, session = world(
        Lease=[tasks(leased(0)), wait(100.0)], Heartbeat=[beat(), beat("register_again"), beat()]
    )
    run_for(session, clock, 0.5)
    task = session.wait_task(0)
    run_for(session, clock, 2.0)
    assert not session.holds(task)
    assert len(master.sent["Register"]) == 2
    assert {request.member.incarnation for request in master.sent["Register"]} == {"abc"}


def test_errors_are_never_the_end_but_end_is():
    away, bug = PeerUnavailable("down"), CallRefused("bug", "the master has a bug")
    master, clock, session = world(Lease=[away, bug, wait(0.1), end()])
    run_for(session, clock, 0.15)
    assert not session.is_over
    run_for(session, clock, 10.0)
    assert session.is_over
    assert len(master.sent["Lease"]) == 4
    # It still reports until it has left.
    assert len(master.sent["Heartbeat"]) >= 5


def test_a_master_that_ends_is_no_reason_to_end():
    gone = CallRefused("master_gone", "this master is ending")
    master, clock, session = world(Lease=[gone, wait(0.1), end()])
    run_for(session, clock, 0.05)
    assert not session.is_over
    run_for(session, clock, 10.0)
    session.raise_refusal()
    assert len(master.sent["Lease"]) == 3


@pytest.mark.parametrize("code", ["token", "unknown_method"])
def test_a_stranger_at_the_address_of_a_master_that_answered_is_no_reason_to_end(code):
    stranger = CallRefused(code, "who are you")
    master, clock, session = world(Lease=[stranger, wait(0.1), end()])
    run_for(session, clock, 0.05)
    assert not session.is_over
    run_for(session, clock, 10.0)
    session.raise_refusal()
    assert len(master.sent["Lease"]) == 3


def test_a_request_for_tasks_that_waits_holds_up_nothing_else():
    master, clock, session = world(Lease=[tasks(leased(0)), tasks(leased(1))])
    run_for(session, clock, 0.01)
    task = session.wait_task(0)
    master.keeps_leases = True
    mark(session, task, 0)
    run_for(session, clock, 0.3)
    assert master.sent["Heartbeat"][-1].reports[0].done_mask == 1
    mark(session, task, 1, finished=True)
    session.talk.turn()
    assert master.sent["Heartbeat"][-1].reports[0].finished
    run_for(session, clock, 3.0)
    assert len(master.sent["Lease"]) == 2
    assert session.wait_task(0) is None
    master.answer_leases()
    session.talk.turn()
    assert session.wait_task(0).key.task == 1


def test_an_idle_worker_asks_again_only_when_it_is_answered():
    master, clock, session = world(Lease=[wait(0.0)])
    master.keeps_leases = True
    run_for(session, clock, 60.0)
    assert len(master.sent["Lease"]) == 1
    assert len(master.sent["Heartbeat"]) == 60


@pytest.mark.parametrize("directive", ["leave", "register_again"])
def test_a_request_that_waits_is_taken_back_when_it_is_of_no_use(directive):
    master, clock, session = world(Heartbeat=[beat(), beat(directive), beat()])
    master.keeps_leases = True
    run_for(session, clock, 1.5)
    assert not master.kept[0][0].is_over
    run_for(session, clock, 1.0)
    assert master.kept[0][0].is_over


def test_a_worker_that_waits_and_is_told_to_leave_leaves():
    _, clock, session = world(Lease=[LeaseReply("leave", 1, (), 0.0)])
    run_for(session, clock, 0.1)
    assert session.is_over


def test_leaving_takes_no_more_tasks_and_reports_what_is_done():
    master, clock, session = world(
        Lease=[tasks(leased(0)), wait(0.1)], Heartbeat=[beat(), beat("leave")]
    )
    run_for(session, clock, 0.5)
    task = session.wait_task(0)
    run_for(session, clock, 2.0)
    assert session.is_over
    leases = len(master.sent["Lease"])
    mark(session, task, 2)
    run_for(session, clock, 2.0)
    assert len(master.sent["Lease"]) == leases
    assert [b.reports[0].done_mask for b in master.sent["Heartbeat"] if b.reports] == [4]


def test_a_worker_that_is_told_to_pause_hands_back_its_leases_once_its_loop_rests():
    master, clock, session = world(Lease=[tasks(leased(0), leased(1)), wait()])
    run_for(session, clock, 0.1)
    task = session.wait_task(0)
    master.answer(Heartbeat=beat("pause"))
    run_for(session, clock, 1.0)
    # The batch under way counts.
    assert session.is_pausing
    assert session.holds(task)
    mark(session, task)
    num_asked = len(master.sent["Lease"])
    session.pause(0.0)
    run_for(session, clock, 1.1)
    told = [request for request in master.sent["Heartbeat"] if request.paused]
    assert [report.done_mask for report in told[0].reports] == [1]
    assert not session.holds(task)
    assert told[-1].held == ()
    assert session.wait_task(0) is None
    assert len(master.sent["Lease"]) == num_asked
    master.answer(Heartbeat=beat("go_on"), Lease=[tasks(leased(0, 2))])
    run_for(session, clock, 1.1)
    assert not session.is_pausing
    assert session.wait_task(0).attempt == 2
    run_for(session, clock, 1.1)
    assert not master.sent["Heartbeat"][-1].paused


def test_a_pause_that_is_over_before_the_master_heard_of_it_is_told_all_the_same():
    master, clock, session = world(Lease=[tasks(leased(0), leased(1)), wait()])
    run_for(session, clock, 0.1)
    task = session.wait_task(0)
    master.answer(Heartbeat=[beat("pause"), PeerUnavailable("away")])
    run_for(session, clock, 1.0)
    session.pause(0.0)
    run_for(session, clock, 3.0)
    master.answer(Heartbeat=beat("go_on"))
    run_for(session, clock, 3.0)
    # The loop has dropped what it held, so nobody works on it any more.
    assert not session.holds(task)
    assert not session.is_pausing


@pytest.mark.parametrize(
    "answer",
    [registered(refused="another config"), CallRefused("token", "wrong token", place="m:1")],
)
def test_a_refusal_ends_the_session_with_its_reason(answer):
    master, _, session = world(Register=[answer])
    with session, pytest.raises(CtrPipelineError, match=r"another config|wrong token"):
        session.wait_registered()
    assert session.is_over
    assert master.wire.num_open == 0


def test_flush_waits_until_the_master_has_heard():
    master, clock, session = world(Lease=[tasks(leased(0)), wait(100.0)], Heartbeat=[beat()])
    run_for(session, clock, 0.5)
    task = session.wait_task(0)
    session.fail(task, "Traceback")
    assert not session.flush(0.0)
    heard = threading.Thread(target=session.talk.turn)
    heard.start()
    assert session.flush(10.0)
    heard.join()
    assert master.sent["Heartbeat"][-1].reports[0].failure == "Traceback"
