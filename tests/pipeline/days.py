"""Clicks of two days: items, some of them new on the second day, each with an effect of its own."""

import csv
from pathlib import Path

import numpy as np

NUM_ITEMS, FIRST_NEW = 160, 120
FEATURES = [
    {"columns": "item", "id": {"vocabulary": {"min_count": 2}}},
    {"columns": "user", "id": {"hash": {"buckets": 50}}},
    {"columns": "past", "sequence": {"max_length": 3}, "id": {"vocabulary": {"min_count": 2}}},
    {"columns": "x", "number": "standardize", "id": {"bucketize": {"quantiles": 4}}},
    {"columns": "place", "number": ["target_encode", "standardize"]},
]

EMBEDDINGS = {
    "embeddings": {
        "linear": {
            "optimizer": {"name": "adagrad", "learning_rate": 0.1},
            "reduction": "sum",
            "l2": {"strength": 1.0, "count_power": 1},
        }
    }
}


def write_day(path: Path, num_rows: int, *, seed: int, first: int = 0, last: int = NUM_ITEMS):
    """Writes rows whose items are from `first` to `last`; returns the path."""
    effects = np.random.default_rng(0).normal(0, 1.5, NUM_ITEMS)
    chance = np.random.default_rng(seed)
    items = chance.integers(first, last, num_rows)
    x = chance.normal(0.2 * seed, 1, num_rows)
    logits = effects[items] + 0.4 * x - 0.5
    clicks = chance.random(num_rows) < 1 / (1 + np.exp(-logits))
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["click", "item", "user", "past", "x", "place", "row"])
        for row in range(num_rows):
            past = "|".join(f"i{n}" for n in chance.integers(first, last, chance.integers(0, 4)))
            user, place = f"u{chance.integers(80)}", f"p{chance.integers(5) + seed}"
            item = "" if row % 50 == 7 else f"i{items[row]}"
            number = "" if row % 40 == 3 else f"{x[row]:.4f}"
            writer.writerow([int(clicks[row]), item, user, past, number, place, f"{seed}-{row}"])
    return path


def settings_of(data, output: Path, *, init_from=None, **train) -> dict:
    """A config of a small model."""
    train = {"epochs": 4, "batch_size": 128, "early_stopping": None, **EMBEDDINGS, **train}
    if init_from is not None:
        train["init_from"] = init_from if isinstance(init_from, dict) else str(init_from)
    names = [str(path) for path in data] if isinstance(data, list) else str(data)
    return {
        "name": "daily",
        "data": {"train": names, "label": "click", "split": {"by": "random", "test": 0}},
        "features": FEATURES,
        "model": {"name": "deepfm", "embedding_dim": 4, "hidden_units": [16]},
        "train": train,
        "runtime": {"threads": 1},
        "output": str(output),
    }
