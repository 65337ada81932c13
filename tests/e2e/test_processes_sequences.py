"""Sequences in several processes end as in one."""

import pytest

from tests.e2e.both_modes import assert_both_end_alike
from tests.pipeline.visits import write_visits

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(600)]

FEATURES = [
    {"columns": "visited", "sequence": {"max_length": 6}, "id": "vocabulary"},
    {"columns": ["city", "device"], "id": "vocabulary"},
    {
        "columns": "bought",
        "sequence": {"max_length": 3, "weights": True, "pooling": "max"},
        "id": {"hash": {"buckets": 500}},
    },
]


def test_sequences_in_processes_end_as_in_one(tmp_path):
    write_visits(tmp_path / "visits.csv", 3000)
    assert_both_end_alike(tmp_path, tmp_path / "visits.csv", FEATURES)
