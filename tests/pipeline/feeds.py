"""Rows of a feed: an item that is shown, and the items clicked before it.

The same rows lie in `configs/examples/feeds.csv`, which the examples read.
"""

import math
import random
from collections.abc import Iterator
from pathlib import Path

HEADER = ["click", "hour", "item", "clicked_items"]
NUM_ITEMS = 60


def feeds(num_rows: int, *, seed: int = 0) -> Iterator[list[str]]:
    """Rows as texts, in the order of `HEADER`.

    Items have one of five topics. Whether a row clicks depends on the share of the items clicked
    before that have the topic of the item shown.
    """
    chance = random.Random(seed)
    topics = [number % 5 for number in range(NUM_ITEMS)]
    for _ in range(num_rows):
        liked = chance.randrange(5)
        clicked = [
            chance.choice([item for item in range(NUM_ITEMS) if topics[item] == liked])
            if chance.random() < 0.7
            else chance.randrange(NUM_ITEMS)
            for _ in range(chance.choice((0, 1, 2, 3, 5, 7)))
        ]
        # Some items are only ever in the past, some are new.
        item = chance.randrange(10, NUM_ITEMS) if chance.random() < 0.95 else NUM_ITEMS
        alike = sum(topics[past] == item % 5 for past in clicked)
        score = -1.5 + 4.0 * alike / max(len(clicked), 1)
        click = chance.random() < 1 / (1 + math.exp(-score))
        yield [
            str(int(click)),
            str(chance.randrange(24)),
            f"i{item}",
            "|".join(f"i{past}" for past in clicked),
        ]


def write_feeds(path: Path, num_rows: int = 3000, *, seed: int = 0) -> None:
    """Writes them as CSV."""
    lines = [HEADER, *feeds(num_rows, seed=seed)]
    path.write_text("".join(",".join(line) + "\n" for line in lines))
