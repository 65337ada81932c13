import threading

import pytest

from ctr_pipeline.distributed.coordination.messages import (
    HeartbeatReply,
    Member,
    MemberStats,
    RegisterReply,
    checksum_of,
)
from ctr_pipeline.distributed.ps.core import PsCore
from ctr_pipeline.distributed.ps.metrics import PsFigures, PsMetrics
from ctr_pipeline.distributed.ps.session import PsSession
from ctr_pipeline.distributed.ps.updates import Updates
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.failures import CallRefused, PeerUnavailable
from ctr_pipeline.distributed.rpc.packed import Status
from ctr_pipeline.distributed.rpc.server import RpcServer
from ctr_pipeline.errors import CtrPipelineError
from ctr_pipeline.specs.course import UpdateRule
from tests.distributed.network import Clock, ScriptedMaster
from tests.distributed.ps_requests import Caller, Pushing, batch, key, nothing_trained
from tests.distributed.waiting import wait_until

GO_ON = HeartbeatReply("go_on", 3, ("here:1",), (), ("w0", "w1"))


def registered(spec, *, refused=""):
    return RegisterReply(refused, 3, spec, ("here:1",), 2.0)


@pytest.fixture
def core(make_spec):
    return PsCore(make_spec(update_rule=UpdateRule(update="sync", grads_to_wait=2)), 0)


@pytest.fixture
def master(core):
    return ScriptedMaster(Register=registered(core.spec), Heartbeat=GO_ON)


@pytest.fixture
def session(core, master):
    return session_of(core, master, Clock())


def session_of(core, master, clock):
    return PsSession(
        core,
        member=Member("ps", 0, "name"),
        address="here:1",
        metrics_address="here:2",
        connect=master.connect,
        stats=lambda: MemberStats(rows_held=7),
        clock=clock,
    )


def test_session_registers_and_then_sends_heartbeats(session, master):
    assert session.turn() == 2.0
    assert session.turn() == 2.0
    ((request,), (beat,)) = master.sent["Register"], master.sent["Heartbeat"]
    assert (request.address, request.metrics_address) == ("here:1", "here:2")
    assert request.member == Member("ps", 0, "name")
    assert beat.stats.rows_held == 7
    assert len(master.wire.lines) == 1


def test_session_never_gives_up_a_master_that_is_away(session, master, core):
    master.answer(Register=PeerUnavailable("gone"))
    pauses = [session.turn() for _ in range(30)]
    assert all(0 < pause <= 1.0 for pause in pauses)
    assert pauses[0] <= 0.1
    # It may come back elsewhere: each try looks up where it is.
    assert len(master.wire.lines) == len(master.wire.closed) == 30
    master.answer(Register=registered(core.spec))
    assert session.turn() == 2.0


def test_a_master_that_comes_back_is_not_told_again_who_we_are(session, master):
    session.turn()
    master.answer(Heartbeat=PeerUnavailable("gone"))
    session.turn()
    master.answer(Heartbeat=GO_ON)
    assert session.turn() == 2.0
    assert master.methods_called == ["Register", "Heartbeat", "Heartbeat"]


def test_a_master_that_does_not_know_us_is_told_at_once(session, master):
    session.turn()
    master.answer(Heartbeat=HeartbeatReply("register_again", 3, (), (), ()))
    assert session.turn() == 0.0
    session.turn()
    assert master.methods_called == ["Register", "Heartbeat", "Register"]


def test_server_leaves_when_told(session, master):
    session.turn()
    assert not session.must_leave
    master.answer(Heartbeat=HeartbeatReply("leave", 3, (), (), ()))
    session.turn()
    assert session.must_leave


