"""Members are started, registered, known by their secrets, ended, and replaced."""

import json

import pytest

from ctr_pipeline.distributed.coordination.events import (
    Announce,
    CannotGoOn,
    Fail,
    RestoreCut,
    StartMember,
    StartRefused,
    StopAsked,
    StopMember,
    Tick,
)
from ctr_pipeline.distributed.coordination.messages import (
    HeartbeatRequest,
    LeaseRequest,
    Member,
    MemberStats,
    RegisterRequest,
)
from tests.distributed.coordination.job_bench import Bench


def test_a_job_starts_all_its_members_at_once_and_asks_again_in_vain_only_later():
    bench = Bench(num_parameter_servers=2, max_workers=2, standby_workers=1)
    wanted = [("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1), ("worker", 2)]
    bench.tell(Tick())
    assert [(one.role, one.index) for one in bench.all_of(StartMember)] == wanted
    bench.tell(Tick(), after=1.0)
    assert len(bench.all_of(StartMember)) == 5
    bench.tell(Tick(), after=5.0)
    assert len(bench.all_of(StartMember)) == 10


def test_training_begins_with_the_first_workers_and_all_servers():
    bench = Bench(num_parameter_servers=2, min_workers=2, max_workers=4)
    bench.register("ps", 0, "p0")
    bench.register("worker", 0, "a")
    assert bench.job.phase == "waiting"
    bench.register("ps", 1, "p1")
    assert bench.all_of(RestoreCut) == [RestoreCut(0, 1)]
    assert bench.job.phase == "waiting"
    bench.register("worker", 3, "d")
    assert bench.job.phase == "training"
    assert bench.job.ps_addresses == ("127.0.0.1:0", "127.0.0.1:1")


def test_worker_that_joins_later_works_at_once():
    bench = Bench()
    bench.begin_training("a")
    bench.register("worker", 1, "b")
    assert bench.lease(1, "b").verdict == "tasks"


@pytest.mark.parametrize(
    ("role", "index", "why"),
    [("master", 0, "does not register"), ("ps", 1, "has 1 parameter servers")],
)
def test_member_that_has_no_place_is_refused(role, index, why):
    assert why in Bench().register(role, index, "x")


def test_an_unknown_process_is_asked_to_register():
    bench = Bench()
    bench.begin_training("a")
    assert bench.heartbeat("worker", 1, "b").directive == "register_again"
    assert bench.lease(1, "b").verdict == "wait"


def test_a_start_that_never_registers_is_ended_and_counts_as_an_error():
    bench = Bench(startup_timeout_seconds=60.0, max_start_failures=2)
    bench.tell(Tick())
    for number in range(2):
        bench.see("worker", 0, f"w{number}")
        bench.tell(Tick(), after=61.0)
        # Its end takes a while to be seen.
        bench.tell(Tick(), after=0.5)
        assert len(bench.all_of(Fail)) == number
        bench.see("worker", 0, f"w{number}", "killed")
    told = [one.done for one in bench.all_of(Announce) if "did not register" in one.what]
    assert len(told) == 2
    assert "runtime.startup_timeout_seconds" in told[0]
    assert "worker 0 did not register within 60 s" in bench.all_of(Fail)[0].reason


def test_members_that_people_start_may_take_their_time():
    bench = Bench(startup_timeout_seconds=60.0, max_start_failures=1)
    bench.tell(Tick())
    for _ in range(100):
        bench.tell(Tick(), after=60.0)
    assert not bench.all_of(Fail), "without a launcher no process is seen"
    bench.begin_training("a")
    assert bench.job.status().phase == "training"


def test_a_start_that_waits_for_a_place_says_why_and_is_given_all_the_time_it_needs():
    bench = Bench(startup_timeout_seconds=60.0, max_start_failures=1)
    bench.tell(Tick())
    bench.see("worker", 0, "w", waits_for="no node can take it")
    bench.tell(Tick(), after=3600.0)
    (member,) = [one for one in bench.job.status().members if one.name == "worker-0"]
    assert (member.state, member.waits_for) == ("pending", "no node can take it")
    bench.see("worker", 0, "w")
    bench.tell(Tick(), after=59.0)
    (member,) = [one for one in bench.job.status().members if one.name == "worker-0"]
    assert (member.state, member.waits_for, member.pid) == ("starting", "", 1)
    assert not bench.all_of(Fail)
    bench.tell(Tick(), after=2.0)
    assert bench.all_of(Fail), "from then on it is expected to register"


def test_a_refused_start_is_told_once_and_asked_for_again_ever_more_seldom():
    bench = Bench()
    bench.tell(Tick())
    asked = []
    for _ in range(6):
        bench.log.clear()
        bench.tell(StartRefused("worker", 0, "no room", is_final=False))
        bench.tell(StartRefused("worker", 1, "no room", is_final=False))
        begun = bench.now
        while StartMember("worker", 0) not in bench.log:
            bench.tell(Tick(), after=0.5)
        asked.append(bench.now - begun)
        assert bench.told().count("cannot be started: no room") == (1 if len(asked) == 1 else 0)
    assert asked == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0]
    assert bench.job.phase == "waiting"
    # Once one was started, the next refusal is another trouble.
    for index, name in enumerate("ab"):
        bench.see("worker", index, name)
        bench.see("worker", index, name, "killed")
    bench.log.clear()
    bench.tell(StartRefused("worker", 0, "no room", is_final=False))
    assert "worker 0 cannot be started: no room" in bench.told()


def test_a_start_that_can_never_be_fails_the_job_in_the_launchers_words():
    bench = Bench()
    bench.tell(Tick())
    bench.tell(StartRefused("ps", 0, "/usr/bin/python: No such file", is_final=True))
    (failure,) = bench.all_of(Fail)
    assert failure.reason == ("parameter server 0 cannot be started: /usr/bin/python: No such file")


def test_a_refusal_that_comes_after_the_member_did_changes_nothing():
    bench = Bench()
    bench.begin_training("a")
    bench.log.clear()
    bench.tell(StartRefused("worker", 0, "no room", is_final=True))
    assert bench.job.phase == "training"
    assert bench.log == []


def test_starts_that_the_system_refuses_are_no_errors_of_the_program():
    bench = Bench(max_start_failures=2)
    bench.begin_training("a")
    for number in range(5):
        bench.see("worker", 1, f"b{number}", "not_started", code=70)
    assert bench.job.phase == "training"
    assert "worker 1 could not be started" in bench.told()


def test_stop_names_a_process_and_not_a_place():
    bench = Bench(silence_seconds=10.0)
    bench.begin_training("registered-by-hand")
    bench.see("worker", 1, "other")
    bench.tell(Tick(), after=10.0)
    bench.heartbeat("ps", 0, "p")
    bench.tell(Tick(), after=0.5)
    assert bench.all_of(StopMember) == [StopMember("worker", 0, "registered-by-hand", 0.0)]


def as_member(bench, name, secret, *, role="worker", index=0, held=()):
    """A heartbeat and a call for work in the name of a member."""
    member = Member(role, index, name, secret)
    beat = HeartbeatRequest(member, bench.job.generation, (), MemberStats(), held)
    reply, actions = bench.job.heartbeat(beat, bench.now)
    bench.do(actions)
    leased, actions = bench.job.lease(LeaseRequest(member, bench.job.generation, 9), bench.now)
    bench.do(actions)
    return reply, leased


def register_with_secret(bench, role, index, name, secret):
    request = RegisterRequest(
        Member(role, index, name, secret), 1, "host", "a:1" if role == "ps" else "", "", 1, ""
    )
    refused, actions = bench.job.register(request, bench.now)
    bench.do(actions)
    return refused


def test_process_that_only_knows_the_name_of_a_member_is_not_taken_for_it():
    bench = Bench()
    bench.tell(Tick())
    assert register_with_secret(bench, "ps", 0, "p", "of p") == ""
    assert register_with_secret(bench, "worker", 0, "w", "of w") == ""
    assert register_with_secret(bench, "worker", 0, "w", "guessed") == (
        "another process has registered under its name"
    )
    for secret in ("guessed", ""):
        reply, leased = as_member(bench, "w", secret)
        assert (reply.directive, reply.ps_addresses, reply.active_workers) == ("leave", (), None)
        assert leased.tasks == ()
    # The member itself, whose reply to its registration may have been lost, goes on.
    assert register_with_secret(bench, "worker", 0, "w", "of w") == ""
    reply, leased = as_member(bench, "w", "of w")
    assert (reply.directive, reply.ps_addresses) == ("go_on", ("a:1",))
    assert leased.tasks


def test_members_prove_themselves_to_the_next_master_whose_ledger_has_no_secret():
    bench = Bench()
    bench.tell(Tick())
    register_with_secret(bench, "ps", 0, "p", "the secret of p")
    register_with_secret(bench, "worker", 0, "w", "the secret of w")
    assert "the secret" not in json.dumps(bench.disk)
    assert "the secret" not in repr(bench.job.status())
    assert "the secret" not in repr(Member("worker", 0, "w", "the secret of w"))
    again = Bench(records=bench.disk)
    assert as_member(again, "w", "the secret of p")[0].directive == "leave"
    assert as_member(again, "w", "the secret of w")[0].directive == "go_on"


def test_a_process_that_nobody_knows_is_told_nothing_of_others():
    bench = Bench()
    bench.begin_training("a")
    reply, _ = as_member(bench, "nobody", "x", index=7)
    assert (reply.directive, reply.ps_addresses, reply.active_workers) == (
        "register_again", (), None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("role", "index", "name", "words"),
    [
        ("worker", -1, "w", "no job has a worker -1"),
        ("worker", 10**9, "w", "no job has a worker 1000000000"),
        ("worker", 0, "", "it has no name"),
        ("worker", 0, "w" * 301, "longer than 300 characters"),
        ("worker", 0, "w\x1b]0;", "cannot be printed"),
    ],
)
def test_a_member_that_cannot_be_is_refused(role, index, name, words):
    bench = Bench()
    bench.tell(Tick())
    assert words in bench.register(role, index, name)


def test_a_crash_loop_ends_the_job_with_the_members_own_traceback():
    bench = Bench(max_start_failures=3)
    bench.tell(Tick())
    for number in range(3):
        assert bench.job.phase == "waiting"
        bench.see("worker", 0, f"w{number}", "error", traceback="ImportError: x", code=1)
    (failure,) = bench.all_of(Fail)
    assert failure.traceback == "ImportError: x"
    assert "worker 0 failed (exit code 1)" in failure.reason
    assert "3 failures of members in a row without any progress" in failure.reason


def test_members_that_each_get_more_memory_than_the_last_are_no_crash_loop():
    bench = Bench(max_start_failures=3)
    bench.tell(Tick())
    for number in range(9):
        remedy = f"its next pod may use {number + 3}Gi"
        bench.see("worker", 0, f"w{number}", "out_of_memory", code=137, remedy=remedy)
    assert bench.job.phase == "waiting"
    assert f"worker 0 ran out of memory; {remedy}: it is started again in" in bench.told()
    for number in range(3):
        bench.see("worker", 0, f"again{number}", "out_of_memory", code=137)
    assert bench.job.phase == "failed"


def test_one_error_of_each_of_many_members_is_no_crash_loop():
    bench = Bench(max_workers=3, max_start_failures=3)
    bench.tell(Tick())
    for index in range(3):
        bench.see("worker", index, f"w{index}", "error", code=1)
    assert bench.job.phase == "waiting"
    for number in range(2):
        bench.see("worker", 1, f"again{number}", "error", code=1)
    assert bench.job.phase == "failed"


def test_workers_start_a_few_at_a_time():
    bench = Bench(max_workers=90, max_workers_starting=4)
    bench.tell(Tick())

    def workers_started():
        return {one.index for one in bench.all_of(StartMember) if one.role == "worker"}

    assert workers_started() == {0, 1, 2, 3}
    bench.register("worker", 2, "c")
    bench.tell(Tick(), after=0.1)
    assert workers_started() == {0, 1, 2, 3, 4}


def test_workers_in_a_queue_come_after_the_servers_and_few_wait_for_quota():
    bench = Bench(max_workers=90, max_workers_starting=1000, max_workers_queued=3)

    def workers_started():
        return {one.index for one in bench.all_of(StartMember) if one.role == "worker"}

    bench.tell(Tick())
    bench.see("ps", 0, "p", waits_for="it waits for quota")
    bench.tell(Tick(), after=0.1)
    assert workers_started() == set()
    bench.see("ps", 0, "p")
    bench.tell(Tick(), after=0.1)
    assert workers_started() == {0, 1, 2}
    for index in range(3):
        bench.see("worker", index, f"w{index}", waits_for="it waits for quota")
    bench.tell(Tick(), after=0.1)
    assert workers_started() == {0, 1, 2}
    # One that is admitted makes room for another before it registers.
    bench.see("worker", 0, "w0")
    bench.tell(Tick(), after=0.1)
    assert workers_started() == {0, 1, 2, 3}


def test_progress_makes_up_for_errors_and_repetition_does_not():
    bench = Bench(max_start_failures=2)
    bench.begin_training("a")
    bench.see("worker", 1, "b0", "error")
    (task,) = bench.lease(0, "a").tasks
    bench.heartbeat("worker", 0, "a", bench.report(task, 3))
    bench.see("worker", 1, "b1", "error")
    # A server that fails each time at the same place: the same batches, over and over.
    bench.see("ps", 0, "p", "killed")
    bench.register("ps", 0, "q")
    (task,) = bench.lease(0, "a", most=1).tasks
    bench.heartbeat("worker", 0, "a", bench.report(task, 3))
    assert bench.job.phase == "training"
    bench.see("worker", 1, "b2", "error")
    assert bench.job.phase == "failed"


def test_a_member_that_failed_comes_back_after_its_pause():
    bench = Bench()
    bench.begin_training("a")
    bench.see("worker", 1, "b", "error", code=1)
    bench.log.clear()
    bench.tell(Tick(), after=0.4)
    assert not bench.all_of(StartMember)
    bench.tell(Tick(), after=0.2)
    assert bench.all_of(StartMember) == [StartMember("worker", 1)]


def test_out_of_memory_names_the_size():
    bench = Bench(max_start_failures=1)
    bench.begin_training("a")
    bench.heartbeat("worker", 0, "a", rss=5 * 2**30)
    bench.see("worker", 0, "a", "out_of_memory")
    assert "worker 0 ran out of memory (it last held 5.0 GiB)" in bench.all_of(Fail)[0].reason


def test_a_process_that_replaces_another_takes_nothing_over():
    bench = Bench()
    bench.begin_training("a")
    (task,) = bench.lease(0, "a").tasks
    bench.register("worker", 0, "z")
    assert bench.heartbeat("worker", 0, "a").directive == "leave"
    assert bench.lease(0, "z").tasks[0].attempt > task.attempt


def test_a_server_that_is_replaced_takes_the_job_back():
    bench = Bench()
    bench.begin_training("a")
    bench.train_all(0, "a", most_tasks=2)
    bench.replace_server("q")
    status = bench.job.status()
    assert (status.phase, status.trained, status.repeated) == ("training", 0, 64)


def test_a_server_that_lives_keeps_its_place():
    bench = Bench(silence_seconds=10.0)
    bench.begin_training("a")
    bench.train_all(0, "a", most_tasks=2)
    bench.log.clear()
    bench.tell(Tick(), after=9.0)
    refused = bench.register("ps", 0, "q")
    assert "parameter server 0 is process 1 on host at 127.0.0.1:0, heard 9.0 s ago" in refused
    assert "end that one first" in refused
    assert bench.heartbeat("ps", 0, "p").directive == "go_on"
    assert bench.job.status().trained == 64
    assert bench.all_of(Announce) == []


def test_the_place_of_a_server_is_free_once_it_was_silent():
    bench = Bench(silence_seconds=10.0)
    bench.begin_training("a")
    assert bench.register("ps", 0, "q")
    bench.tell(Tick(), after=10.1)
    assert bench.register("ps", 0, "q") == ""
    assert bench.heartbeat("ps", 0, "p").directive == "leave"


def test_process_that_the_launcher_knows_to_be_dead_holds_no_place():
    bench = Bench(silence_seconds=10.0)
    bench.see("ps", 0, "p")
    bench.begin_training("a")
    bench.see("ps", 0, "p", "killed")
    assert bench.register("ps", 0, "q") == ""


def test_a_new_master_does_not_know_whether_a_server_lives():
    bench = Bench()
    bench.begin_training("a")
    again = Bench(records=bench.disk)
    assert again.register("ps", 0, "q") == ""
    heard = Bench(records=bench.disk)
    heard.heartbeat("ps", 0, "p")
    assert "is process 1 on host" in heard.register("ps", 0, "q")


def test_the_launchers_view_of_the_master_and_of_old_processes_changes_nothing():
    bench = Bench()
    bench.begin_training("a")
    bench.log.clear()
    bench.see("master", 0, "m", "error")
    bench.see("worker", 0, "older", "error")
    assert bench.all_of(Announce) == []
    assert bench.lease(0, "a").verdict == "tasks"
    assert "given up" in bench.register("worker", 0, "older")


def test_a_job_that_is_over_takes_nobody_in():
    bench = Bench()
    bench.begin_training("a")
    bench.tell(CannotGoOn("no"))
    assert bench.register("worker", 1, "b") == "the job is over: it is failed"
    assert bench.heartbeat("worker", 1, "b").directive == "leave"
    assert bench.lease(1, "b").verdict == "end"
    bench.log.clear()
    bench.tell(CannotGoOn("no again"))
    bench.tell(StopAsked())
    assert bench.all_of(Fail) == []
    assert bench.job.phase == "failed"
