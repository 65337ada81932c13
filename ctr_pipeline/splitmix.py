"""SplitMix64's finaliser: a bijection of 64 bits in which every input bit moves every output bit.

G. L. Steele, D. Lea and C. H. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014,
figure 15. Arithmetic is modulo 2**64.
"""

from typing import TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T", np.uint64, npt.NDArray[np.uint64])

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""Odd and near 2**64 / golden ratio: multiples of it are spread evenly."""
FACTOR_1 = np.uint64(0xBF58476D1CE4E5B9)
FACTOR_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_27 = np.uint64(27)
_SHIFT_30 = np.uint64(30)
_SHIFT_31 = np.uint64(31)


def mix(bits: T) -> T:
    """The finaliser of a uint64 array; of a single number in a compiled kernel."""
    bits = (bits ^ (bits >> _SHIFT_30)) * FACTOR_1
    bits = (bits ^ (bits >> _SHIFT_27)) * FACTOR_2
    return bits ^ (bits >> _SHIFT_31)
