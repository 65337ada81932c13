import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr_pipeline.specs.course import LearningRateSchedule
from ctr_pipeline.training.schedule import learning_rate_factor


@pytest.mark.parametrize(
    ("options", "step", "expected"),
    [
        ({}, 1, 1.0),
        ({}, 10**6, 1.0),
        ({"warmup_steps": 4}, 1, 0.2),
        ({"warmup_steps": 4}, 4, 0.8),
        ({"warmup_steps": 4}, 5, 1.0),
        ({"name": "cosine", "decay_steps": 10}, 5, 0.5),
        ({"name": "cosine", "decay_steps": 10}, 10, 0.0),
        ({"name": "cosine", "decay_steps": 10}, 99, 0.0),
        ({"name": "cosine", "decay_steps": 10, "floor": 0.2}, 5, 0.6),
        ({"name": "cosine", "decay_steps": 10, "floor": 0.2}, 10, 0.2),
        ({"name": "cosine", "decay_steps": 10, "warmup_steps": 10}, 15, 0.5),
        ({"name": "exponential", "decay_steps": 10, "decay_rate": 0.5}, 10, 0.5),
        ({"name": "exponential", "decay_steps": 10, "decay_rate": 0.5}, 5, math.sqrt(0.5)),
        ({"name": "exponential", "decay_steps": 10, "decay_rate": 0.5, "floor": 0.3}, 20, 0.3),
    ],
)
def test_factor(options, step, expected):
    schedule = LearningRateSchedule(**options)
    assert learning_rate_factor(schedule, step) == pytest.approx(expected, abs=1e-12)


schedules = st.builds(
    LearningRateSchedule,
    name=st.sampled_from(["constant", "cosine", "exponential"]),
    warmup_steps=st.integers(0, 50),
    decay_steps=st.integers(1, 200),
    decay_rate=st.floats(0.01, 1.0),
    floor=st.floats(0, 1),
)


@settings(max_examples=50)
@given(schedules)
def test_rises_to_one_during_warm_up_and_never_after_it(schedule):
    factors = [learning_rate_factor(schedule, step) for step in range(1, 300)]
    warmup, rest = factors[: schedule.warmup_steps], factors[schedule.warmup_steps :]
    assert all(0 < factor < 1 for factor in warmup)
    assert warmup == sorted(warmup)
    assert rest == sorted(rest, reverse=True)
    floor = 1.0 if schedule.name == "constant" else schedule.floor
    assert all(floor - 1e-12 <= factor <= 1 for factor in rest)
