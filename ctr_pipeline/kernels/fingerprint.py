"""FarmHash Fingerprint64 over a byte buffer, compiled.

Bit-equal to what TensorFlow computes in `tf.strings.to_hash_bucket_fast`, which is the fingerprint
modulo the number of buckets. The algorithm is `farmhashna::Hash64` of
https://github.com/google/farmhash/blob/master/src/farmhash.cc; fingerprints are promised never to
change there. Functions are named as they are there.

All arithmetic is modulo 2**64. Texts of up to 16 bytes are hashed where they are asked for, longer
ones by a call.
"""

# NumPy's stubs give Any for arithmetic on uint64 scalars.
# mypy: disable-error-code="no-any-return"

import numpy as np

from ctr_pipeline.kernels.compilation import inlined, kernel
from ctr_pipeline.kernels.loads import load_uint32, load_uint64
from ctr_pipeline.kernels.simd import Address

_K0 = np.uint64(0xC3A5C85C97CB3127)
_K1 = np.uint64(0xB492B66FBE98F273)
_K2 = np.uint64(0x9AE16A3B2F90404F)
_U0 = np.uint64(0)
_U1 = np.uint64(1)
_U2 = np.uint64(2)
_U3 = np.uint64(3)
_U4 = np.uint64(4)
_U8 = np.uint64(8)
_U9 = np.uint64(9)
_U16 = np.uint64(16)
_U24 = np.uint64(24)
_U32 = np.uint64(32)
_U40 = np.uint64(40)
_U47 = np.uint64(47)
_U48 = np.uint64(48)
_U63 = np.uint64(63)
_U64 = np.uint64(64)
_U113 = np.uint64(113)
_SEED = np.uint64(81)

KEY_MODULUS = 2**63 - 1
"""A lookup key is the fingerprint modulo this: the largest number of buckets TensorFlow takes."""


def hash_factor(function: int) -> int:
    """The odd number below 2**63 that the keys of a hash function are multiplied by."""
    # Near 2**64 / golden ratio: multiples of it are spread evenly.
    return (0x9E3779B97F4A7C15 * (2 * function + 1)) % 2**63 | 1


@inlined
def _rotate(value: np.uint64, shift: int) -> np.uint64:
    return (value >> np.uint64(shift)) | (value << (_U64 - np.uint64(shift)))


@inlined
def _shift_mix(value: np.uint64) -> np.uint64:
    return value ^ (value >> _U47)


@inlined
def _hash_len_16(u: np.uint64, v: np.uint64, mul: np.uint64) -> np.uint64:
    a = _shift_mix((u ^ v) * mul)
    b = _shift_mix((v ^ a) * mul)
    return b * mul


@inlined
def _hash_len_0_to_16(data: Address, start: np.uint64, length: np.uint64) -> np.uint64:
    if length >= _U8:
        mul = _K2 + length * _U2
        a = load_uint64(data, start) + _K2
        b = load_uint64(data, start + length - _U8)
        c = _rotate(b, 37) * mul + a
        d = (_rotate(a, 25) + b) * mul
        return _hash_len_16(c, d, mul)
    if length >= _U4:
        mul = _K2 + length * _U2
        head = load_uint32(data, start)
        return _hash_len_16(length + (head << _U3), load_uint32(data, start + length - _U4), mul)
    if length > _U0:
        first = np.uint64(data[start])
        middle = np.uint64(data[start + (length >> _U1)])
        last = np.uint64(data[start + length - _U1])
        y = first + (middle << _U8)
        z = length + (last << _U2)
        return _shift_mix((y * _K2) ^ (z * _K0)) * _K2
    return _K2


@kernel
def _hash_len_17_to_32(data: Address, start: np.uint64, length: np.uint64) -> np.uint64:
    mul = _K2 + length * _U2
    a = load_uint64(data, start) * _K1
    b = load_uint64(data, start + _U8)
    c = load_uint64(data, start + length - _U8) * mul
    d = load_uint64(data, start + length - _U16) * _K2
    return _hash_len_16(_rotate(a + b, 43) + _rotate(c, 30) + d, a + _rotate(b + _K2, 18) + c, mul)


