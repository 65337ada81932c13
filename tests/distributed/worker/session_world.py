"""Answers of a master, and a session that gets them."""

from ctr_pipeline.distributed.coordination.messages import (
    HeartbeatReply,
    LeasedTask,
    LeaseReply,
    Member,
    MemberStats,
    RegisterReply,
    TaskKey,
)
from ctr_pipeline.distributed.coordination.spec import EncodedSplit
from ctr_pipeline.distributed.worker.session import WorkerSession
from tests.distributed.job_specs import job_spec

TRAIN = EncodedSplit("train", "nowhere", 100)


def leased(task=0, attempt=1, *, kind="train", done_mask=0, split="train", **score):
    key = TaskKey(kind, 0, task, split)
    facts = {"first_row": 0, "num_rows": 0, "scores_file": ""} | score
    return LeasedTask(key, attempt, done_mask, **facts)


def registered(generation=1, addresses=("ps:1",), *, refused="", spec=None):
    return RegisterReply(refused, generation, spec or job_spec(splits=(TRAIN,)), addresses, 1.0)


def beat(directive="go_on", generation=1, addresses=("ps:1",), revoked=()):
    return HeartbeatReply(directive, generation, addresses, tuple(revoked), ())


def tasks(*given, generation=1, wait=0.0):
    return LeaseReply("tasks", generation, tuple(given), wait)


def wait(seconds=1.0, generation=1):
    return LeaseReply("wait", generation, (), seconds)


def end(generation=1):
    return LeaseReply("end", generation, (), 0.0)


def make_session(master, clock):
    return WorkerSession(
        member=Member("worker", 3, "abc"),
        config_fingerprint="config",
        metrics_address="",
        connect=master.connect,
        stats=MemberStats,
        clock=clock,
    )


def run_for(session, clock, seconds):
    """Turns the session as its thread would, for some seconds of the clock."""
    until = clock.now + seconds
    for _ in range(10_000):
        pause = session.talk.turn()
        if pause <= 0:
            continue
        if clock.now + pause > until:
            clock.now = until
            return
        clock.now += pause
    raise AssertionError("the session never rests")
