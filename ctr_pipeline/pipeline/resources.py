"""Cores and memory that this process may use."""

import math
import os
from pathlib import Path

from ctr_pipeline.config.models import RuntimeConfig

_CGROUP_V2 = Path("/sys/fs/cgroup/cpu.max")
_CGROUP_V1 = Path("/sys/fs/cgroup/cpu")


def num_threads(runtime: RuntimeConfig) -> int:
    """Threads to use: the config's number, or the cores that the system and cgroup allow."""
    return runtime.threads or available_cores()


def available_cores() -> int:
    """Cores this process may run on, at least 1; a cgroup's share of a core is rounded up."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = _cgroup_cores()
    return max(1, min(cores or 1, math.ceil(quota)) if quota else cores or 1)


def _cgroup_cores() -> float | None:
    try:
        if _CGROUP_V2.exists():
            quota, period = _CGROUP_V2.read_text(encoding="ascii").split()
        else:
            quota = (_CGROUP_V1 / "cpu.cfs_quota_us").read_text(encoding="ascii").strip()
            period = (_CGROUP_V1 / "cpu.cfs_period_us").read_text(encoding="ascii").strip()
        if quota in {"max", "-1"} or int(period) <= 0:
            return None
        return int(quota) / int(period)
    except (OSError, ValueError):
        return None
