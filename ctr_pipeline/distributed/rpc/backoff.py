"""Pauses between attempts."""

import random
from collections.abc import Iterator
from itertools import count

from ctr_pipeline.distributed.coordination.timeouts import backoff_seconds


def delays(first: float, factor: float, most: float, seed: int) -> Iterator[float]:
    """Endless pauses in seconds: growing by `factor` up to `most`, each shortened by up to half.

    The shortening is random, so that members that failed together do not all return together.

    Args:
        first: Seconds before the second attempt, at most.
        factor: Growth, 1 or more.
        most: Longest pause.
        seed: Seed of the randomness; the same seed gives the same pauses.
    """
    chance = random.Random(seed)  # noqa: S311  spreads retries, guards nothing
    for failures in count(1):
        longest = backoff_seconds(failures, first=first, most=most, factor=factor)
        yield longest * chance.uniform(0.5, 1.0)
