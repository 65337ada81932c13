"""Random numbers as pure functions of a key and a counter.

SplitMix64's output function (Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014, figure 15) over `key + counter * golden`: any element of a stream can be
had without the ones before it, so a planted weight needs no table and a row no neighbour.
"""

import numpy as np
from numpy.typing import NDArray

from ctr_pipeline import splitmix

UInt64s = NDArray[np.uint64]
Float64s = NDArray[np.float64]

_TWO_TO_MINUS_53 = 2.0**-53


def mix(counters: UInt64s, key: int) -> UInt64s:
    """64 scrambled bits per counter; another `key` gives an unrelated stream."""
    return splitmix.mix(counters * splitmix.GOLDEN + np.uint64(key))


def derive_key(*parts: int) -> int:
    """One 64-bit key from several numbers, such as a seed, a field and a purpose."""
    key = np.zeros(1, dtype=np.uint64)
    for part in parts:
        key = mix(key ^ np.uint64(part & 0xFFFF_FFFF_FFFF_FFFF), int(splitmix.FACTOR_1))
    return int(key[0])


def uniform(counters: UInt64s, key: int) -> Float64s:
    """float64 in the open interval (0, 1), one per counter, of 52 random bits and a half."""
    bits = mix(counters, key)
    bits >>= np.uint64(11)
    # The lowest bit is set so that neither 0 nor 1 can come out: logarithms follow.
    bits |= np.uint64(1)
    numbers = bits.astype(np.float64)
    numbers *= _TWO_TO_MINUS_53
    return numbers


def normal(counters: UInt64s, key: int) -> Float64s:
    """Standard normal float64, one per counter (Box and Muller 1958, their equation 1)."""
    result = np.log(uniform(counters, key))
    result *= -2.0
    np.sqrt(result, out=result)
    angle = uniform(counters, derive_key(key, 1))
    angle *= 2.0 * np.pi
    result *= np.cos(angle)
    return result


def scramble_32_bits(values: NDArray[np.uint32], key: int) -> NDArray[np.uint32]:
    """A permutation of the 32-bit numbers: distinct values stay distinct.

    The finalizer of MurmurHash3 (Appleby, public domain) after an exclusive or with `key`.
    """
    bits = values ^ np.uint32(key & 0xFFFF_FFFF)
    bits ^= bits >> np.uint32(16)
    bits *= np.uint32(0x85EBCA6B)
    bits ^= bits >> np.uint32(13)
    bits *= np.uint32(0xC2B2AE35)
    bits ^= bits >> np.uint32(16)
    return bits
