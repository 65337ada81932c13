"""Rows of offers with a number or text for every transform of a single column.

The same rows lie in `configs/examples/offers.csv`, which the examples read.
"""

import math
import random
from collections.abc import Iterator
from pathlib import Path

HEADER = ["click", "price", "shown_before", "rank", "shop", "city", "seen_at"]
NUM_ROWS = 600


def offers(num_rows: int, *, seed: int = 0) -> Iterator[list[str]]:
    """Rows as texts, in the order of `HEADER` and of time; every number column has gaps."""
    chance = random.Random(seed)
    minute = 0
    for _ in range(num_rows):
        minute += chance.randrange(60)
        day, hour = divmod(minute // 60, 24)
        price = chance.lognormvariate(3, 1)
        shown = int(chance.expovariate(0.2))
        shop = int(chance.paretovariate(1.0)) % 60
        score = 0.8 - 0.4 * math.log1p(shown) - 0.02 * price + (0.6 if shop % 3 == 0 else -0.4)
        score += 0.5 if 18 <= hour < 23 else 0.0
        numbers = [f"{price:.2f}", str(shown), f"{chance.gauss(5, 2):.1f}"]
        yield [
            str(int(chance.random() < 1 / (1 + math.exp(-score)))),
            *(number if chance.random() < 0.95 else "" for number in numbers),
            f"shop{shop}",
            chance.choice(["Köln", "Lyon", "Łódź", "大阪", ""]),
            f"2024-03-{day + 1:02d}T{hour:02d}:{minute % 60:02d}:00Z",
        ]


def write_offers(path: Path) -> None:
    """Writes them as CSV."""
    lines = [HEADER, *offers(NUM_ROWS)]
    path.write_text("".join(",".join(line) + "\n" for line in lines), encoding="utf-8")
