"""Checks whether a machine can run everything, and what to do about what it cannot.

`_probe_…` functions read the machine; `judge_…` functions are pure and take what was read.
"""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from ctr_pipeline.machine import (
    affinity_cores,
    cgroup_memory_limit,
    cgroup_quota,
    decide_cores,
    multiplies_bfloat16,
    processor_flags,
    version_of,
)
from ctr_pipeline.progress import Progress

if TYPE_CHECKING:
    from ctr_pipeline.dataset.source import ServiceAccess

PACKAGES = ("tensorflow", "keras", "numba", "numpy", "pyarrow", "duckdb", "pydantic", "pandas")
MIN_MEMORY_BYTES = 2_000_000_000
MIN_DISK_BYTES = 2_000_000_000
TENSORFLOW_TIMEOUT_SECONDS = 180


class Verdict(StrEnum):
    """How well something works."""

    WORKS = "works"
    PARTLY = "partly"
    SLOW = "slow"
    FAILS = "fails"


@dataclass(frozen=True)
class Check:
    """The result of one check.

    Attributes:
        remedy: What to do; empty if it works.
    """

    name: str
    verdict: Verdict
    found: str
    remedy: str = ""


def check_machine(progress: Progress) -> list[Check]:
    """Checks everything that a run needs; changes nothing but small files in caches."""
    folder = Path.cwd()
    limit = cgroup_memory_limit()
    checks = [
        judge_python(sys.version_info[:2], platform.python_version()),
        judge_packages(_probe_packages()),
        judge_cores(affinity_cores(), cgroup_quota()),
        judge_memory(_probe_memory(), limit),
        judge_disk(folder, shutil.disk_usage(folder).free),
        judge_folder("folder", folder),
        judge_folder("temporary", Path(tempfile.gettempdir())),
        judge_processor(processor_flags()),
    ]
    checks += probe_services(progress)
    with progress.task("Numba", total=None):
        checks.append(_probe_numba())
    with progress.task("TensorFlow", total=None):
        checks.append(_probe_tensorflow())
    return checks


def judge_python(version: tuple[int, ...], text: str) -> Check:
    """Python 3.11 and 3.12 are supported."""
    if (3, 11) <= version < (3, 13):
        return Check("Python", Verdict.WORKS, text)
    return Check("Python", Verdict.FAILS, text, "Install Python 3.11 or 3.12")


def judge_packages(versions: Mapping[str, str | None]) -> Check:
    """Every package that a run imports must be installed."""
    absent = [name for name, version in versions.items() if version is None]
    if absent:
        remedy = f"Run: pip install {' '.join(absent)}"
        return Check("packages", Verdict.FAILS, f"missing: {', '.join(absent)}", remedy)
    found = ", ".join(f"{name} {version}" for name, version in versions.items())
    return Check("packages", Verdict.WORKS, found)


def judge_cores(available: int, quota: float | None) -> Check:
    """Two cores or more are good; a container may have a quota."""
    usable = available if quota is None else min(float(available), quota)
    found = f"{available}" + ("" if quota is None else f", the container may use {quota:g}")
    if usable < 2:
        remedy = "Give it two cores: input and training then overlap"
        return Check("cores", Verdict.SLOW, found, remedy)
    found += f"; threads by default: {decide_cores(available, quota)}"
    return Check("cores", Verdict.WORKS, found)


def judge_memory(available: int, limit: int | None) -> Check:
    """Memory that is free, and the container's limit if it has one."""
    usable = available if limit is None else min(available, limit)
    found = f"{available / 1e9:.1f} GB free"
    found += "" if limit is None else f", the container may use {limit / 1e9:.1f} GB"
    if usable < MIN_MEMORY_BYTES:
        remedy = "Free 2 GB, or lower runtime.memory_limit_gb and model.embedding_dim"
        return Check("memory", Verdict.SLOW, found, remedy)
    return Check("memory", Verdict.WORKS, found)


def judge_disk(folder: Path, free: int) -> Check:
    """Room for a run folder."""
    found = f"{free / 1e9:.1f} GB free in {folder}"
    if free < MIN_DISK_BYTES:
        return Check("disk", Verdict.SLOW, found, "Free 2 GB, or put 'output' on another disk")
    return Check("disk", Verdict.WORKS, found)


