"""The worked addition of CONTRIBUTING is all that a new transform needs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paper_snippets import blocks

ROOT = Path(__file__).parents[2]
PLACES = ("ctr_pipeline/transforms/max_abs.py", "ctr_pipeline/preprocessing/layers/max_abs.py")
CASES = "tests/preprocessing/preprocessing_cases.py"
CONFIG = """
data: {train: configs/examples/offers.csv, label: click}
features: [{columns: price, number: [log, max_abs], id: [max_abs, {bucketize: {quantiles: 4}}]}]
train: {epochs: 1}
output: run
"""


@pytest.fixture
def addition(tmp_path):
    """A copy of the project with the two files and the case."""
    for name in ("ctr_pipeline", "tests", "configs"):
        shutil.copytree(
            ROOT / name,
            tmp_path / name,
            ignore=shutil.ignore_patterns("__pycache__", "e2e", "distributed"),
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    transform, layer, case = (block.text for block in blocks("CONTRIBUTING.md", "python"))
    for place, text in zip(PLACES, (transform, layer), strict=True):
        (tmp_path / place).write_text(text)
    cases = tmp_path / CASES
    before, mark, after = cases.read_text().partition('    "log": ')
    cases.write_text(f"{before}    {case.strip()}\n{mark}{after}")
    return tmp_path


def run(folder, *command):
    environment = os.environ | {"PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_two_files_and_a_case_are_enough(addition):
    tests = [
        f"tests/preprocessing/test_{name}.py"
        for name in ("plan", "number_steps", "encode", "layer_examples", "layer_structures")
    ]
    found = run(addition, "pytest", "-q", "-k", "max_abs or MaxAbs or example", *tests)
    assert "passed" in found
    (addition / "config.yaml").write_text(CONFIG)
    run(addition, "ctr_pipeline", "run", "config.yaml")
    assert (addition / "run" / "export" / "1" / "parity.json").exists()
