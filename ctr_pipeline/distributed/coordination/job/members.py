"""Members of a job: who may join, what a loss means, who is started and ended."""

from ctr_pipeline.distributed.coordination.events import (
    ScaleAsked,
    StartMember,
    StartRefused,
    StopMember,
)
from ctr_pipeline.distributed.coordination.exit_codes import BY_SOMEBODY, signal_of
from ctr_pipeline.distributed.coordination.job import drains, restores
from ctr_pipeline.distributed.coordination.job.state import JobState
from ctr_pipeline.distributed.coordination.launching import ProcessState
from ctr_pipeline.distributed.coordination.members import MemberEnd, MemberState
from ctr_pipeline.distributed.coordination.messages import RegisterRequest
from ctr_pipeline.distributed.coordination.relaunch import decide_relaunch, explain_end
from ctr_pipeline.distributed.coordination.reports import find_false_identity


def register(state: JobState, request: RegisterRequest) -> str:
    """A process asks for a place: why it is refused, empty if it is not."""
    who = request.member
    if who.role == "master":
        return "a master does not register"
    if false := find_false_identity(request):
        return false
    if state.is_over:
        return f"the job is over: it is {state.head.phase}"
    if who.role == "ps" and not 0 <= who.index < state.servers.number:
        return f"the job has {state.servers.number} parameter servers"
    member = state.member(who.role, who.index)
    if who.incarnation in member.given_up:
        return "this process was given up: it ended, was replaced, or fell silent"
    if member.incarnation == who.incarnation and not member.is_process(who):
        return "another process has registered under its name"
    # A worker that is replaced loses a batch; a server takes the whole job back.
    silence = state.settings.supervision.silence_seconds
    now = state.now
    if who.role == "ps" and member.is_held_against(who.incarnation, now, silence):
        return (
            f"{member.name} is process {member.pid} on {member.host} at {member.address}, "
            f"heard {now - member.heard_at:.1f} s ago: end that one first, then come again "
            f"once it was silent for {silence:g} s"
        )
    if member.incarnation and member.incarnation != who.incarnation:
        lose(state, member, f"another {member.name} has registered")
    member.join(request, state.now)
    return ""


def lose(state: JobState, member: MemberState, why: str) -> None:
    """A registered member is no longer there, though it is wanted."""
    incarnation = member.incarnation
    done = "it is started again"
    if member.role == "worker":
        done = f"{state.release_leases_of(member)} leased tasks are given to others"
    elif state.head.phase == "stopping":
        done = "the job stops without another checkpoint"
    elif member.index >= state.servers.placement.num_servers:
        done = "it held nothing; it is started again"
    elif state.head.is_restored or state.restore_in_flight:
        cut = state.cut_to_restore()
        done = f"the job goes back to {f'checkpoint {cut}' if cut else 'its beginning'}"
        if member.leaves_at is not None:
            done = drains.explain_loss(state)
    state.announce(why, done, topic="member", is_disruption=True)
    member.give_up(incarnation)
    member.last_end = MemberEnd(why)
    holds = member.role == "ps" and member.index < state.servers.placement.num_servers
    if holds and (state.head.is_restored or state.restore_in_flight):
        restores.roll_back(state)
    elif state.open_board() is not None and not any(one.incarnation for one in state.workers()):
        # Nobody works any more: as after the loss of a server, it counts when work goes on.
        state.begin_recovery()


def see_processes(state: JobState, processes: tuple[ProcessState, ...]) -> None:
    """The launcher tells of the processes that it started."""
    state.seen_since_over = state.over_since is not None
    for process in processes:
        if process.role == "master":
            continue
        member = state.member(process.role, process.index)
        member.see(process, state.now)
        if not process.running and process.incarnation not in member.given_up:
            _end(state, member, process)


def _end(state: JobState, member: MemberState, process: ProcessState) -> None:
    is_registered = member.incarnation == process.incarnation
    if member.incarnation and not is_registered:
        # An older process of a member that has another one by now.
        member.give_up(process.incarnation)
        return
    # One that waits may have its place.
    state.look_at = None
    reason = process.reason or "killed"
    why = explain_end(
        reason,
        process.exit_code,
        member=member.name,
        rss_bytes=member.stats.rss_bytes,
        remedy=process.remedy,
        advice=process.advice,
    )
    is_wanted = state.is_wanted(member)
    if not is_wanted and _left_when_asked(process):
        # It left as it was told to, or was ended for not doing so: no accident.
        why = ""
    member.start_asked_at = None
    if is_registered and is_wanted:
        lose(state, member, why)
    elif is_registered:
        state.release_leases_of(member)
    member.give_up(process.incarnation)
    member.last_end = MemberEnd(why, process.exit_code) if why else None
    member.ends_in_row += 1
    if not is_wanted:
        return
    relaunch = decide_relaunch(
        reason,
        registered=is_registered,
        ends_in_row=member.ends_in_row,
        is_remedied=bool(process.remedy),
    )
    member.not_before = state.now + relaunch.delay_seconds
    if not is_registered:
        again = f"it is started again in {relaunch.delay_seconds:g} s"
        state.announce(why, again, topic="member")
    if relaunch.blames_program:
        count_error(state, member, why, process.traceback)


