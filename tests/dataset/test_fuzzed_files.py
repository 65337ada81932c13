"""Damaged files of every kind that is read: rows or a clear refusal, and nothing else."""

import json
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("fuzz_reading.py")
NUM_MUTANTS = {
    "parquet": 6_000,
    "recordio": 3_000,
    "example": 3_000,
    "sqlite": 2_000,
    "duckdb": 500,
    "gzip": 1_500,
    "zstd": 1_500,
    "row log": 1_500,
    "dense": 1_000,
}
"""20,000 in all."""


def read_mutants(kind, first, count, folder):
    """Reads mutants in a child process, and tells what it says of them.

    A child that dies is the failure: the mutant it died of is kept.
    """
    done = subprocess.run(
        [sys.executable, str(SCRIPT), kind, str(first), str(count), str(folder)],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        seed = (folder / "seed").read_text().strip() if (folder / "seed").exists() else "none"
        kept = tempfile.mkdtemp(prefix="ctrpipe-mutant-")
        shutil.copytree(folder, kept, dirs_exist_ok=True)
        how = (
            signal.Signals(-done.returncode).name
            if done.returncode < 0
            else f"exit code {done.returncode}"
        )
        pytest.fail(f"{kind}, seed {seed}: {how}; its files are in {kept}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("kind", NUM_MUTANTS)
def test_a_damaged_file_gives_rows_or_a_refusal(tmp_path, kind):
    found = read_mutants(kind, 0, NUM_MUTANTS[kind], tmp_path)
    assert not found["faults"], "\n".join(
        f"seed {one['seed']}: {one['error']}" for one in found["faults"][:5]
    )
    # Nothing would be proved by mutants that are all refused at once, or none.
    assert found["refused"]


@pytest.mark.parametrize("kind", NUM_MUTANTS)
def test_a_few_damaged_files(tmp_path, kind):
    assert not read_mutants(kind, 1_000_000, 5, tmp_path)["faults"]
