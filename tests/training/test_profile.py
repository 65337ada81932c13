import time
from dataclasses import replace

import pytest

from ctr_pipeline.training.batches import Prefetcher
from ctr_pipeline.training.profile import (
    Stage,
    StageClock,
    StageTime,
    TrainingProfile,
    describe_bound,
    load_profile,
    profile_lines,
    save_profile,
)


class Hands:
    """A clock that stands where it is put."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def profile_of(*, processor=5.0, cores=4, **seconds):
    seconds |= {"LOCATE": 2.0, "READ": 1.0}
    stages = (StageTime(Stage[name], spent, 10) for name, spent in seconds.items())
    return TrainingProfile(100, 6400, processor, cores, tuple(stages))


def test_every_moment_belongs_to_the_stage_that_its_lap_names():
    hands = Hands()
    clock = StageClock(hands)
    hands.now += 5
    clock.start()
    for stage, seconds in ((Stage.GATHER, 2), (Stage.TENSORFLOW, 3), (Stage.GATHER, 4)):
        hands.now += seconds
        clock.lap(stage)
    hands.now += 7
    clock.start()
    hands.now += 1
    clock.lap(Stage.OTHER)
    assert clock.stages() == (
        StageTime(Stage.GATHER, 6, 2),
        StageTime(Stage.TENSORFLOW, 3, 1),
        StageTime(Stage.OTHER, 1, 1),
    )
    assert clock.stages()[0].milliseconds_each == 3000


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        (
            profile_of(TENSORFLOW=6, GATHER=1, AWAIT_BATCH=0.5),
            "The step bounds training: 'TensorFlow step' takes 80% of it.",
        ),
        (
            profile_of(SPARSE_UPDATE=6, TENSORFLOW=2),
            "The step bounds training: 'sparse update' takes 75% of it.",
        ),
        (
            profile_of(TENSORFLOW=6, AWAIT_BATCH=2),
            "Input bounds training: steps wait for batches 25% of their time, most of it for 'read "
            "ahead: find or make rows'.",
        ),
        (
            profile_of(VALIDATION=4, TENSORFLOW=3, CHECKPOINT=1),
            "Steps are less than half of the time: validation takes 50% of it.",
        ),
        (
            profile_of(COMPILE=4, TENSORFLOW=3),
            "Steps are less than half of the time: first step (compiles) takes 57% of it.",
        ),
    ],
)
def test_profile_tells_what_bounds_a_run(profile, said):
    assert describe_bound(profile) == said


def test_more_cores_are_advised_where_all_are_busy():
    busy = profile_of(TENSORFLOW=10, processor=39.0)
    idle = profile_of(TENSORFLOW=10, processor=20.0)
    assert "more of them would help" in describe_bound(busy)
    assert "more of them" not in describe_bound(idle)


def test_rates_leave_out_what_is_no_step():
    profile = profile_of(COMPILE=7, TENSORFLOW=8, AWAIT_BATCH=2, VALIDATION=3, CHECKPOINT=1)
    assert profile.step_seconds == pytest.approx(10)
    assert profile.rows_per_second == pytest.approx(6400 * 0.99 / 10)
    assert replace(profile, num_steps=1).rows_per_second == 0


def test_a_profile_is_kept_and_read_back(tmp_path):
    profile = profile_of(TENSORFLOW=8, AWAIT_BATCH=2)
    save_profile(tmp_path / "profile.json", profile)
    assert load_profile(tmp_path / "profile.json") == profile
    assert load_profile(tmp_path / "absent.json") is None
    (tmp_path / "damaged.json").write_text('{"stages": 1}')
    assert load_profile(tmp_path / "damaged.json") is None


@pytest.mark.slow
def test_the_stages_of_a_training_add_up_to_its_time(make_rig):
    rig = make_rig()
    started = time.perf_counter()
    rig.trainer.fit()
    seconds = time.perf_counter() - started
    profile = rig.trainer.profile(cores=2)
    assert (profile.num_steps, profile.num_rows, profile.cores) == (188, 3000, 2)
    assert profile.seconds == pytest.approx(seconds, rel=0.02, abs=0.3)
    assert profile.processor_seconds > 0
    done = {one.stage: one.times for one in profile.stages}
    assert done[Stage.COMPILE] == 1
    assert done[Stage.TENSORFLOW] == 187
    assert done[Stage.GATHER] == done[Stage.DENSE_UPDATE] == done[Stage.SPARSE_UPDATE] == 188
    assert done[Stage.VALIDATION] == 2
    assert done[Stage.READ] == done[Stage.UNIQUE] == done[Stage.LOCATE] == 188
    text = "\n".join(profile_lines(profile))
    assert all(stage in text for stage in done)


@pytest.mark.slow
def test_a_slow_reader_shows_as_waiting(make_rig, monkeypatch):
    rig = make_rig(epochs=1)
    read_task = rig.readers[0].read_task

    def slowly(*arguments):
        for number, rows in enumerate(read_task(*arguments)):
            if number in range(20, 25):
                time.sleep(0.3)
            yield rows

    monkeypatch.setattr(rig.readers[0], "read_task", slowly)
    rig.trainer.fit()
    profile = rig.trainer.profile(cores=2)
    assert profile.seconds_of(Stage.READ) > 5 * 0.3
    # Of each pause, what the steps of the batches that were ready did not take.
    assert profile.seconds_of(Stage.AWAIT_BATCH) > 0.5


@pytest.mark.slow
def test_a_full_queue_counts_as_no_stage():
    clock = StageClock()

    def items():
        clock.start()
        for number in range(6):
            clock.lap(Stage.READ)
            yield number
            clock.start()

    with Prefetcher(items(), num_ahead=1) as ahead:
        for _ in ahead:
            time.sleep(0.05)
    # Of 0.3 s, most of which it waited.
    assert clock.seconds[Stage.READ] < 0.15
