"""Rows of impressions whose features are key-value pairs in one column.

The same rows lie in `configs/examples/impressions.csv`, which the examples read.
"""

import csv
import math
import random
from collections.abc import Iterator
from pathlib import Path

HEADER = ["click", "profile", "slot"]
NUM_ROWS = 600


def impressions(num_rows: int, *, seed: int = 0) -> Iterator[list[str]]:
    """Rows as texts, in the order of `HEADER`; a row lacks some keys, and their order differs."""
    chance = random.Random(seed)
    for _ in range(num_rows):
        age, visits = chance.randint(16, 80), int(chance.expovariate(0.2))
        device = chance.choice(["phone", "tablet", "desktop"])
        slot = chance.choice(["top", "side", "foot"])
        score = -0.8 + 0.3 * math.log1p(visits) - 0.02 * (age - 40)
        score += {"top": 0.9, "side": 0.0, "foot": -0.9}[slot] + 0.5 * (device == "phone")
        pairs = [f"age:{age}", f"visits:{visits}", f"device:{device}"]
        pairs.append(f"city:{chance.choice(['Köln', 'Lyon', 'Łódź', '大阪'])}")
        chance.shuffle(pairs)
        yield [
            str(int(chance.random() < 1 / (1 + math.exp(-score)))),
            ",".join(pair for pair in pairs if chance.random() < 0.9),
            slot,
        ]


def write_impressions(path: Path) -> None:
    """Writes them as CSV."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([HEADER, *impressions(NUM_ROWS)])
