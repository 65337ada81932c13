"""Everything that can befall a job, as a Hypothesis state machine over `job_world.World`."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from job_world import NUM_SERVERS, NUM_WORKERS, World

from ctr_pipeline.distributed.coordination.events import ScaleAsked

workers = st.integers(0, NUM_WORKERS - 1)
servers = st.integers(0, NUM_SERVERS - 1)
reasons = st.sampled_from(["killed", "evicted", "node_lost"])


class JobMachine(RuleBasedStateMachine):
    """Any interleaving of work, loss, lateness and death; afterwards, peace, and the end.

    Rules are of two kinds: single steps of anyone, and short stories that single steps would tell
    too rarely.
    """

    world: World

    @initialize(sync=st.booleans(), rounds=st.integers(0, 8))
    def begin(self, sync, rounds):
        self.world = World(sync=sync)
        self.world.live(rounds)

    @rule(rounds=st.integers(1, 4), slow_disk=st.booleans())
    def live(self, rounds, slow_disk):
        self.world.live(rounds, slow_disk=slow_disk)

    @rule(seconds=st.sampled_from([0.1, 1.0, 4.0, -1e6, 3600.0, 1e9]))
    def pass_time(self, seconds):
        self.world.pass_time(seconds)

    @rule(
        index=workers,
        step=st.sampled_from(["register", "lease", "work", "half", "report", "late", "push"]),
        loses_reply=st.booleans(),
        count=st.integers(1, 3),
    )
    def worker_steps(self, index, step, loses_reply, count):
        world = self.world
        if step == "register":
            world.register_if_needed("worker", index)
        elif step == "lease":
            world.lease(index, most=count, loses_reply=loses_reply)
        elif step in {"work", "half"}:
            for _ in range(count):
                world.work(index, num_servers=NUM_SERVERS if step == "work" else 1)
        elif step == "push":
            world.push_late(index)
        else:
            world.heartbeat(index, loses_reply=loses_reply, is_late=step == "late")

    @rule(
        index=servers,
        step=st.sampled_from(
            ["register", "report", "snapshot", "restore", "fail", "decide", "see"]
        ),
    )
    def others_step(self, index, step):
        world = self.world
        if step == "register":
            world.register_if_needed("ps", index)
        elif step == "report":
            world.heartbeat_server(index)
        elif step == "snapshot":
            world.snapshot(index)
        elif step in {"restore", "fail"}:
            world.finish_restore(fails=step == "fail")
        elif step == "decide":
            world.decide()
        else:
            world.observe()

    @rule(place=st.integers(0, 5), keeps=st.booleans(), server=servers)
    def what_was_late_arrives(self, place, keeps, server):
        self.world.deliver_late(place, keeps=keeps)
        self.world.deliver_late_push(server, keeps=keeps)

    @rule(index=workers, how=st.sampled_from(["dies", "hangs", "stands still"]), reason=reasons)
    def worker_is_lost(self, index, how, reason):
        if how == "dies":
            self.world.end_process("worker", index, reason)
        elif how == "hangs":
            self.world.workers[index].paused = True
        else:
            self.world.workers[index].stalled = True

    @rule(index=servers, hangs=st.booleans(), reason=reasons, is_seen=st.booleans())
    def server_is_lost(self, index, hangs, reason, is_seen):
        if hangs:
            self.world.servers[index].paused = True
        else:
            self.world.end_process("ps", index, reason)
        if is_seen:
            self.world.observe()

    @rule(index=servers)
    def members_wake(self, index):
        self.world.servers[index].paused = False
        for worker in self.world.workers:
            worker.paused = False

    @rule(surviving=st.integers(0, 3))
    def master_dies(self, surviving):
        self.world.crash_master(surviving=surviving)

    @rule(wanted=st.integers(1, NUM_WORKERS))
    def scale(self, wanted):
        self.world.tell(ScaleAsked(target_workers=wanted))

    @rule(index=workers)
    def reports_overtake_each_other(self, index):
        for _ in range(2):
            self.world.work(index)
            self.world.heartbeat(index, is_late=True)
        self.world.deliver_late(-1, keeps=False)
        self.world.deliver_late(-1, keeps=False)

    @rule(index=workers, batches=st.integers(1, 2), arrives=st.booleans())
    def task_fails_and_moves(self, index, batches, arrives):
        for _ in range(batches):
            self.world.work(index)
        request = self.world.heartbeat_of(index)
        self.world.fail_task(index)
        self.world.heartbeat(index)
        self.world.lease(1 - index, most=3)
        if request is not None:
            self.world.late.append(request)
        if arrives:
            self.world.deliver_late(-1, keeps=True)

    @rule(index=workers)
    def unreported_work_is_stolen(self, index):
        world, other = self.world, 1 - index
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
        world.deliver_late(-1, keeps=True)

    @rule(index=workers, server=servers, arrives=st.booleans())
    def report_crosses_a_rollback(self, index, server, arrives):
        self.world.lease(index)
        self.world.work(index)
        self.world.heartbeat(index, is_late=True)
        self.world.end_process("ps", server, "killed")
        self.world.observe()
        if arrives:
            self.world.deliver_late(-1, keeps=False)

    @rule(index=servers, master_dies=st.booleans())
    def cut_fails_halfway(self, index, master_dies):
        self.world.live(6, slow_disk=True)
        self.world.snapshot(index)
        if master_dies:
            self.world.crash_master(surviving=9)
        else:
            self.world.fail_cut()

    @rule(index=servers)
    def cut_holds_more_than_it_counts(self, index):
        self.world.live(5, slow_disk=True)
        for worker in range(NUM_WORKERS):
            self.world.lease(worker)
            self.world.work(worker)
        self.world.snapshot(index)
        self.world.snapshot(1 - index)
        self.world.end_process("ps", index, "killed")

    def teardown(self):
        if hasattr(self, "world"):
            self.world.finish()
