import pytest

from ctr_pipeline.distributed.coordination.job.status import MemberStatus
from ctr_pipeline.distributed.coordination.members import MemberEnd
from ctr_pipeline.distributed.coordination.messages import MemberStats
from ctr_pipeline.distributed.master.status import JobEvent
from ctr_pipeline.errors import RunFolderError
from ctr_pipeline.pipeline.job.replica_progress import (
    ReplicaCollector,
    ReplicaMembers,
    ReplicaProgress,
    discard_progress,
    load_members_told,
    load_metrics_address,
    save_members,
    save_metrics_address,
)
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.training.history import EpochRecord, WorldRecord


def values(told):
    return {
        sample.name: sample.value
        for metric in ReplicaCollector(lambda: told).collect()
        for sample in metric.samples
    }


def test_changes_of_the_world_are_counted_with_their_price():
    worlds = (
        WorldRecord(1, 2, 2048, 0, 3.0, 0),
        WorldRecord(2, 1, 1024, 140, 0.5, 1),
        WorldRecord(3, 2, 2048, 188, 2.0, 0),
    )
    record = EpochRecord(0, 94, 0.6, 0.55, 0.71, 1.01, 1.0, 1500, 2.5)
    found = values(ReplicaProgress(200, 1, 30, worlds, (record,)))
    assert found["ctrpipe_world_version"] == 3
    assert found["ctrpipe_world_size"] == 2
    assert found["ctrpipe_world_changes_total"] == 2
    assert found["ctrpipe_world_change_seconds_total"] == 2.5
    assert found["ctrpipe_world_steps_repeated_total"] == 1
    assert (found["ctrpipe_step"], found["ctrpipe_epoch"]) == (200, 2)
    assert found["ctrpipe_valid_auc"] == 0.71


def test_metrics_are_empty_before_the_first_step():
    assert values(None) == {}
    assert values(ReplicaProgress(0, 0, 0, (), ())) == {}


def test_the_address_is_told_once_it_is_known(tmp_path):
    run = RunFolder(tmp_path)
    assert load_metrics_address(run) == ""
    run.replicas.mkdir()
    save_metrics_address(run, "127.0.0.1:7")
    assert load_metrics_address(run) == "127.0.0.1:7"


def test_members_are_told_until_training_begins_anew(tmp_path):
    run = RunFolder(tmp_path)
    assert load_members_told(run) == ReplicaMembers()
    run.replicas.mkdir()
    member = MemberStatus(
        role="ps",
        index=0,
        pid=7,
        host="here",
        address="127.0.0.1:7",
        metrics_address="",
        state="running",
        last_end=MemberEnd("parameter server 0 was not heard for 5 s", -9),
        stats=MemberStats(rss_bytes=5, rows_held=3, cores=2),
    )
    told = ReplicaMembers((member,), (JobEvent(1.5, "something", "done", None, "member"),))
    save_members(run, told)
    assert load_members_told(run) == told
    (run.replicas / "members.json").write_text("{")
    with pytest.raises(RunFolderError, match="is damaged"):
        load_members_told(run)
    discard_progress(run)
    assert load_members_told(run) == ReplicaMembers()
