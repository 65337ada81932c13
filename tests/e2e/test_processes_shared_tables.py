"""Features that share an embedding table, or have one of their own make, train in several processes
what they train in one."""

import pytest

from tests.e2e.both_modes import assert_both_end_alike
from tests.pipeline.feeds import write_feeds

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(600)]

FEATURES = [
    {"columns": "item", "id": {"vocabulary": {"min_count": 2}}},
    {
        "columns": "clicked_items",
        "sequence": {"max_length": 4},
        "id": {"vocabulary": {"min_count": 2}},
        "embedding": {
            "share": "item",
            "vector": {
                "optimizer": {"name": "adagrad", "learning_rate": 0.05},
                "initializer": {"name": "uniform", "scale": 0.1},
                "l2": {"strength": 2.0},
            },
        },
    },
    {
        "columns": "hour",
        "id": {"round_identity": {"num_buckets": 24}},
        "embedding": {
            "dimension": "auto",
            "linear": {"reduction": "mean", "l2": {"count_power": 2}},
        },
    },
]


def test_shared_tables_in_processes_end_as_in_one(tmp_path):
    write_feeds(tmp_path / "feeds.csv", 2000)
    assert_both_end_alike(tmp_path, tmp_path / "feeds.csv", FEATURES)