@kernel
def _hash_len_33_to_64(data: Address, start: np.uint64, length: np.uint64) -> np.uint64:
    mul = _K2 + length * _U2
    a = load_uint64(data, start) * _K2
    b = load_uint64(data, start + _U8)
    c = load_uint64(data, start + length - _U8) * mul
    d = load_uint64(data, start + length - _U16) * _K2
    y = _rotate(a + b, 43) + _rotate(c, 30) + d
    z = _hash_len_16(y, a + _rotate(b + _K2, 18) + c, mul)
    e = load_uint64(data, start + _U16) * mul
    f = load_uint64(data, start + _U24)
    g = (y + load_uint64(data, start + length - _U32)) * mul
    h = (z + load_uint64(data, start + length - _U24)) * mul
    return _hash_len_16(_rotate(e + f, 43) + _rotate(g, 30) + h, e + _rotate(f + a, 18) + g, mul)


@inlined
def _weak_hash_len_32(
    data: Address, start: np.uint64, a: np.uint64, b: np.uint64
) -> tuple[np.uint64, np.uint64]:
    w = load_uint64(data, start)
    x = load_uint64(data, start + _U8)
    y = load_uint64(data, start + _U16)
    z = load_uint64(data, start + _U24)
    a = a + w
    b = _rotate(b + a + z, 21)
    c = a
    a = a + x + y
    b = b + _rotate(a, 44)
    return a + z, b + c


@kernel
def _hash_len_above_64(data: Address, start: np.uint64, length: np.uint64) -> np.uint64:
    x = _SEED * _K2 + load_uint64(data, start)
    y = _SEED * _K1 + _U113
    z = _shift_mix(y * _K2 + _U113) * _K2
    v0, v1, w0, w1 = _U0, _U0, _U0, _U0
    tail = (length - _U1) & _U63
    end = start + (length - _U1) - tail
    last_64 = end + tail - _U63
    position = start
    while position != end:
        x = _rotate(x + y + v0 + load_uint64(data, position + _U8), 37) * _K1
        y = _rotate(y + v1 + load_uint64(data, position + _U48), 42) * _K1
        x = x ^ w1
        y = y + v0 + load_uint64(data, position + _U40)
        z = _rotate(z + w0, 33) * _K1
        v0, v1 = _weak_hash_len_32(data, position, v1 * _K1, x + w0)
        w0, w1 = _weak_hash_len_32(
            data, position + _U32, z + w1, y + load_uint64(data, position + _U16)
        )
        z, x = x, z
        position = position + _U64
    mul = _K1 + ((z & np.uint64(0xFF)) << _U1)
    position = last_64
    w0 = w0 + tail
    v0 = v0 + w0
    w0 = w0 + v0
    x = _rotate(x + y + v0 + load_uint64(data, position + _U8), 37) * mul
    y = _rotate(y + v1 + load_uint64(data, position + _U48), 42) * mul
    x = x ^ (w1 * _U9)
    y = y + v0 * _U9 + load_uint64(data, position + _U40)
    z = _rotate(z + w0, 33) * mul
    v0, v1 = _weak_hash_len_32(data, position, v1 * mul, x + w0)
    w0, w1 = _weak_hash_len_32(
        data, position + _U32, z + w1, y + load_uint64(data, position + _U16)
    )
    z, x = x, z
    return _hash_len_16(
        _hash_len_16(v0, w0, mul) + _shift_mix(y) * _K0 + z,
        _hash_len_16(v1, w1, mul) + x,
        mul,
    )


@kernel
def _hash_len_above_16(data: Address, start: np.uint64, length: np.uint64) -> np.uint64:
    if length <= _U32:
        return _hash_len_17_to_32(data, start, length)
    if length <= _U64:
        return _hash_len_33_to_64(data, start, length)
    return _hash_len_above_64(data, start, length)


@inlined
def fingerprint64(data: Address, start: np.uint64, length: np.uint64) -> np.uint64:
    """Fingerprint of `length` bytes of `data` from `start`; compiled into the kernel that asks.

    Args:
        data: Address of bytes.
        start: uint64, first byte.
        length: uint64, number of bytes; 0 is allowed.

    Returns:
        uint64.
    """
    if length <= _U16:
        return _hash_len_0_to_16(data, start, length)
    return _hash_len_above_16(data, start, length)
