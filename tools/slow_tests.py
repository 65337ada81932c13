"""Runs slow tests on an idle machine, and ends with a table of what passed and what did not.

A test marked `faults` kills or stalls real processes. One that fails is run once more, alone: if it
passes then, it is counted as such and named, to be mended or deleted. No other test is repeated.

    python -m tools.slow_tests -m 'slow and not cluster' -n 2 --dist loadfile
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

IDLE_LOAD = 1.0
"""Processes that run or wait to, over the last minute: fewer are none beside the tests."""
_WAIT_SECONDS = 240.0


@dataclass(frozen=True)
class Counts:
    """What one run of pytest counted.

    Attributes:
        failed: Node ids of tests, and of files that could not be collected.
    """

    passed: int
    skipped: int
    failed: tuple[str, ...]


def wait_until_idle(
    load: Callable[[], float],
    *,
    sleep: Callable[[float], None] = time.sleep,
    wait_seconds: float = _WAIT_SECONDS,
) -> bool:
    """Waits for the load to fall below `IDLE_LOAD`; False if it does not."""
    for _ in range(int(wait_seconds / 10)):
        if load() < IDLE_LOAD:
            return True
        sleep(10.0)
    return load() < IDLE_LOAD


def read_counts(folder: Path) -> Counts:
    """Reads what `_run_tests` had pytest write into a folder."""
    cache = folder / "cache" / "v" / "cache" / "lastfailed"
    failed = tuple(json.loads(cache.read_text(encoding="utf-8"))) if cache.exists() else ()
    totals = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    # The file is pytest's own.
    for suite in ET.parse(folder / "junit.xml").iter("testsuite"):  # noqa: S314
        for name in totals:
            totals[name] += int(suite.get(name, "0"))
    skipped = totals["skipped"]
    passed = totals["tests"] - totals["failures"] - totals["errors"] - skipped
    return Counts(max(0, passed), skipped, failed)


def summary(counts: Counts, passed_alone: Sequence[str]) -> str:
    """The table: passed, failed, and failed once and passed when run alone."""
    failed = [name for name in counts.failed if name not in set(passed_alone)]
    rows = [
        ("passed", counts.passed, ()),
        ("skipped", counts.skipped, ()),
        ("failed", len(failed), failed),
        ("failed once, passed alone", len(passed_alone), passed_alone),
    ]
    lines = []
    for what, count, names in rows:
        lines.append(f"{what:<28}{count:>6}")
        lines += [f"    {name}" for name in names]
    return "\n".join(lines)


def _run_tests(options: Sequence[str], folder: Path) -> int:
    places = ["-o", f"cache_dir={folder / 'cache'}", f"--junitxml={folder / 'junit.xml'}"]
    command = [sys.executable, "-m", "pytest", "--durations=30", *places, *options]
    return subprocess.run(command, check=False).returncode  # noqa: S603


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns pytest's exit code, and 0 if all that failed passed when run alone."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--busy", action="store_true", help="Do not wait for an idle machine.")
    own, options = parser.parse_known_args(arguments)
    if not own.busy and not wait_until_idle(lambda: os.getloadavg()[0]):
        sys.stderr.write(
            f"This machine is busy: its load is {os.getloadavg()[0]:.1f}. "
            "End what runs beside the tests, or pass --busy.\n"
        )
        return 2
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="slow-tests-") as room:
        first = Path(room) / "all"
        code = _run_tests(options, first)
        if not (first / "junit.xml").exists():
            return code
        counts = read_counts(first)
        alone = [
            name
            for number, name in enumerate(counts.failed)
            if _run_tests(["-m", "faults", name], Path(room) / str(number)) == 0
        ]
    seconds = time.monotonic() - began
    sys.stdout.write(f"\n{summary(counts, alone)}\nin {seconds:,.0f} s\n")
    return 0 if code == 1 and set(alone) == set(counts.failed) else code


if __name__ == "__main__":
    sys.exit(main())
