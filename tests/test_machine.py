import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.machine import (
    affinity_cores,
    available_cores,
    cgroup_memory_limit,
    cgroup_quota,
    decide_cores,
    decide_threads,
    multiplies_bfloat16,
    processor_flags,
)


@pytest.fixture
def system(tmp_path):
    """A root without bounds, and a process in its first group."""
    root = tmp_path / "cgroup"
    root.mkdir()
    own = tmp_path / "own"
    own.write_text("0::/\n")
    return root, own


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max 100000\n", None),
        ("200000 100000\n", 2),
        ("150000 100000\n", 1.5),
        ("10000 100000\n", 0.1),
        ("nonsense\n", None),
        ("100000 0\n", None),
        ("0 100000\n", None),
        ("-5 100000\n", None),
        ("1 2 3\n", None),
        ("", None),
    ],
)
def test_version_two(system, text, expected):
    root, own = system
    (root / "cpu.max").write_text(text)
    assert cgroup_quota(root, own) == expected


@pytest.mark.parametrize("folder", ["cpu", "cpu,cpuacct"])
@pytest.mark.parametrize(
    ("quota", "period", "expected"),
    [("-1", "100000", None), ("300000", "100000", 3), ("50000", "100000", 0.5), ("5", "x", None)],
)
def test_version_one(system, folder, quota, period, expected):
    root, own = system
    (root / folder).mkdir()
    (root / folder / "cpu.cfs_quota_us").write_text(quota + "\n")
    (root / folder / "cpu.cfs_period_us").write_text(period + "\n")
    assert cgroup_quota(root, own) == expected


def test_no_groups_at_all(tmp_path):
    assert cgroup_quota(tmp_path / "absent", tmp_path / "nor this") is None


def test_the_smallest_bound_of_a_group_and_those_above_it_counts(system):
    root, own = system
    own.write_text("0::/users/me/job\n")
    groups = [root / "users", root / "users/me", root / "users/me/job", root / "users/other"]
    for group in groups:
        group.mkdir(exist_ok=True)
    for group, text in zip(groups, ("900000", "300000", "max", "100000"), strict=True):
        (group / "cpu.max").write_text(f"{text} 100000\n")
    assert cgroup_quota(root, own) == 3
    (groups[2] / "cpu.max").write_text("250000 100000\n")
    assert cgroup_quota(root, own) == 2.5


def test_groups_of_version_one_are_found_by_their_controller(system):
    root, own = system
    own.write_text("5:memory:/a\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/cpu\n")
    group = root / "cpu,cpuacct/docker/abc"
    group.mkdir(parents=True)
    (group / "cpu.cfs_quota_us").write_text("200000\n")
    (group / "cpu.cfs_period_us").write_text("100000\n")
    assert cgroup_quota(root, own) == 2


def test_a_membership_outside_of_what_can_be_seen_leads_nowhere_else(system):
    root, own = system
    own.write_text("0::/../../elsewhere\n")
    (root / "cpu.max").write_text("400000 100000\n")
    (root.parent / "cpu.max").write_text("100000 100000\n")
    assert cgroup_quota(root, own) == 4


@pytest.mark.parametrize(
    ("affinity", "quota", "expected"),
    [(8, None, 8), (8, 2, 2), (8, 1.5, 2), (8, 0.1, 1), (8, 64, 8), (1, 2, 1)],
)
def test_cores(affinity, quota, expected):
    assert decide_cores(affinity, quota) == expected


def test_affinity_is_asked(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {3, 5}, raising=False)
    assert affinity_cores() == 2
    assert available_cores() <= 2
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert affinity_cores() == 6


@given(st.integers(1, 512))
def test_everyone_has_a_thread_and_nobody_more_than_there_are(cores):
    shares = decide_threads(cores)
    for share in (shares.arrow, shares.tensorflow, shares.operations, shares.rows):
        assert 1 <= share <= cores
    # The thread that reads ahead has a core of its own as soon as there are a few.
    assert cores < 4 or shares.tensorflow + 1 <= cores


def test_shares_of_a_few_machines():
    told = [(s.tensorflow, s.rows) for s in map(decide_threads, (1, 2, 3, 4, 16))]
    assert told == [(1, 1), (2, 2), (3, 3), (3, 4), (15, 8)]


@pytest.mark.parametrize(
    ("text", "flags", "bfloat16"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx2 amx_bf16\n", {"fpu", "avx2", "amx_bf16"}, True),
        ("flags : avx512f avx512_bf16\nflags : other\n", {"avx512f", "avx512_bf16"}, True),
        ("flags\t: avx512f amx_tile\n", {"avx512f", "amx_tile"}, False),
        ("Features\t: asimd bf16\n", {"asimd", "bf16"}, False),
        ("model name: no flags here\n", set(), False),
        ("", set(), False),
    ],
)
def test_abilities_of_a_processor(tmp_path, text, flags, bfloat16):
    (tmp_path / "cpuinfo").write_text(text)
    found = processor_flags(tmp_path / "cpuinfo")
    assert found == flags
    assert multiplies_bfloat16(found) == bfloat16


def test_a_system_that_tells_nothing_has_no_flags(tmp_path):
    assert processor_flags(tmp_path / "absent") == frozenset()


def test_container_limits_of_both_versions(tmp_path):
    assert cgroup_memory_limit(tmp_path) is None
    (tmp_path / "memory.max").write_text("max\n")
    assert cgroup_memory_limit(tmp_path) is None
    (tmp_path / "memory.max").write_text("1000000\n")
    assert cgroup_memory_limit(tmp_path) == 1_000_000
    old = tmp_path / "old"
    (old / "memory").mkdir(parents=True)
    (old / "memory" / "memory.limit_in_bytes").write_text(f"{2**63 - 4096}\n")
    assert cgroup_memory_limit(old) is None
