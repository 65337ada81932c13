"""The machine that a benchmark ran on, and results as a table and as JSON."""

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

_PACKAGES = (
    "ctrpipe",
    "tensorflow",
    "keras",
    "numpy",
    "numba",
    "pyarrow",
    "duckdb",
    "scikit-learn",
)


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation of repeats."""

    mean: float
    std: float
    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The spread of at least one repeat; a single one has a standard deviation of 0."""
        std = statistics.stdev(values) if len(values) > 1 else 0.0
        return cls(statistics.fmean(values), std, tuple(values))

    def show(self, digits: int = 4) -> str:
        """A text such as `0.7613 ± 0.0004`."""
        return f"{self.mean:,.{digits}f} ± {self.std:,.{digits}f}"

    def as_dict(self) -> dict[str, Any]:
        """The spread for JSON."""
        return {"mean": self.mean, "std": self.std, "values": list(self.values)}


def describe_machine() -> dict[str, Any]:
    """CPU model, usable cores, memory, and versions of what computes."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
        **{name: _version(name) for name in _PACKAGES},
    }


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def print_machine(machine: Mapping[str, Any]) -> None:
    """One line a person can compare."""
    versions = ", ".join(f"{name} {machine[name]}" for name in _PACKAGES)
    print(
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, load "
        f"{machine['load_before']} at the start; Python {machine['python']}, {versions}\n"
    )


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A Markdown table with aligned columns."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        return "| " + " | ".join(padded) + " |"

    print(line(header))
    print("|" + "|".join("-" * (width + 2) for width in widths) + "|")
    for row in rows:
        print(line(row))
    print(flush=True)


def write_results(
    path: Path | None, *, benchmark: str, machine: Mapping[str, Any], results: Mapping[str, Any]
) -> None:
    """Writes the results, figures among them by their `as_dict`, as JSON if a path was given."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"benchmark": benchmark, "machine": dict(machine), "results": dict(results)}
    text = json.dumps(content, indent=2, default=lambda figure: figure.as_dict())
    path.write_text(text + "\n", encoding="utf-8")
    print(f"Results: {path}")