def _left_when_asked(process: ProcessState) -> bool:
    """Whether a process that was told to end did so, by itself or by force."""
    code = process.exit_code or 0
    return code == 0 or signal_of(code) in BY_SOMEBODY


def refuse_start(state: JobState, event: StartRefused) -> None:
    """The launcher did not start a member."""
    member = state.member(event.role, event.index)
    if not state.is_wanted(member) or member.incarnation or member.is_running:
        return
    what = f"{member.name} cannot be started: {event.reason}"
    if event.is_final:
        state.fail(what)
        return
    is_first = not any(one.refusals_in_row for one in state.members.values())
    member.refuse_start(state.now)
    if is_first:
        state.announce(what, "it is tried again", topic="member")


def count_error(state: JobState, member: MemberState, why: str, traceback: str) -> None:
    """A failure that blames the program; after several in a row the job fails."""
    state.head.errors_in_row += 1
    # Of one member: where many start slowly at once, each of them may do so.
    most = state.settings.max_start_failures
    if state.head.errors_in_row >= most and member.ends_in_row >= most:
        times = f"{state.head.errors_in_row} failures of members in a row without any progress"
        state.fail(f"{why}; these are {times}", traceback)


def kill(state: JobState, member: MemberState, why: str) -> None:
    """A process that hangs is ended at once; another is started when it is gone."""
    incarnation = member.incarnation
    if incarnation:
        lose(state, member, why)
    elif member.process is not None:
        incarnation = member.process.incarnation
    member.ends_in_row += 1
    member.start_asked_at = None
    relaunch = decide_relaunch("killed", registered=True, ends_in_row=member.ends_in_row)
    member.not_before = state.now + relaunch.delay_seconds
    member.stop_asked_at = state.now
    state.actions.append(StopMember(member.role, member.index, incarnation, 0.0))


def start_and_stop(state: JobState) -> None:
    """Starts the members that are wanted and missing, and ends those that are in the way."""
    now, settings = state.now, state.settings
    if not state.is_over:
        servers = [state.member("ps", index) for index in range(state.servers.number)]
        for server in servers:
            _start(state, server)
        # Workers might take the quota that servers wait for, and then wait for these.
        if settings.max_workers_queued is None or all(one.has_place for one in servers):
            _start_workers(state, state.head.target_workers + settings.supervision.standby_workers)
    for member in state.members.values():
        grace = 0.0 if member.is_given_up else settings.leave_seconds
        is_in_the_way = member.is_given_up or (member.is_running and not state.is_wanted(member))
        process = member.process
        if process is not None and is_in_the_way and member.may_stop(now, grace):
            member.stop_asked_at = now
            state.actions.append(StopMember(member.role, member.index, process.incarnation, grace))


def _start_workers(state: JobState, number: int) -> None:
    """Starts those that are missing, a few at a time: each costs seconds of several cores."""
    workers = [state.member("worker", index) for index in range(number)]
    now, settings = state.now, state.settings
    most = settings.max_workers_starting
    most_queued = most if settings.max_workers_queued is None else settings.max_workers_queued
    coming = [one for one in workers if one.is_coming(now)]
    num_coming, num_queued = len(coming), sum(not one.has_place for one in coming)
    for worker in workers:
        if num_coming >= most or num_queued >= most_queued:
            return
        if worker.may_start(now):
            _start(state, worker)
            num_coming, num_queued = num_coming + 1, num_queued + 1


def _start(state: JobState, member: MemberState) -> None:
    now = state.now
    if member.may_start(now):
        member.start_asked_at = now
        member.stop_asked_at = None
        state.actions.append(StartMember(member.role, member.index))


def scale(state: JobState, event: ScaleAsked) -> None:
    """Another number of workers is asked for."""
    least = max(1, state.head.min_workers if event.min_workers is None else event.min_workers)
    most = state.head.max_workers if event.max_workers is None else event.max_workers
    state.head.min_workers, state.head.max_workers = least, max(least, most)
    target = state.head.max_workers if event.target_workers is None else event.target_workers
    state.head.target_workers = min(max(target, least), state.head.max_workers)
    _choose_active(state)
    bounds = f"between {state.head.min_workers} and {state.head.max_workers}"
    what = "another number of workers is asked for"
    state.announce(what, f"{state.head.target_workers}, {bounds}", topic="scaling")


def _choose_active(state: JobState) -> None:
    """Takes work from workers beyond the target, and gives it to those on standby."""
    active = [member for member in state.workers() if member.is_active]
    for member in sorted(active, key=lambda member: -member.index):
        is_surplus = len(active) > state.head.target_workers
        if is_surplus or not state.is_wanted(member):
            member.is_active = False
            active.remove(member)
            _give_back_unstarted(state, member)


def _give_back_unstarted(state: JobState, member: MemberState) -> None:
    """What a worker has begun it may finish; the rest goes to others now."""
    for board in state.boards():
        for key in state.queue_of(member, board).unstarted():
            state.release(board, key)


def may_work(state: JobState, member: MemberState) -> bool:
    """Whether a worker is among those wanted now; one on standby fills a gap."""
    if not state.is_wanted(member):
        return False
    if not member.is_active:
        if sum(other.is_active for other in state.workers()) >= state.head.target_workers:
            return False
        member.is_active = True
    return True
