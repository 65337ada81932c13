"""Whatever happens, and in whatever order: nothing counted is lost, nothing applied twice."""

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.distributed.coordination.job_machine import JobMachine
from tests.distributed.coordination.seeded_bugs import SEEDED_BUGS

SETTINGS = settings(
    stateful_step_count=16,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
)


@pytest.mark.parametrize("num_examples", [15, pytest.param(100, marks=pytest.mark.slow)])
def test_any_interleaving_of_failures_ends_well(num_examples):
    run_state_machine_as_test(JobMachine, settings=settings(SETTINGS, max_examples=num_examples))


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("seed_bug", SEEDED_BUGS, ids=lambda bug: bug.__name__)
def test_a_seeded_bug_is_found(seed_bug, monkeypatch):
    seed_bug(monkeypatch.setattr)
    # The first failure is enough: nobody has to read a small example of it.
    until_found = settings(SETTINGS, max_examples=400, phases=(Phase.generate,))
    with pytest.raises((AssertionError, LookupError, RuntimeError)):
        run_state_machine_as_test(JobMachine, settings=until_found)
