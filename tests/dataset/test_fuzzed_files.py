"""Damaged files of every kind that is read: rows or a clear refusal, and nothing else."""

import json
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = "tests.dataset.fuzz_reading"
NUM_MUTANTS = {
    "parquet": 6_000,
    "recordio": 4_000,
    "example": 4_000,
    "duckdb": 500,
    "gzip": 1_500,
    "zstd": 1_500,
    "row log": 1_500,
    "dense": 1_000,
}


def read_mutants(kinds, first, count, folder):
    """Reads mutants in a child process, and tells what it says of those of each kind.

    A child that dies is the failure: the mutant it died of is kept.
    """
    done = subprocess.run(
        [sys.executable, "-m", PROGRAM, str(first), str(count), str(folder), *kinds],
        cwd=ROOT,
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
        pytest.fail(f"{seed}: {how}; its files are in {kept}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("share", [4, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("kind", NUM_MUTANTS)
def test_a_damaged_file_gives_rows_or_a_refusal(tmp_path, kind, share):
    found = read_mutants([kind], 0, NUM_MUTANTS[kind] // share, tmp_path)[kind]
    assert not found["faults"], "\n".join(
        f"seed {one['seed']}: {one['error']}" for one in found["faults"][:5]
    )
    # Nothing would be proved by mutants that are all refused at once, or none.
    assert found["refused"]


def test_a_few_damaged_files(tmp_path):
    found = read_mutants(NUM_MUTANTS, 1_000_000, 5, tmp_path)
    assert {kind: one["faults"] for kind, one in found.items()} == {
        kind: [] for kind in NUM_MUTANTS
    }
