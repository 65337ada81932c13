"""Where the bins of a histogram are cut."""

from collections.abc import Sequence

import numpy as np

from ctr_pipeline.statistics import Moments

MAX_BINS = 20
HEAVY_SKEW = 2.0
"""Beyond this skew, equal widths would put nearly all rows into one bin."""


def plan_edges(
    moments: Moments, skew: float, few_values: Sequence[float] | None
) -> tuple[float, ...]:
    """Edges of at most 20 bins, ascending; empty if there is no finite value.

    Args:
        moments: Moments of the finite values.
        few_values: All distinct finite values, ascending, where there are no more than 20: each
            gets a bin of its own. None where there are more: bins have equal widths, or, of a
            skewed column, equal widths of asinh(x), which is a logarithm on either side of 0.
    """
    if moments.minimum is None or moments.maximum is None:
        return ()
    if few_values is not None:
        return (*few_values, few_values[-1])
    low, high = moments.minimum, moments.maximum
    if abs(skew) > HEAVY_SKEW:
        inner = np.sinh(np.linspace(np.arcsinh(low), np.arcsinh(high), MAX_BINS + 1))[1:-1]
    else:
        # Not low + share * (high - low), whose difference may overflow.
        shares = np.linspace(0.0, 1.0, MAX_BINS + 1)[1:-1]
        inner = low * (1.0 - shares) + high * shares
    # Rounding must not move an edge beyond the ends, nor make two of one.
    distinct = np.unique(inner[(inner > low) & (inner < high)])
    return (low, *distinct.tolist(), high)