def judge_service(name: str, access: "ServiceAccess") -> Check:
    """A service that holds rows need not be set up; if it is, it must answer."""
    if not access.is_set_up:
        return Check(name, Verdict.WORKS, "not set up; needed for its tables only")
    if access.missing:
        found = f"missing: {', '.join(access.missing)}"
        return Check(name, Verdict.FAILS, found, "Set them in the environment")
    if access.failure is not None:
        return Check(name, Verdict.FAILS, access.failure, "Check its variables in the environment")
    return Check(name, Verdict.WORKS, "the service answers and takes the credentials")


def judge_folder(name: str, folder: Path) -> Check:
    """Files can be created in `folder`."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return Check(name, Verdict.WORKS, f"{folder} can be written")
    except OSError as error:
        found = f"{folder}: {error.strerror}"
        return Check(name, Verdict.FAILS, found, "Change to a folder that can be written")


def judge_processor(flags: frozenset[str]) -> Check:
    """Vector and matrix units that TensorFlow and the kernels use."""
    known = ("avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16")
    found = ", ".join(flag for flag in known if flag in flags) or "no vector units known"
    model = platform.machine()
    if model in {"x86_64", "AMD64"} and "avx2" not in flags:
        remedy = "Expect slow training; TensorFlow needs at least AVX"
        return Check("processor", Verdict.SLOW, f"{model}: {found}", remedy)
    if multiplies_bfloat16(flags):
        found += "; train.precision: bfloat16 trains faster here"
    return Check("processor", Verdict.WORKS, f"{model}: {found}")


def _probe_packages() -> dict[str, str | None]:
    versions: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            versions[name] = version_of(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def probe_services(progress: Progress) -> list[Check]:
    """One check for each service that a source format needs."""
    from ctr_pipeline.dataset.formats import FORMATS

    checks = []
    for format in filter(lambda format: format.is_remote, FORMATS):
        with progress.task(format.name, total=None):
            access = format.find_access()
        if access is not None:
            checks.append(judge_service(format.name, access))
    return checks


def _probe_memory() -> int:
    import psutil

    return int(psutil.virtual_memory().available)


def _probe_numba() -> Check:
    program = (
        "import numba, numpy\n"
        "kernel = numba.njit('int64(int64[:])')(lambda values: values.sum())\n"
        "assert kernel(numpy.arange(4)) == 6\n"
    )
    cache = os.environ.get("NUMBA_CACHE_DIR")
    found, seconds = run_python(program)
    where = f", kernels cached in {cache}" if cache else ""
    if found is not None:
        remedy = "Reinstall it: pip install --force-reinstall numba"
        return Check("Numba", Verdict.FAILS, found, remedy)
    return Check("Numba", Verdict.WORKS, f"compiles in {seconds:.1f} s{where}")


def _probe_tensorflow() -> Check:
    program = (
        "import tensorflow as tf\nassert int(tf.reduce_sum(tf.constant([1, 2]))) == 3\nimport keras"
    )
    found, seconds = run_python(program)
    if found is not None:
        remedy = "Reinstall it: pip install --force-reinstall tensorflow keras"
        return Check("TensorFlow", Verdict.FAILS, found, remedy)
    if seconds > 20:
        remedy = "Slow disk or busy machine; a second start is usually faster"
        return Check("TensorFlow", Verdict.SLOW, f"starts in {seconds:.1f} s", remedy)
    return Check("TensorFlow", Verdict.WORKS, f"starts in {seconds:.1f} s")


def run_python(program: str) -> tuple[str | None, float]:
    """Runs a program in a new interpreter: its error, if it failed, and the seconds it took."""
    start = time.monotonic()
    try:
        done = subprocess.run(  # noqa: S603  our own interpreter with our own program
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            timeout=TENSORFLOW_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {TENSORFLOW_TIMEOUT_SECONDS} s", time.monotonic() - start
    seconds = time.monotonic() - start
    if done.returncode == 0:
        return None, seconds
    lines = done.stderr.strip().splitlines()
    if done.returncode < 0:
        return f"killed by signal {-done.returncode}", seconds
    return (lines[-1] if lines else f"exit code {done.returncode}")[:300], seconds
