import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.specs.learning_rate import LearningRateSchedule, ReduceOnPlateau
from ctr_pipeline.specs.section import kinds_of

KINDS = kinds_of(LearningRateSchedule)


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
    schedule = KINDS[options.get("name", "constant")](**options)
    assert schedule.factor(step, []) == pytest.approx(expected, abs=1e-12)


VALUES = {
    "warmup_steps": st.integers(0, 50),
    "decay_steps": st.integers(1, 200),
    "decay_rate": st.floats(0.01, 1.0),
    "floor": st.floats(0, 1),
}
schedules = st.sampled_from(list(KINDS.values())).flatmap(
    lambda kind: st.builds(
        kind, **{key: value for key, value in VALUES.items() if key in kind.model_fields}
    )
)


@given(schedules)
def test_rises_to_one_during_warm_up_and_never_after_it(schedule):
    factors = [schedule.factor(step, []) for step in range(1, 300)]
    warmup, rest = factors[: schedule.warmup_steps], factors[schedule.warmup_steps :]
    assert all(0 < factor < 1 for factor in warmup)
    assert warmup == sorted(warmup)
    assert rest == sorted(rest, reverse=True)
    floor = getattr(schedule, "floor", 1.0)
    assert all(floor - 1e-12 <= factor <= 1 for factor in rest)


def epochs(*losses):
    return [{"valid_logloss": loss, "valid_auc": -loss} for loss in losses]


@pytest.mark.parametrize(
    ("options", "losses", "expected"),
    [
        ({}, [], 1.0),
        ({}, [0.5, 0.4, 0.3], 1.0),
        ({}, [0.5, 0.5], 0.1),
        ({}, [0.5, 0.6, 0.55], 0.01),
        ({}, [0.5, 0.6, 0.4], 0.1),
        ({"metric": "auc"}, [0.5, 0.6, 0.4], 0.1),
        ({"patience": 2}, [0.5, 0.6, 0.4, 0.6], 1.0),
        ({"patience": 2, "reduction": 0.5}, [0.5, 0.6, 0.6, 0.6, 0.6], 0.25),
        ({"min_delta": 0.05}, [0.5, 0.48, 0.46], 0.01),
        ({"floor": 0.05}, [0.5, 0.5, 0.5], 0.05),
    ],
)
def test_rate_is_reduced_when_epochs_bring_no_better_metric(options, losses, expected):
    schedule = ReduceOnPlateau(**options)
    assert schedule.factor_of_epoch(epochs(*losses)) == pytest.approx(expected)
    assert ReduceOnPlateau(warmup_steps=3, **options).factor(1, epochs(*losses)) == pytest.approx(
        expected / 4
    )