class TestLeaving:
    """A server that was asked to end."""

    @pytest.fixture
    def clock(self):
        return Clock()

    @pytest.fixture
    def session(self, core, master, clock):
        session = session_of(core, master, clock)
        session.turn()
        return session

    def test_server_tells_the_master_how_long_it_stays_and_leaves_when_let_go(
        self, session, master, clock
    ):
        session.leave_within(27.0)
        assert session.turn() == 0.25
        clock.now = 5.0
        session.turn()
        times = [beat.leaves_in_seconds for beat in master.sent["Heartbeat"]]
        assert times == [27.0, 22.0]
        assert not session.must_leave
        master.answer(Heartbeat=HeartbeatReply("leave", 3, (), (), None))
        session.turn()
        assert session.must_leave

    def test_server_leaves_when_its_time_is_over(self, session, clock):
        session.leave_within(27.0)
        clock.now = 26.9
        assert not session.must_leave
        clock.now = 27.0
        assert session.must_leave

    def test_server_that_leaves_does_not_wait_for_a_master_that_is_away(
        self, session, master, clock
    ):
        session.leave_within(27.0)
        master.answer(Heartbeat=PeerUnavailable("gone"))
        session.turn()
        assert not session.must_leave
        clock.now = 1.5
        session.turn()
        assert session.must_leave

    def test_a_server_that_is_no_member_leaves_at_once(self, core, master, clock):
        session = session_of(core, master, clock)
        session.leave_within(27.0)
        assert session.must_leave


def test_heartbeats_say_which_workers_a_round_waits_for(session, core, master):
    named = []
    core.updates.set_active_workers = named.append
    session.turn()
    session.turn()
    assert named == [("w0", "w1")]
    assert master.sent["Heartbeat"][-1].active_workers == -1
    master.answer(Heartbeat=HeartbeatReply("go_on", 3, (), (), None))
    session.turn()
    assert named == [("w0", "w1")]
    assert master.sent["Heartbeat"][-1].active_workers == checksum_of(["w1", "w0"])


def test_heartbeats_and_metrics_wait_for_nobody_who_works_on_rows(core, master):
    caller = Caller(core)
    core.checkpoints.restore(nothing_trained(0))
    caller.init()
    server = RpcServer("Test", (), address="127.0.0.1:0", access=Access("token", None))
    figures = PsFigures(core, server, cores=1)
    session = PsSession(
        core,
        member=Member("ps", 0, "name"),
        address="here:1",
        metrics_address="here:2",
        connect=master.connect,
        stats=figures,
    )
    waiting = Pushing(caller, [key(0, 1)], batch(0))
    wait_until(lambda: core.updates.num_waiting == 1)
    master.answer(Heartbeat=HeartbeatReply("go_on", 0, ("here:1",), (), ("me",)))

    def beat():
        for _ in range(3):
            session.turn()
        list(PsMetrics(figures).collect())

    beating = threading.Thread(target=beat, daemon=True)
    # A disk may stall an update for long, the lock held.
    with core.serving.lock, core.state.store.rows.lock:
        beating.start()
        beating.join(60)
        assert not beating.is_alive()
        assert master.methods_called == ["Register", "Heartbeat", "Heartbeat"]
        assert core.updates.num_waiting == 1
    # What they told is not lost: nobody else can push.
    core.updates.keep_time()
    assert waiting.result().status is Status.DONE


def test_heartbeats_hurry_while_a_round_waits(session, monkeypatch):
    monkeypatch.setattr(Updates, "num_waiting", 1)
    session.turn()
    assert session.turn() == 0.25


def test_a_refusal_ends_it(session, master, core):
    master.answer(Register=registered(core.spec, refused="wrong config"))
    with pytest.raises(CtrPipelineError, match="wrong config"):
        session.turn()


@pytest.mark.parametrize("code", ["not_ready", "master_gone"])
def test_a_master_that_is_not_ready_is_asked_again(session, master, code):
    master.answer(Register=CallRefused(code, "soon"))
    assert session.turn() <= 0.1
    master.answer(Register=CallRefused("token", "no"))
    with pytest.raises(CallRefused):
        session.turn()


@pytest.mark.parametrize("code", ["token", "unknown_method"])
def test_a_stranger_at_the_address_of_a_master_that_answered_is_no_reason_to_end(
    session, master, code
):
    session.turn()
    master.answer(Heartbeat=CallRefused(code, "who are you"))
    assert session.turn() <= 0.1
    # The master is looked for where it is by now.
    assert master.wire.closed == ["master"]
    master.answer(Heartbeat=GO_ON)
    assert session.turn() == 2.0


def test_another_jobs_master_is_told_apart(session, master, make_spec):
    master.answer(Register=registered(make_spec(job="another")))
    with pytest.raises(CtrPipelineError, match="another one"):
        session.turn()
