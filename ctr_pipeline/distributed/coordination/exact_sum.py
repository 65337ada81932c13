"""A sum of floats whose order does not matter."""

import math
from collections.abc import Iterable


class ExactSum:
    """A sum of floats that is not rounded before it is read.

    Shewchuk 1997, "Adaptive Precision Floating-Point Arithmetic", as `math.fsum` does it. Of
    values that are infinite or no number it is what adding gives.

    Args:
        parts: Parts of a sum so far.
    """

    def __init__(self, parts: Iterable[float] = ()) -> None:
        self.parts = list(parts)
        """Numbers whose exact sum is the sum."""

    def add(self, value: float) -> None:
        """Adds one more."""
        parts: list[float] = []
        for part in self.parts:
            larger, smaller = (value, part) if abs(value) >= abs(part) else (part, value)
            value = larger + smaller
            if math.isfinite(value) and (rest := smaller - (value - larger)):
                parts.append(rest)
        self.parts = [*parts, value]
