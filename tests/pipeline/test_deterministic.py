"""`train.deterministic: true` gives the same bits, in processes of their own."""

import hashlib
import json
import subprocess
import sys

import pytest
import yaml

from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.training.checkpoint import Checkpoints
from tests.pipeline.clicks import settings_of, write_clicks


def train(folder, name):
    """The bytes of the checkpoints, and the history without its clock."""
    output = folder / name
    settings = settings_of(folder / "rows.tsv", output)
    settings["train"] = {
        "epochs": 2,
        "batch_size": 256,
        "deterministic": True,
        "early_stopping": None,
        "checkpoint_seconds": 1e9,
    }
    config = folder / f"{name}.yaml"
    config.write_text(yaml.safe_dump(json.loads(json.dumps(settings))))
    subprocess.run(
        [sys.executable, "-m", "ctr_pipeline", "train", str(config), "-q"],
        check=True,
        cwd=folder,
        capture_output=True,
    )
    checkpoints = Checkpoints(RunFolder(output).checkpoint_storage)
    bits = []
    for step in checkpoints.steps():
        checkpoint = checkpoints.load(step)
        for part in checkpoint.manifest.parts:
            with checkpoint.commits.open_part(part) as file:
                bits.append((step, part.name, hashlib.sha256(file.read()).hexdigest()))
    assert bits
    lines = (output / "history.csv").read_text().splitlines()
    history = [line.rpartition(",")[0] for line in lines]
    return bits, history


@pytest.mark.slow
def test_two_processes_end_with_the_same_bits(tmp_path):
    write_clicks(tmp_path / "rows.tsv", 2000)
    assert train(tmp_path, "first") == train(tmp_path, "again")
