"""The demonstration ends with 1 where it does not show what it claims."""

from types import SimpleNamespace

import pytest
from elastic_demo import KILLED, broken_promises


def a_view(*, state="finished", trained=100, dropped=0, restarts=1):
    members = [SimpleNamespace(role=role, index=index, restarts=restarts) for role, index in KILLED]
    records = SimpleNamespace(total=100, trained=trained, dropped=dropped)
    return SimpleNamespace(state=state, records=records, members=members)


def test_a_run_that_lost_nothing_keeps_what_is_promised():
    assert broken_promises(a_view()) == []


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"state": "failed"}, "not finished"),
        ({"trained": 99}, "1 records are lost"),
        ({"dropped": 2}, "2 records are dropped"),
        ({"restarts": 0}, "worker-1 was killed"),
    ],
)
def test_what_is_not_kept_is_told(fault, said):
    assert said in " ".join(broken_promises(a_view(**fault)))
