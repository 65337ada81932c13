import threading
import time
from dataclasses import replace

import pytest
from training_problem import new_store

from ctr_pipeline.training.batches import Prefetcher
from ctr_pipeline.training.profile import (
    Bound,
    LapClock,
    Stage,
    StageTime,
    ThreadTime,
    TrainingProfile,
    TrainingProfiler,
    decide_bound,
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


def thread(**seconds):
    return ThreadTime("a thread", tuple(StageTime(Stage[n], s, 10) for n, s in seconds.items()))


def profile_of(ahead=None, *, processor=5.0, cores=4, **training):
    training = thread(**training)
    return TrainingProfile(
        first_step=0,
        num_steps=100,
        num_rows=6400,
        seconds=training.seconds,
        processor_seconds=processor,
        cores=cores,
        training=training,
        ahead=ahead or thread(READ=1.0, LOCATE=2.0),
    )


def test_every_moment_belongs_to_the_stage_that_its_lap_names():
    hands, waits = Hands(), Hands()
    clock = LapClock(hands, waits)
    hands.now += 5
    clock.start()
    for stage, seconds in ((Stage.GATHER, 2), (Stage.TENSORFLOW, 3), (Stage.GATHER, 4)):
        hands.now += seconds
        clock.lap(stage)
    assert clock.seconds == {Stage.GATHER: 6, Stage.TENSORFLOW: 3}
    assert clock.laps == {Stage.GATHER: 2, Stage.TENSORFLOW: 1}


def test_waiting_for_the_lock_is_taken_out_of_the_stage():
    hands, waits = Hands(), Hands()
    clock = LapClock(hands, waits)
    clock.start()
    hands.now, waits.now = hands.now + 10, waits.now + 4
    clock.lap(Stage.SPARSE_UPDATE, lock=True)
    hands.now += 1
    clock.lap(Stage.SPARSE_UPDATE, lock=True)
    assert clock.seconds == {Stage.AWAIT_LOCK: 4, Stage.SPARSE_UPDATE: 7}


def test_rows_count_what_their_lock_was_waited_for_by_thread():
    rows, seen = new_store().rows, []

    def wait():
        with rows.locked():
            seen.append(rows.lock_wait_seconds())

    waiting = threading.Thread(target=wait)
    with rows.locked(), rows.locked():
        waiting.start()
        time.sleep(0.1)
        assert not seen
    waiting.join()
    assert 0 < seen[0] < 10
    assert rows.lock_wait_seconds() == 0


@pytest.mark.parametrize(
    ("profile", "bound", "said"),
    [
        (profile_of(TENSORFLOW=6, GATHER=1, AWAIT_BATCH=0.5), Bound.STEP, "'TensorFlow step'"),
        (profile_of(TENSORFLOW=1, SPARSE_UPDATE=6), Bound.STEP, "'sparse update'"),
        (profile_of(TENSORFLOW=6, AWAIT_BATCH=2), Bound.INPUT, "'find or make rows' takes 67%"),
        (profile_of(TENSORFLOW=6, AWAIT_LOCK=2, AWAIT_BATCH=1), Bound.LOCK, "22%"),
        (profile_of(TENSORFLOW=3, VALIDATION=4, CHECKPOINT=1), Bound.OUTSIDE, "validation"),
        (profile_of(TENSORFLOW=3, COMPILE=4), Bound.OUTSIDE, "first step (compiles) takes 57%"),
        (profile_of(), Bound.STEP, "step"),
    ],
)
def test_what_bounds_a_run(profile, bound, said):
    assert decide_bound(profile) is bound
    assert said in describe_bound(profile)


def test_more_cores_are_advised_where_all_are_busy():
    busy = profile_of(TENSORFLOW=10, processor=39.0)
    idle = profile_of(TENSORFLOW=10, processor=20.0)
    assert "more of them would help" in describe_bound(busy)
    assert "more of them" not in describe_bound(idle)


def test_rates_leave_out_what_is_no_step():
    profile = profile_of(COMPILE=7, TENSORFLOW=8, AWAIT_BATCH=2, VALIDATION=3, CHECKPOINT=1)
    assert profile.loop_seconds == pytest.approx(10)
    assert profile.rows_per_second == pytest.approx(6400 * 0.99 / 10)
    assert replace(profile, num_steps=1).rows_per_second == 0


def test_a_profile_is_kept_and_read_back(tmp_path):
    profile = profile_of(TENSORFLOW=8, AWAIT_BATCH=2)
    save_profile(tmp_path / "profile.json", profile)
    assert load_profile(tmp_path / "profile.json") == profile
    assert load_profile(tmp_path / "absent.json") is None
    (tmp_path / "damaged.json").write_text('{"bound": "", "training": 1}')
    assert load_profile(tmp_path / "damaged.json") is None


def test_a_training_is_watched_without_being_changed(make_rig):
    profiler = TrainingProfiler(cores=2, lock_waits=lambda: 0.0)
    plain, watched = make_rig("plain"), make_rig("watched", profiler=profiler)
    history = [rig.trainer.fit().history for rig in (plain, watched)]
    assert [r.valid_logloss for r in history[0]] == [r.valid_logloss for r in history[1]]
    profile = profiler.profile()
    assert (profile.first_step, profile.num_steps, profile.num_rows) == (0, 188, 3000)
    # Each thread accounts for all of its life.
    assert profile.training.seconds == pytest.approx(profile.seconds, rel=0.02, abs=0.3)
    assert 0 < profile.ahead.seconds < profile.seconds
    done = {one.stage: one.times for one in profile.training.stages}
    assert done[Stage.COMPILE] == 1
    assert done[Stage.TENSORFLOW] == 187
    assert done[Stage.GATHER] == done[Stage.DENSE_UPDATE] == done[Stage.SPARSE_UPDATE] == 188
    assert done[Stage.VALIDATION] == 2
    ahead = {one.stage: one.times for one in profile.ahead.stages}
    assert ahead[Stage.READ] == ahead[Stage.UNIQUE] == ahead[Stage.LOCATE] == 188
    text = "\n".join(profile_lines(profile))
    assert all(stage in text for stage in done)


def test_a_slow_reader_shows_as_waiting(make_rig, monkeypatch):
    profiler = TrainingProfiler(cores=2, lock_waits=lambda: 0.0)
    rig = make_rig(epochs=1, profiler=profiler)
    read_task = rig.readers[0].read_task

    def slowly(*arguments):
        for number, rows in enumerate(read_task(*arguments)):
            if number in range(20, 30):
                time.sleep(0.1)
            yield rows

    monkeypatch.setattr(rig.readers[0], "read_task", slowly)
    rig.trainer.fit()
    profile = profiler.profile()
    assert profile.ahead.of(Stage.READ) > 20 * 0.1
    # Of each pause, what the steps of the batches that were ready did not take.
    assert profile.training.of(Stage.AWAIT_BATCH) > 0.5


def test_a_full_queue_shows_as_waiting_for_room():
    hands = LapClock(time.perf_counter, lambda: 0.0)

    def items():
        hands.start()
        for number in range(6):
            yield number
            hands.lap(Stage.AWAIT_ROOM)

    with Prefetcher(items(), num_ahead=1) as ahead:
        for _ in ahead:
            time.sleep(0.03)
    assert hands.seconds[Stage.AWAIT_ROOM] > 0.03
