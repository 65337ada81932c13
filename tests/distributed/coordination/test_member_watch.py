"""Members of a job without a master, with a clock of numbers."""

from dataclasses import replace

import pytest

from ctr_pipeline.distributed.coordination.launching import ProcessState
from ctr_pipeline.distributed.coordination.member_watch import (
    MemberWatch,
    Replacement,
    report_seconds,
)
from ctr_pipeline.distributed.coordination.messages import Member, MemberReport, MemberStats
from ctr_pipeline.distributed.coordination.rendezvous import CutOff

SILENCE, STARTUP = 5.0, 120.0
WANTED = {"ps": 1, "worker": 1}


@pytest.fixture
def watch():
    return MemberWatch(silence_seconds=SILENCE, startup_timeout_seconds=STARTUP)


def process_of(role="ps", incarnation="first"):
    return ProcessState(role, 0, incarnation, 7, True, None, None, "", 0)


def ended(process, exit_code=-9, reason="killed"):
    return replace(process, running=False, exit_code=exit_code, reason=reason)


def report_of(process):
    who = Member(process.role, process.index, process.incarnation)
    return MemberReport(who, 70, "host", "127.0.0.1:9", MemberStats(rss_bytes=1, rows_held=5))


def state_of(watch, now, wanted=WANTED):
    (status,) = watch.statuses(wanted, now)
    return status.state


def test_a_server_that_reports_is_left_alone_and_one_that_stops_hangs(watch):
    process = process_of()
    for now in range(10):
        watch.hear(report_of(process), float(now))
        assert watch.see([process], float(now)) == ()
    (status,) = watch.statuses(WANTED, 9.0)
    assert (status.name, status.state, status.pid, status.address) == (
        "ps-0",
        "running",
        70,
        "127.0.0.1:9",
    )
    assert status.stats.rows_held == 5
    assert watch.see([process], 9.0 + SILENCE) == ()
    assert state_of(watch, 9.0 + SILENCE) == "silent"
    (hung,) = watch.see([process], 9.1 + SILENCE)
    assert (hung.role, hung.index, hung.incarnation) == ("ps", 0, "first")
    assert hung.why == "parameter server 0 was not heard for 5 s"


def test_member_is_ended_once_and_its_end_is_told_once(watch):
    process = process_of()
    watch.see([process], 0.0)
    watch.hear(report_of(process), 0.0)
    assert watch.take_stops(5.0) == ()
    assert len(watch.see([process], 6.0)) == 1
    assert watch.take_stops(6.0) == (process,)
    assert watch.see([process], 7.0) == ()
    assert watch.take_stops(7.0) == ()
    assert watch.take_stops(12.0) == (process,), "the launcher may have been busy"
    # What it still says comes too late.
    watch.hear(report_of(process), 7.0)
    assert watch.see([process], 7.0) == ()
    assert watch.end(ended(process), again_at=9.0) == ""
    watch.see([ended(process)], 8.0)
    assert state_of(watch, 8.0) == "backing off"
    following = process_of(incarnation="second")
    watch.see([following], 9.0)
    assert state_of(watch, 9.0) == "starting"
    watch.hear(report_of(following), 10.0)
    assert state_of(watch, 10.0) == "running"
    (status,) = watch.statuses(WANTED, 10.0)
    assert status.last_end.why == "parameter server 0 was not heard for 5 s"


def test_a_server_that_never_reports_hangs_after_the_time_for_its_start(watch):
    waiting = replace(process_of(), waits_for="waits for a node")
    assert watch.see([waiting], 0.0) == ()
    assert state_of(watch, 0.0) == "pending"
    process = process_of()
    assert watch.see([process], 1000.0) == ()
    assert watch.see([process], 1000.0 + STARTUP) == ()
    (hung,) = watch.see([process], 1000.1 + STARTUP)
    assert hung.why == "parameter server 0 did not report within 120 s of its start"
    assert "runtime.startup_timeout_seconds" in hung.remedy


def test_a_silent_worker_is_shown_and_left_alone(watch):
    process = process_of("worker")
    watch.see([process], 0.0)
    watch.hear(report_of(process), 0.0)
    assert watch.see([process], 1000.0) == ()
    assert state_of(watch, 1000.0) == "silent"
    assert watch.end(ended(process), again_at=1000.0) == "worker 0 was killed (SIGKILL)"
    watch.see([ended(process)], 1000.0)
    assert state_of(watch, 1000.0) == "ended"
    assert state_of(watch, 1000.0, {"ps": 1, "worker": 0}) == "left"


def test_a_worker_that_is_cut_off_is_replaced_and_named(watch):
    for index in range(2):
        process = replace(process_of("worker", f"first-{index}"), index=index)
        report = replace(report_of(process), address=f"127.0.0.1:{index}")
        watch.see([process], 0.0)
        watch.hear(report, 0.0)
    chosen = watch.cut_off(CutOff("127.0.0.1:1", ("127.0.0.1:0", "10.0.0.9:1")))
    why = "worker 1 and worker 0 and 10.0.0.9:1 cannot reach each other"
    assert chosen == Replacement("worker", 1, "first-1", "worker 1", why)
    assert watch.end(ended(process, 74), again_at=3.0) == ""
    watch.see([ended(process, 74)], 1.0)
    _, status = watch.statuses({"worker": 2}, 1.0)
    assert (status.state, status.last_end.why) == ("backing off", why)
    assert watch.cut_off(CutOff("127.0.0.1:1", ("127.0.0.1:0",))) is None


@pytest.mark.parametrize(
    ("cut", "chosen"),
    [
        # One worker has no way to a server: all others have.
        ({0: ["ps"]}, ["worker 0"]),
        ({0: ["ps"], 1: ["ps"]}, ["parameter server 0"]),
        ({0: ["gone"]}, []),
    ],
)
def test_worker_or_server_but_not_both_is_replaced_when_they_are_cut_off(watch, cut, chosen):
    processes = [process_of()] + [
        replace(process_of("worker", f"first-{index}"), index=index) for index in range(2)
    ]

    def look(now):
        watch.hear(replace(report_of(processes[0]), address="ps"), now)
        for index, process in enumerate(processes[1:]):
            report = replace(report_of(process), address=f"worker:{index}")
            watch.hear(replace(report, unreachable=tuple(cut.get(index, ()))), now)
        return watch.see(processes, now)

    assert look(0.0) == look(2.9) == ()
    found = look(3.0)
    assert [one.name for one in found] == chosen
    assert look(4.0) == ()
    if chosen == ["worker 0"]:
        assert found[0].why == "worker 0 and parameter server 0 cannot reach each other"


def test_one_that_left_before_it_could_be_ended_says_so(watch):
    process = process_of("worker")
    watch.see([process], 0.0)
    why = watch.end(ended(process, 74), again_at=0.0)
    assert why == "worker 0 left, as it and another worker cannot reach each other"


def test_a_member_misses_reports_before_it_counts_as_lost():
    assert 3 * report_seconds(SILENCE) < SILENCE
    assert 3 * report_seconds(0.3) < 0.3
