"""The machine and the libraries of a run."""

import os
import platform
from importlib import metadata
from pathlib import Path

import psutil

from ctr_pipeline.machine import available_cores, version_of

_LIBRARIES = ("tensorflow", "keras", "numpy", "numba", "pyarrow", "duckdb", "pandas")


def describe_environment() -> dict[str, str]:
    """Names and values, for the report."""
    facts = {
        "ctrpipe": metadata.version("ctrpipe"),
        "Python": platform.python_version(),
        **{name: version_of(name) for name in _LIBRARIES},
        "Processor": _processor(),
        "Cores": str(available_cores()),
        "Memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB",
        "System": f"{platform.system()} {platform.release()}",
    }
    return {name: value for name, value in facts.items() if value}


def peak_memory_bytes() -> int:
    """Most resident memory of this process so far."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return int(psutil.Process(os.getpid()).memory_info().rss)


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
