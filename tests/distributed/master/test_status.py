import math
from dataclasses import asdict, replace

import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from ctr_pipeline.distributed.coordination.codec import decode, encode
from ctr_pipeline.distributed.coordination.events import EpochTotals, SplitTotals
from ctr_pipeline.distributed.coordination.job.status import JobStatus, MemberStatus
from ctr_pipeline.distributed.coordination.members import MemberEnd
from ctr_pipeline.distributed.coordination.messages import (
    MemberStats,
    PartitionLoads,
    ScoreSummary,
)
from ctr_pipeline.distributed.master.status import (
    NO_CUT,
    JobEvent,
    JobView,
    NewestCut,
    measure_split,
    price_disruptions,
    view_job,
)
from ctr_pipeline.evaluation.histogram import ScoreHistogram
from ctr_pipeline.specs.table import TableSpec
from ctr_pipeline.training.history import EpochRecord

RECORD = EpochRecord(0, 94, 0.6, 0.55, 0.71, 1.01, 1.0, 1500, 2.5)
WORKER = MemberStatus(
    "worker",
    0,
    17,
    "here",
    "",
    "",
    "running",
    1,
    0.4,
    2,
    MemberEnd("killed", -9),
    MemberStats(rss_bytes=5),
)
GONE = replace(WORKER, index=1, state="ended", last_seen_seconds=None)
STATUS = JobStatus(
    phase="training",
    reason="",
    traceback="",
    generation=3,
    epoch=1,
    tasks_done=2,
    tasks_total=5,
    epochs=(EpochTotals(0, 1500, 10, 0, 900.0, 2.5), EpochTotals(1, 400, 0, 0, 220.0, 0.5)),
    step=120,
    trained=1900,
    repeated=10,
    dropped=0,
    dropped_tasks=(),
    history=(asdict(RECORD),),
    best_epoch=0,
    last_cut=4,
    best_cut=3,
    cut_age_seconds=7.0,
    members=(WORKER, GONE),
    target_workers=2,
    refused_reports=1,
    final_scores=(),
)
CUT = NewestCut(4, 110, 990.0)
MASTER = MemberStatus(
    "master", 0, 9, "here", "h:1", "h:2", "running", 0, 0.0, 0, None, MemberStats()
)


def view(status=STATUS, master=MASTER, newest_cut=CUT):
    return view_job(
        status,
        job="job-1",
        epochs=3,
        records_per_epoch=1500,
        newest_cut=newest_cut,
        unix_time=1000.0,
        samples_per_second=123.0,
        events=(JobEvent(1.0, "x", "y", None),),
        master=master,
    )


def test_a_job_is_told_as_it_is():
    found = view()
    assert (found.records.total, found.records.trained, found.records.repeated) == (4500, 1900, 10)
    assert found.train_logloss == pytest.approx(220.0 / 400)
    assert found.auc == 0.71
    assert found.history == (RECORD,)
    assert (found.checkpoint.number, found.checkpoint.step) == (4, 110)
    assert found.checkpoint.age_seconds == 10.0
    assert found.checkpoint.best == 3
    assert [member.role for member in found.members] == ["master", "worker", "worker"]
    assert [member.last_seen_seconds for member in found.members] == [0.0, 0.4, None]


def test_job_view_survives_the_wire_bit_for_bit():
    found = view()
    assert decode(JobView, encode(found)) == found


def test_job_view_has_no_results_before_anything_is_known():
    status = replace(STATUS, epochs=(), history=(), last_cut=0, best_epoch=None, trained=0)
    found = view(status, newest_cut=NO_CUT)
    assert found.checkpoint is None
    assert found.auc is None
    assert found.train_logloss is None


def test_job_view_does_not_tell_what_a_ledger_cannot_know():
    found = view(master=None)
    assert not found.answering
    assert {member.state for member in found.members} == {"unknown"}
    assert {member.last_seen_seconds for member in found.members} == {None}
    assert {member.stats for member in found.members} == {None}
    assert decode(JobView, encode(found)) == found
    over = view(replace(STATUS, phase="stopped"), master=None)
    assert {member.state for member in over.members} == {"left"}
    finished = view(replace(STATUS, phase="finished"), master=None)
    assert {member.state for member in finished.members} == {"finished"}


