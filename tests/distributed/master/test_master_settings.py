from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.config.loader import config_from_mapping
from ctr_pipeline.dataset.order import EpochOrder
from ctr_pipeline.distributed.coordination.moves import HeatRules
from ctr_pipeline.distributed.coordination.spec import EncodedSplit
from ctr_pipeline.distributed.master.settings import (
    is_queued,
    plan_epoch,
    plan_job,
    steps_through,
)
from ctr_pipeline.errors import TrainingError
from ctr_pipeline.specs.course import Supervision, UpdateRule, WorkersConfig
from tests.distributed.job_specs import change_spec
from tests.distributed.master.fake_members import prepare_job


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    return prepare_job(tmp_path_factory.mktemp("settings") / "run")


@given(
    num_rows=st.integers(1, 30_000),
    batch_size=st.integers(1, 200),
    shuffle=st.booleans(),
    epoch=st.integers(0, 5),
)
def test_tasks_are_those_of_the_order_of_rows(spec, num_rows, batch_size, shuffle, epoch):
    spec = change_spec(
        spec,
        batch_size=batch_size,
        shuffle=shuffle,
        splits=(EncodedSplit("train", "", num_rows),),
    )
    plan = plan_epoch(spec, epoch)
    order = EpochOrder(num_rows, batch_size, spec.course.seed, epoch, shuffle, 64)
    assert plan.num_tasks == order.num_tasks
    tasks = list(order.tasks())
    assert [plan.rows_of(task.task) for task in tasks] == [task.num_rows for task in tasks]
    assert [plan.batches_of(task.task) for task in tasks] == [
        order.batches_of(task.task) for task in tasks
    ]
    assert plan.num_rows == num_rows


@given(num_rows=st.integers(1, 30_000), batch_size=st.integers(1, 200))
def test_steps_are_counted_with_the_short_batches_of_each_epoch(spec, num_rows, batch_size):
    spec = change_spec(spec, batch_size=batch_size, splits=(EncodedSplit("train", "", num_rows),))
    steps = 0
    for epoch in range(3):
        steps += EpochOrder(num_rows, batch_size, spec.course.seed, epoch, True, 64).num_batches
        assert steps_through(spec, epoch) == steps


def plan(spec, **runtime):
    spec = change_spec(spec, **runtime)
    return plan_job(spec, scores_folder="scores")


def test_workers_start_a_few_at_a_time_on_one_machine_and_side_by_side_in_a_cluster(spec):
    found = {
        mode: plan_job(spec, scores_folder="scores", mode=mode).max_workers_starting
        for mode in ("processes", "kubernetes")
    }
    assert found == {"processes": 4, "kubernetes": 1000}


def test_few_workers_wait_in_a_queue_and_any_number_where_there_is_none(spec):
    found = {
        is_queued: plan_job(spec, scores_folder="scores", is_queued=is_queued).max_workers_queued
        for is_queued in (False, True)
    }
    assert found == {False: None, True: 32}


@pytest.mark.parametrize(
    ("mode", "queue", "found"),
    [
        ("kubernetes", "users", True),
        ("kubernetes", None, False),
        ("processes", "users", False),
        ("local", "users", False),
    ],
)
def test_members_wait_in_a_queue_where_the_launcher_has_one_and_it_is_named(mode, queue, found):
    values = {
        "data": {"train": "rows.csv"},
        "runtime": {"mode": mode},
        "kubernetes": {"queue": queue},
    }
    assert is_queued(config_from_mapping(values).config) is found


def test_wishes_become_settings(spec):
    found = plan(
        spec,
        workers={"min": 2, "max": 5},
        standby_workers=1,
        silence_seconds=9.0,
        work_ahead_seconds=7.0,
        max_task_failures=4,
    )
    assert (found.min_workers, found.max_workers) == (2, 5)
    assert found.supervision == Supervision(
        workers=WorkersConfig(min=2, max=5),
        heartbeat_seconds=spec.supervision.heartbeat_seconds,
        standby_workers=1,
        silence_seconds=9.0,
        work_ahead_seconds=7.0,
        max_task_failures=4,
    )
    assert found.scores_folder == "scores"
    assert found.valid is not None
    assert [split.name for split in found.final_splits] == ["valid", "test"]
    assert found.num_parameter_servers == spec.num_parameter_servers


@pytest.mark.parametrize(
    ("workers", "heartbeat", "news"), [(2, 1.0, 0.2), (198, 1.0, 2 / 3), (598, 5 / 3, 5 / 3)]
)
def test_members_of_a_large_job_are_heard_less_often(spec, workers, heartbeat, news):
    spec = replace(spec, num_parameter_servers=2)
    bounds = {"min": 1, "max": workers}
    found = plan(spec, workers=bounds, silence_seconds=5.0, heartbeat_seconds=1.0)
    assert (found.heartbeat_seconds, found.news_seconds) == pytest.approx((heartbeat, news))


def test_servers_that_gather_no_rounds_are_told_of_no_workers(spec):
    assert not plan(replace(spec, update_rule=UpdateRule(update="async"))).has_rounds
    assert plan(replace(spec, update_rule=UpdateRule(update="sync"))).has_rounds


def test_a_sleep_of_the_machine_never_counts_as_silence(spec):
    for seconds in (0.5, 5.0, 60.0):
        found = plan(spec, silence_seconds=seconds)
        assert found.most_clock_step_seconds < seconds


def test_auto_is_bounded_by_the_cores(spec, monkeypatch):
    monkeypatch.setattr("ctr_pipeline.distributed.master.settings.available_cores", lambda: 6)
    found = plan(spec, workers="auto")
    assert (found.min_workers, found.max_workers) == (1, 6)


def test_job_without_training_rows_is_refused(spec):
    with pytest.raises(TrainingError, match="no training rows"):
        plan(replace(spec, splits=(EncodedSplit("valid", "", 10),)))
    with pytest.raises(TrainingError, match="no training rows"):
        plan(replace(spec, splits=(EncodedSplit("train", "", 0),)))


@pytest.mark.parametrize(
    ("seconds", "rules"), [(60.0, HeatRules(hot_seconds=60.0)), (None, HeatRules(may_move=False))]
)
def test_partitions_of_hot_servers_move_as_the_config_says(spec, seconds, rules):
    assert plan(spec).heat == HeatRules()
    assert plan(spec, move_partitions_after_seconds=seconds).heat == rules
