"""Views of made-up jobs, and masters that answer with them."""

import dataclasses

from ctr_pipeline.distributed.coordination.job.status import MemberStatus
from ctr_pipeline.distributed.coordination.members import MemberEnd
from ctr_pipeline.distributed.coordination.messages import Empty, MemberStats, ScaleRequest
from ctr_pipeline.distributed.master.status import (
    NO_ERRORS,
    CheckpointStatus,
    JobEvent,
    JobView,
    RecordCounts,
    SplitMetrics,
)
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.endpoint import Endpoint, save_endpoint
from ctr_pipeline.distributed.rpc.failures import Refusal
from ctr_pipeline.distributed.rpc.server import Method, RpcServer


def a_member(role="worker", index=0, **changes):
    member = MemberStatus(
        role=role,
        index=index,
        pid=4000 + index,
        host="here",
        address="" if role == "worker" else "127.0.0.1:7000",
        metrics_address="",
        state="running",
        restarts=0,
        last_seen_seconds=0.1,
        leases=0,
        last_end=None,
        stats=MemberStats(
            rss_bytes=700_000_000, samples_per_second=12_345.0, rows_held=0, version=0
        ),
    )
    return dataclasses.replace(member, **changes)


def a_view(**changes):
    view = JobView(
        job="clicks",
        state="training",
        reason="",
        traceback="",
        answering=True,
        generation=1,
        epoch=0,
        epochs=2,
        step=640,
        tasks_done=10,
        tasks_total=40,
        records=RecordCounts(total=80_000, trained=20_000, repeated=64, dropped=0),
        samples_per_second=25_000.0,
        train_logloss=0.4567,
        checkpoint=CheckpointStatus(number=3, step=512, age_seconds=4.0, best=2),
        auc=0.7654,
        history=(),
        best_epoch=0,
        workers_wanted=2,
        members=(
            a_member("master"),
            a_member("ps", stats=MemberStats(rss_bytes=100_000_000, rows_held=54_321)),
            a_member("worker", 0),
            a_member(
                "worker",
                1,
                state="backing off",
                last_end=MemberEnd("worker-1 was killed", -9),
                restarts=3,
            ),
        ),
        events=(JobEvent(1_700_000_000.0, "worker-1 was killed", "it is started again", 1.25),),
        dropped_tasks=(),
        refused_reports=0,
        master_errors=NO_ERRORS,
        final_metrics=(SplitMetrics("test", 9_000, 0.4444, 0.7777, 1e-5, 1.01),),
    )
    return dataclasses.replace(view, **changes)


class FakeMaster:
    """Answers as a master does; remembers what it was asked."""

    def __init__(self, run_folder):
        self.view = a_view()
        self.asked = []
        job = run_folder / "job"
        access = Access.create(job, False)
        self.server = RpcServer(
            "MasterService",
            (
                Method("Status", Empty, JobView, lambda _: self.view),
                Method("Stop", Empty, Empty, self._stop),
                Method("Scale", ScaleRequest, Empty, self._scale),
            ),
            address="127.0.0.1:0",
            access=access,
            num_threads=2,
        )
        save_endpoint(job, Endpoint(self.server.start(), "", "here", 1))

    def _stop(self, _):
        self.asked.append("stop")
        self.view = dataclasses.replace(self.view, state="stopped")
        return Empty()

    def _scale(self, request):
        self.asked.append(request)
        if request.target_workers == 13:
            raise Refusal("scale", "13 is an unlucky number")
        wanted = max(2, request.target_workers or request.max_workers or 2)
        self.view = dataclasses.replace(self.view, workers_wanted=wanted)
        return Empty()

    def close(self):
        self.server.stop(0)
