"""Quantiles, and the cut points of `bucketize: {quantiles: n}`, from their definitions."""

import numpy as np


def inverted_cdf(values: np.ndarray, i: int, n: int) -> float:
    """Quantile i/n: the smallest value that at least i N / n of the values do not exceed."""
    return float(np.sort(values)[-(-i * len(values) // n) - 1])


def interval_cuts(values: np.ndarray, n: int) -> tuple[float, ...]:
    """Of n equal shares: one for each value that fills it, and the others by quantiles."""
    rest, cuts = values, set()
    while len(rest):
        present, counts = np.unique(rest, return_counts=True)
        heaviest = present[counts.argmax()]
        if counts.max() * n < len(rest):
            cuts |= {inverted_cdf(rest, i, n) for i in range(1, n)}
            break
        rest, n = rest[rest != heaviest], n - 1
        cuts |= {float(heaviest), *map(float, np.sort(values[values > heaviest])[:1])}
    return tuple(sorted(cuts - {float(values.min())}))
