"""The demonstrations tell when a job did not keep what is shown."""

import pytest
from elastic_demo import broken_promises

KILLED = ("worker", "ps")


def metrics_of(*, trained=100, dropped=0, **restarts):
    return {
        "runtime": {
            "records": {"total": 100, "trained": trained, "repeated": 3, "dropped": dropped},
            "restarts": {"master": 0, "ps": 1, "worker": 1, **restarts},
        }
    }


def test_a_job_that_kept_all_is_not_blamed():
    assert broken_promises(metrics_of(), KILLED) == []


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"trained": 98}, "2 records are lost"),
        ({"dropped": 5}, "5 records are dropped"),
        ({"worker": 0}, "a worker was killed"),
        ({"ps": 0}, "a ps was killed"),
    ],
)
def test_promises_that_were_not_kept_are_named(fault, said):
    assert said in " ".join(broken_promises(metrics_of(**fault), KILLED))
