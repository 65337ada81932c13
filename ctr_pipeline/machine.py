"""What this process may use of the machine, and uses: its cores, its memory, their shares.

What the machine has is not what a process may use: its affinity may leave cores out, and its
control group, or any of that group's parents, may bound the processor time of all its threads
together (`cpu.max`; in version 1 `cpu.cfs_quota_us` over `cpu.cfs_period_us`; see the kernel's
Documentation/admin-guide/cgroup-v2.rst and scheduler/sched-bwc.rst). Libraries look at neither the
one nor the other alike, and each brings its own pool.
"""

import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")
PROCESSOR = Path("/proc/cpuinfo")

# Where the controller is mounted in version 1; systems link one to the other, or not.
_FOLDERS_V1 = ("cpu", "cpu,cpuacct")
# Rows are bound by memory: more threads than this find, gather and update them no faster.
_MOST_ROW_THREADS = 8
# So many cores leave one to the thread that reads ahead.
_CORES_TO_LEAVE_ONE = 4


EXIT_NO_THREAD = 73
"""Exit code of a process to which the system refused a thread."""


def is_refused_thread(error: BaseException) -> bool:
    """Whether an error says that the system allows no more threads; CPython has no type for it."""
    return isinstance(error, RuntimeError) and str(error) == "can't start new thread"


def version_of(package: str) -> str:
    """The version of an installed package; TensorFlow may be the one for processors alone.

    Raises:
        PackageNotFoundError: It is not installed.
    """
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        if package != "tensorflow":
            raise
        return metadata.version("tensorflow-cpu")


@dataclass(frozen=True)
class ProcessUsage:
    """What a process uses of the machine; each member of a job reports it.

    Attributes:
        rss_bytes: Resident memory.
        cpu_seconds: User and system time so far.
    """

    rss_bytes: int = 0
    cpu_seconds: float = 0.0


def measure_usage() -> ProcessUsage:
    """Measures this process."""
    import psutil

    return ProcessUsage(
        rss_bytes=psutil.Process().memory_info().rss, cpu_seconds=time.process_time()
    )


@dataclass(frozen=True)
class ThreadShares:
    """Threads of each library and pool. Those of one phase do not exceed the cores.

    Attributes:
        total: Cores to use. Parsing, conversion and encoding of rows take all of them, one after
            the other; so do the queries of the statistics, which have one thread each.
        arrow: Threads of Arrow's own pool, among those.
        tensorflow: Within an operation, and of XLA.
        operations: Operations of TensorFlow at a time; the step is one.
        rows: Threads that find, gather and update embedding rows, with the calling one.
    """

    total: int
    arrow: int
    tensorflow: int
    operations: int
    rows: int


def decide_threads(cores: int) -> ThreadShares:
    """Divides cores among those that compute at the same time.

    A step and the thread that reads ahead run at once. From four cores on one is left to the
    latter; below, the step would lose more than reading gains.

    Args:
        cores: To use, at least 1.
    """
    return ThreadShares(
        total=cores,
        arrow=cores,
        tensorflow=cores - 1 if cores >= _CORES_TO_LEAVE_ONE else cores,
        operations=min(2, cores),
        rows=min(cores, _MOST_ROW_THREADS),
    )


def decide_cores(affinity: int, quota: float | None) -> int:
    """Cores to use, at least 1.

    A part of a core counts as a whole one: rounded down, its processor time would be lost.

    Args:
        affinity: Cores that the process may run on.
        quota: Cores' worth of time that its control group may use; None: no bound.
    """
    return max(1, affinity if quota is None else min(affinity, math.ceil(quota)))


def available_cores() -> int:
    """Cores that this process may use, at least 1."""
    return decide_cores(affinity_cores(), cgroup_quota())


def affinity_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cgroup_quota(root: Path = CGROUP_ROOT, own: Path = OWN_CGROUP) -> float | None:
    """Cores' worth of time that this process's control group may use; None if nothing bounds it.

    The smallest bound counts, of the group and of all above it that can be seen. A container sees
    its own group as the root, and its membership may name folders that are not there.

    Args:
        root: Where control groups are mounted.
        own: The file that names the process's groups.
    """
    groups = [(root, "/")]
    groups += [(root / folder, "/") for folder in _FOLDERS_V1]
    for line in _read(own).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            groups.append((root, path))
        elif "cpu" in controllers.split(","):
            groups += [(root / folder, path) for folder in _FOLDERS_V1]
    quotas = [
        quota
        for mount, path in groups
        for folder in _group_and_parents(mount, path)
        if (quota := _quota_of(folder)) is not None
    ]
    return min(quotas, default=None)


def memory_bytes() -> int:
    """Memory that this process may ever use: the machine's, or the limit of its container."""
    import psutil

    total = int(psutil.virtual_memory().total)
    limit = cgroup_memory_limit()
    return total if limit is None else min(total, limit)


def cgroup_memory_limit(root: Path = CGROUP_ROOT) -> int | None:
    """The memory limit of this container in bytes; None if there is none."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        text = _read(root / name).strip()
        # Version 1 says "no limit" as a number near 2**63.
        if text.isdigit() and int(text) < 2**60:
            return int(text)
    return None


def processor_flags(path: Path = PROCESSOR) -> frozenset[str]:
    """Names of the processor's abilities, such as `avx2`; none where the system does not tell."""
    for line in _read(path).splitlines():
        if line.startswith(("flags", "Features")):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def multiplies_bfloat16(flags: frozenset[str]) -> bool:
    """Whether matrices of bfloat16 are multiplied by instructions made for them.

    AMX multiplies tiles of them, AVX512-BF16 vectors (Intel's Architecture Instruction Set
    Extensions reference); without either they are turned into float32 first, which is slower than
    float32 itself.
    """
    return not flags.isdisjoint({"amx_bf16", "avx512_bf16"})


def _group_and_parents(mount: Path, path: str) -> Iterator[Path]:
    names = [name for name in path.split("/") if name not in {"", ".", ".."}]
    for length in range(len(names), -1, -1):
        yield mount.joinpath(*names[:length])


def _quota_of(folder: Path) -> float | None:
    """The bound that one group sets; None for none, and for files that say nothing sensible."""
    parts = _read(folder / "cpu.max").split()
    if len(parts) != 2:
        parts = [_read(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    # No bound is "max" in version 2 and -1 in version 1; neither is a row of digits.
    if not all(part.isdigit() for part in parts) or int(parts[0]) == 0 or int(parts[1]) == 0:
        return None
    return int(parts[0]) / int(parts[1])


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        # Absent on this kind of system, which is an answer too.
        return ""
