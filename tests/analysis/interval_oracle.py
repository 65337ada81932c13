"""Quantiles, and the cut points of `bucketize: {quantiles: n}`, from their definitions."""

import numpy as np


def inverted_cdf(values: np.ndarray, i: int, n: int) -> float:
    """Quantile i/n: the smallest value that at least i N / n of the values do not exceed."""
    return float(np.sort(values)[-(-i * len(values) // n) - 1])


def interval_cuts(values: np.ndarray, n: int) -> tuple[float, ...]:
    """Of n shares: one for each value of half the rows that are left, others by quantiles.

    Each value has one where there are no more than shares.
    """
    rest, cuts = values, set()
    is_each = len(np.unique(values)) <= n
    while len(rest):
        present, counts = np.unique(rest, return_counts=True)
        heaviest = present[counts.argmax()]
        if not is_each and (2 * counts.max() < len(rest) or n == 1):
            cuts |= {inverted_cdf(rest, i, n) for i in range(1, n)}
            break
        rest, n = rest[rest != heaviest], n - 1
        cuts |= {float(heaviest), *map(float, np.sort(values[values > heaviest])[:1])}
    return tuple(sorted(cuts - {float(values.min())}))
