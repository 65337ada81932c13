"""Everything that can befall a job, as a Hypothesis state machine over `job_world.World`."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from ctr_pipeline.distributed.coordination.events import ScaleAsked
from tests.distributed.coordination.job_world import NUM_SERVERS, NUM_WORKERS, World

reasons = st.sampled_from(["killed", "evicted", "preempted", "node_lost"])


def work_together(world, index):
    """So that a round comes about in synchronous mode."""
    world.work(index)
    world.work(1 - index)


def reports_overtake_each_other(world, index, *, either):
    world.lease(index)
    for _ in range(2):
        work_together(world, index)
        world.heartbeat(index, is_late=True)
    world.deliver_late(-1, keeps=either)
    world.deliver_late(-2 if either else -1, keeps=False)


def task_fails_and_moves(world, index, *, either):
    world.lease(index)
    work_together(world, index)
    request = world.heartbeat_of(index)
    world.fail_task(index)
    world.heartbeat(index)
    world.lease(1 - index, most=3)
    if request is not None:
        world.late.append(request)
    if either:
        world.deliver_late(-1, keeps=True)


def unreported_work_is_stolen(world, index, *, either):
    other = 1 - index
    world.lease(index, most=3)
    for _ in range(5):
        world.work(index)
    world.heartbeat(index, is_late=True)
    for _ in range(8):
        world.work(other)
        world.heartbeat(other)
        world.lease(other)
        if world.keys_held(index) & world.keys_held(other):
            break
    world.deliver_late(-1, keeps=either)


def workers_die_while_a_push_waits(world, index, *, either):
    # The first may complete a round that the other worker has opened.
    for _ in range(2 if either else 1):
        world.work(index)
    for worker in range(NUM_WORKERS):
        world.end_process("worker", worker, "killed")
    world.observe()
    for _ in range(2):
        world.pass_time(1.0)
        for worker in range(NUM_WORKERS):
            world.register_if_needed("worker", worker)
            world.lease(worker)
            world.work(worker)


def report_crosses_a_rollback(world, index, *, either):
    world.lease(index)
    work_together(world, index)
    world.heartbeat(index, is_late=True)
    world.end_process("ps", index, "killed")
    world.observe()
    if either:
        world.deliver_late(-1, keeps=False)
    else:
        world.lease(index)


def cut_fails_halfway(world, index, *, either):
    world.live(5, slow_disk=True)
    world.snapshot(index)
    if either:
        world.crash_master(surviving=9)
    else:
        world.fail_cut()


def cut_holds_more_than_it_counts(world, index, *, either):
    world.live(5, slow_disk=True)
    for worker in range(NUM_WORKERS):
        world.lease(worker)
        world.work(worker, num_servers=NUM_SERVERS if either else 1)
    world.snapshot(index)
    world.snapshot(1 - index)
    world.end_process("ps", index, "killed")


def job_stops_and_goes_on(world, index, *, either):
    world.stop_and_go_on()
    if either:
        world.live(1 + index)


def job_stops_while_its_epoch_is_decided(world, index, *, either):
    for _ in range(40):
        if world.pending_decision is not None:
            break
        world.live(1, undecided=True)
    world.stop_and_go_on()
    if either:
        world.live(1 + index)


def server_is_asked_to_end(world, index, *, either):
    world.lease(index)
    work_together(world, index)
    world.ask_to_end(index, within_seconds=6.0)
    if either:
        world.ask_to_end(1 - index, within_seconds=3.0)
    world.live(4)


STORIES = (
    reports_overtake_each_other,
    task_fails_and_moves,
    unreported_work_is_stolen,
    workers_die_while_a_push_waits,
    report_crosses_a_rollback,
    cut_fails_halfway,
    cut_holds_more_than_it_counts,
    job_stops_and_goes_on,
    job_stops_while_its_epoch_is_decided,
    server_is_asked_to_end,
)
"""What single steps would tell too rarely; each begins with training under way, if it can."""

STEPS = (
    "register",
    "ask for work",
    "work",
    "report",
    "report late",
    "report of a server",
    "push late",
    "arrive late",
    "snapshot",
    "restore",
    "decide",
    "observe",
)
MISHAPS = (
    "worker dies",
    "worker hangs",
    "worker stands still",
    "server dies",
    "server hangs",
    "server is asked to end",
    "master dies",
    "time passes",
    "clock leaps",
    "clock goes back",
    "cut is damaged",
    "another number of workers",
)


class JobMachine(RuleBasedStateMachine):
    """Any interleaving of work, loss, lateness and death; afterwards, peace, and the end."""

    world: World
    last: str

    @initialize(
        sync=st.booleans(),
        rounds=st.integers(0, 8),
        last=st.sampled_from(["nothing", "worker hangs", "worker stands still", "server hangs"]),
    )
    def begin(self, sync, rounds, last):
        self.world = World(sync=sync)
        self.last = last
        self.world.live(rounds)

    @rule(rounds=st.integers(1, 4), slow_disk=st.booleans())
    def live(self, rounds, slow_disk):
        self.world.live(rounds, slow_disk=slow_disk)

    @rule(
        step=st.sampled_from(STEPS),
        index=st.integers(0, 1),
        either=st.booleans(),
        count=st.integers(1, 3),
    )
    def someone_steps(self, step, index, either, count):
        world = self.world
        if step == "register":
            world.register_if_needed("worker" if either else "ps", index)
        elif step == "ask for work":
            world.lease(index, most=count, loses_reply=either)
        elif step == "work":
            for _ in range(count):
                world.work(index, num_servers=NUM_SERVERS if either else 1)
        elif step == "report":
            world.heartbeat(index, loses_reply=either)
        elif step == "report late":
            world.heartbeat(index, is_late=True)
        elif step == "report of a server":
            world.heartbeat_server(index)
        elif step == "push late":
            world.push_late(index)
        elif step == "arrive late":
            world.deliver_late(count, keeps=either)
            world.deliver_late_push(index, keeps=either)
        elif step == "snapshot":
            world.snapshot(index)
        elif step == "restore":
            world.finish_restore(fails=either)
        elif step == "decide":
            world.decide()
        else:
            world.observe()

    @rule(
        what=st.sampled_from(MISHAPS), index=st.integers(0, 1), reason=reasons, either=st.booleans()
    )
    def something_goes_wrong(self, what, index, reason, either):
        world = self.world
        if what == "worker dies":
            world.end_process("worker", index, reason)
        elif what == "worker hangs":
            world.workers[index].paused = True
        elif what == "worker stands still":
            world.workers[index].stalled = True
        elif what == "server dies":
            world.end_process("ps", index, reason)
        elif what == "server hangs":
            world.servers[index].paused = True
        elif what == "server is asked to end":
            world.ask_to_end(index, within_seconds=4.0 if either else 0.5)
        elif what == "master dies":
            world.crash_master(surviving=2 * index)
        elif what == "time passes":
            world.pass_time(4.0 if either else 1.0)
        elif what == "clock leaps":
            world.pass_time(1e9 if either else 3600.0)
        elif what == "clock goes back":
            world.pass_time(-1e6 if either else -3.0)
        elif what == "cut is damaged":
            world.damages = True
        else:
            world.tell(ScaleAsked(target_workers=1 + index))
        if either:
            world.observe()

    @rule(story=st.sampled_from(STORIES), index=st.integers(0, 1), either=st.booleans())
    def a_story_happens(self, story, index, either):
        self.world.recover()
        story(self.world, index, either=either)

    def teardown(self):
        if not hasattr(self, "world"):
            return
        if self.last == "server hangs":
            self.world.servers[1].paused = True
        elif self.last != "nothing":
            self.world.workers[0].paused = self.last == "worker hangs"
            self.world.workers[0].stalled = True
        self.world.finish()
