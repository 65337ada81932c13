"""Rows of visits whose label rests on columns together, on elements of lists, or on a vector.

The same rows lie in `configs/examples/visits.csv`, which the examples read.
"""

import math
import random
from collections.abc import Iterator
from pathlib import Path

HEADER = ["click", "hour", "city", "device", "visited", "bought", "taste"]
NUM_CITIES, NUM_DEVICES, NUM_PAGES = 12, 9, 40


def visits(num_rows: int, *, seed: int = 0) -> Iterator[list[str]]:
    """Rows as texts, in the order of `HEADER`.

    Whether a visit clicks depends on city and device together (neither tells anything alone), on
    the share of good pages among those visited, on the weight of good things bought, and on the
    first and last number of the taste.
    """
    chance = random.Random(seed)
    good_pages = set(range(0, NUM_PAGES, 2))
    for _ in range(num_rows):
        city, device = chance.randrange(NUM_CITIES), chance.randrange(NUM_DEVICES)
        visited = [chance.randrange(NUM_PAGES) for _ in range(chance.choice((0, 1, 2, 3, 5, 8)))]
        bought = [
            (chance.randrange(NUM_PAGES), round(chance.expovariate(1.0), 2))
            for _ in range(chance.choice((0, 1, 2, 4)))
        ]
        taste = [round(chance.gauss(0, 1), 3) for _ in range(4)]
        score = -1.0
        score += 1.2 if (city + device) % 2 == 0 else -1.2
        score += sum(1.5 if page in good_pages else -1.5 for page in visited) / max(len(visited), 1)
        score += sum(w if page in good_pages else -w for page, w in bought) / max(
            sum(w for _, w in bought), 0.1
        )
        score += taste[0] - taste[3]
        click = chance.random() < 1 / (1 + math.exp(-score))
        yield [
            str(int(click)),
            str(chance.randrange(24)),
            f"city{city}",
            f"d{device}",
            "|".join(f"p{page}" for page in visited),
            "|".join(f"i{page}:{weight}" for page, weight in bought),
            ";".join(map(str, taste)),
        ]


def write_visits(path: Path, num_rows: int, *, seed: int = 0) -> None:
    """Writes them as CSV."""
    lines = [HEADER, *visits(num_rows, seed=seed)]
    path.write_text("".join(",".join(line) + "\n" for line in lines))
