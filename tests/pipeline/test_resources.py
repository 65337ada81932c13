import os

import pytest

from ctr_pipeline.config.models import RuntimeConfig
from ctr_pipeline.pipeline import resources

CORES = 8


@pytest.fixture
def cgroup(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(CORES)), raising=False)
    monkeypatch.setattr(resources, "_CGROUP_V2", tmp_path / "cpu.max")
    monkeypatch.setattr(resources, "_CGROUP_V1", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max 100000\n", CORES),
        ("200000 100000\n", 2),
        ("150000 100000\n", 2),
        ("10000 100000\n", 1),
        ("6400000 100000\n", CORES),
        ("nonsense\n", CORES),
        ("100000 0\n", CORES),
        ("", CORES),
    ],
)
def test_version_two(cgroup, text, expected):
    (cgroup / "cpu.max").write_text(text)
    assert resources.available_cores() == expected


@pytest.mark.parametrize(
    ("quota", "period", "expected"),
    [("-1", "100000", CORES), ("300000", "100000", 3), ("50000", "100000", 1), ("5", "x", CORES)],
)
def test_version_one(cgroup, quota, period, expected):
    (cgroup / "cpu.cfs_quota_us").write_text(quota + "\n")
    (cgroup / "cpu.cfs_period_us").write_text(period + "\n")
    assert resources.available_cores() == expected


@pytest.mark.usefixtures("cgroup")
def test_no_cgroup():
    assert resources.available_cores() == CORES


@pytest.mark.usefixtures("cgroup")
def test_config_wins():
    assert resources.num_threads(RuntimeConfig(threads=3)) == 3
    assert resources.num_threads(RuntimeConfig()) == CORES
