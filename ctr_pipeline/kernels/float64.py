"""float64 numbers as kernels and Keras layers both take them: subnormal ones are 0, NaN is missing.

TensorFlow's threads run with the processor's flush-to-zero mode, where a comparison takes a
subnormal number for 0; kernels do the same.
"""

import numpy as np

SMALLEST_NORMAL = float(np.finfo(np.float64).tiny)
"""Below this magnitude a float64 is subnormal."""

SMALLEST_NORMAL_FLOAT32 = float(np.finfo(np.float32).tiny)
"""Below this magnitude a float32 is subnormal."""


def flush_subnormal(values: np.ndarray, smallest: float = SMALLEST_NORMAL) -> np.ndarray:
    """Replaces magnitudes below `smallest` by 0; NaN stays."""
    tiny = np.abs(values) < smallest
    # Zeros are tiny too; a copy is made only where a value changes.
    if np.any(tiny & (values != 0)):
        values = np.where(tiny, values.dtype.type(0), values)
    return values


def flush_scalar(value: float) -> float:
    """Returns `value`, or 0 if it is subnormal: parameters are treated as the values they meet."""
    return 0.0 if abs(value) < SMALLEST_NORMAL else float(value)


def usable_divisor(value: float) -> float:
    """Returns `value`, or 1 if it is 0 or subnormal: a constant column becomes 0, not NaN."""
    return flush_scalar(value) or 1.0


def scale(values: np.ndarray, subtractor: float, divisor: float) -> np.ndarray:
    """Computes `(x - subtractor) / divisor`, float64; NaN stays."""
    # Huge values overflow to infinity on purpose, and infinity minus a number is infinity.
    with np.errstate(over="ignore", invalid="ignore"):
        return flush_subnormal(flush_subnormal(values - flush_scalar(subtractor)) / divisor)


def clip_values(values: np.ndarray, minimum: float | None, maximum: float | None) -> np.ndarray:
    """Clips x to [minimum, maximum]; None is no bound; NaN stays."""
    if minimum is not None:
        values = np.where(values < flush_scalar(minimum), flush_scalar(minimum), values)
    if maximum is not None:
        values = np.where(values > flush_scalar(maximum), flush_scalar(maximum), values)
    return values


def fill(values: np.ndarray, value: float) -> np.ndarray:
    """Replaces NaN by `value`."""
    return np.where(np.isnan(values), flush_scalar(value), values)
