"""A small planted sample with a key, a user and a column of texts that look like numbers."""

import random
from pathlib import Path

from ctr_pipeline.apps.sample import write_criteo_sample
from ctr_pipeline.progress import SilentProgress

NUMBERS = [f"I{n}" for n in range(1, 14)]
CATEGORIES = [f"C{n}" for n in range(1, 27)]
COLUMNS = ["label", *NUMBERS, *CATEGORIES, "user", "row", "code"]
CODES = ["32813e21", "007", "7", "1e3", "Köln"]


def write_clicks(path: Path, num_rows: int, *, bad_rows: bool = False) -> list[str]:
    """Writes tab-separated rows without a header; returns the good lines."""
    write_criteo_sample(path, num_rows=num_rows, seed=3, progress=SilentProgress())
    chance = random.Random(5)
    lines = []
    for number, line in enumerate(path.read_text().splitlines()):
        # One code appears in the last tenth alone.
        code = "only-late" if number == num_rows - 1 else chance.choice(CODES)
        lines.append(f"{line}\tu{chance.randrange(20)}\t{number:06d}\t{code}")
    written = list(lines)
    if bad_rows:
        written.insert(100, "2" + lines[100][1:])
        written.insert(50, lines[50] + "\tone too many")
    path.write_text("\n".join(written) + "\n")
    return lines


def settings_of(data: Path, output: Path, **sections) -> dict:
    """A config of a small model; `sections` replace whole sections."""
    return {
        "name": "clicks",
        "data": {
            "train": str(data),
            "format": "tsv",
            "columns": ["label", "I1..I13", "C1..C26", "user", "row", "code"],
            "key_columns": ["row"],
            "bad_rows": "skip",
        },
        "features": [
            {
                "columns": "I1..I13",
                "number": ["log", "standardize"],
                "id": [{"bucketize": {"quantiles": 10}}],
            },
            {"columns": "C1..C26", "id": [{"vocabulary": {"min_count": 2}}]},
            {"columns": "code", "id": [{"vocabulary": {"min_count": 1}}]},
        ],
        "model": {"name": "deepfm", "embedding_dim": 4, "hidden_units": [16]},
        "train": {"epochs": 2, "batch_size": 256},
        "evaluation": {"gauc_column": "user"},
        "report": {"importance": True, "importance_rows": 200},
        "export": {"parity_rows": 50},
        "output": str(output),
        **sections,
    }