def test_metrics_have_every_member_and_the_starts_of_each_role():
    found = view().to_metrics()
    assert found["restarts"] == {"master": 0, "ps": 0, "worker": 2}
    assert [(one["role"], one["index"], one["rss_bytes"]) for one in found["members"]] == [
        ("master", 0, 0),
        ("worker", 0, 5),
        ("worker", 1, 5),
    ]
    assert found["records"] == {"total": 4500, "trained": 1900, "repeated": 10, "dropped": 0}


def totals(labels, logits):
    counted = ScoreHistogram.of(labels, logits)
    summary = ScoreSummary(
        counted.sparse_positives,
        counted.sparse_negatives,
        counted.loss_sum,
        counted.probability_sum,
    )
    return SplitTotals("test", len(labels), summary)


def test_metrics_of_a_split_are_within_their_bound():
    random = np.random.default_rng(1)
    labels = random.integers(0, 2, 5000)
    logits = (labels + random.normal(0, 1, 5000)).astype(np.float32)
    found = measure_split(totals(labels, logits))
    assert abs(found.auc - roc_auc_score(labels, logits)) <= found.auc_error_bound + 1e-12
    probabilities = 1 / (1 + np.exp(-logits.astype(np.float64)))
    assert found.logloss == pytest.approx(log_loss(labels, probabilities), abs=1e-9)


def test_a_split_of_one_class_has_no_auc():
    found = measure_split(totals(np.zeros(10, int), np.zeros(10, np.float32)))
    assert found.auc is None
    assert found.calibration is None
    assert found.logloss == pytest.approx(math.log(2))


def lost(time, what, repeated):
    return JobEvent(time, what, "others go on", None, is_disruption=True, repeated=repeated)


def test_a_disruption_costs_what_is_repeated_until_the_next_one():
    events = (
        lost(10.0, "worker 0 was killed", 0),
        JobEvent(12.0, "another number of workers is asked for", "3", None, repeated=40),
        lost(50.0, "worker 1 was killed", 64),
    )
    first, second = price_disruptions(events, 80)
    assert (first.records_repeated, first.seconds_lost) == (64, 0.0)
    assert (second.records_repeated, second.seconds_lost) == (16, 0.0)


def test_failures_while_work_stands_still_are_one_disruption():
    events = (
        lost(10.0, "worker 0 was killed", 0),
        lost(50.0, "parameter server 0 was killed", 5),
        lost(51.0, "worker 1 was killed", 5),
        JobEvent(53.0, "the job has recovered", "900 are trained again", 3.0, repeated=905),
    )
    first, second = price_disruptions(events, 910)
    assert (first.what, first.records_repeated) == ("worker 0 was killed", 5)
    assert second.what == "parameter server 0 was killed; worker 1 was killed"
    assert (second.records_repeated, second.seconds_lost, second.time) == (905, 3.0, 50.0)


def test_a_recovery_without_a_failure_before_it_is_one_itself():
    (found,) = price_disruptions((JobEvent(9.0, "the master was lost", "goes on", 2.5),), 0)
    assert (found.what, found.seconds_lost) == ("the master was lost", 2.5)


def test_bytes_of_a_table_are_those_of_all_servers():
    loads = PartitionLoads((0,), (7,), (70,), (1,), (1,), table_rows=(3, 4), bytes_a_row=10)
    servers = tuple(
        replace(WORKER, role="ps", index=index, stats=MemberStats(rss_bytes=1, loads=loads))
        for index in range(2)
    )
    found = view_job(
        replace(STATUS, members=servers),
        job="job-1",
        epochs=3,
        records_per_epoch=1500,
        newest_cut=CUT,
        unix_time=1000.0,
        samples_per_second=1.0,
        events=(),
        tables=(TableSpec("items", 100), TableSpec("C1", 9)),
        table_features=(("item", "items_seen"), ("C1",)),
        master=MASTER,
    )
    assert [(one.name, one.rows, one.row_bytes) for one in found.tables] == [
        ("items", 6, 60),
        ("C1", 8, 80),
    ]
    assert found.tables[0].features == ("item", "items_seen")
    assert decode(JobView, encode(found)) == found
