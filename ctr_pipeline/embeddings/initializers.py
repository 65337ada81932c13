"""The initializers by name: what new values are drawn from.

A new one is a line in `INITIALIZERS`, its name in `specs/initializer.py` and, for a distribution
that is not here yet, a branch in `draw_values`.
"""

# ruff: noqa: PLR0917 -- compiled functions have no keywords

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from ctr_pipeline.embeddings.arrays import Float32Array
from ctr_pipeline.kernels.compilation import inlined
from ctr_pipeline.specs.initializer import InitializerName, InitializerSpec
from ctr_pipeline.splitmix import GOLDEN, mix

# Distributions.
_UNIFORM = 0
_NORMAL = 1

# What `draw_values` reads of a segment.
DRAW_DISTRIBUTION = 0
DRAW_SCALE = 1
NUM_DRAW_COLUMNS = 2

_mix = inlined(mix)
_SHIFT_39 = np.uint64(39)
_SHIFT_32 = np.uint64(32)
_LOW_32 = np.uint64(0xFFFFFFFF)
_ONE = np.uint64(1)
_UNIFORM_SCALE = np.float32(2.0**-24)
_UNIT_OF_32 = 2.0**-32


@dataclass(frozen=True)
class Initializer:
    """An initializer.

    Attributes:
        distribution: Its branch in `draw_values`.
        scale: Factor on what is drawn, by the spec and the number of values; 0: zeros.
    """

    distribution: int
    scale: Callable[[InitializerSpec, int], float]


INITIALIZERS: Mapping[InitializerName, Initializer] = MappingProxyType(
    {
        "zeros": Initializer(_UNIFORM, lambda spec, dim: 0.0),
        "uniform": Initializer(_UNIFORM, lambda spec, dim: spec.scale),
        "normal": Initializer(_NORMAL, lambda spec, dim: spec.scale),
    }
)


def plan_draw(spec: InitializerSpec, dim: int) -> Float32Array:
    """What `draw_values` reads of a segment of `dim` values, float32 [NUM_DRAW_COLUMNS]."""
    initializer = INITIALIZERS[spec.name]
    return np.array([initializer.distribution, initializer.scale(spec, dim)], np.float32)


@inlined
def draw_values(
    draw_D: Float32Array,
    seed: np.uint64,
    first: np.uint64,
    dim: np.uint64,
    values: Float32Array,
    begin: np.uint64,
) -> None:
    """Draws a segment of a row; its value i is a function of the i-th number after the seed.

    Uniform: 24 bits, centred on 0 by integer arithmetic and scaled exactly by a power of two.

    Normal: the cosine half of G. E. P. Box and M. E. Muller, "A note on the generation of random
    normal deviates", Annals of Mathematical Statistics 29, 1958, of two numbers of 32 bits; at most
    6.7 standard deviations from 0.

    Places are unsigned, as those of `update_kernels`: the loop over signed ones took 1.4 times as
    long.

    Args:
        draw_D: From `plan_draw`.
        seed: Seed of the row.
        first: Place of the segment's first value in the row.
        dim: Values of the segment.
        values: Written to.
        begin: Where the row's first value stands.
    """
    scale = draw_D[DRAW_SCALE]
    if not scale > np.float32(0):
        return
    if draw_D[DRAW_DISTRIBUTION] == np.float32(_NORMAL):
        for i in range(first, first + dim):
            bits = _mix(seed + GOLDEN * (i + _ONE))
            radius = math.sqrt(-2.0 * math.log(float((bits >> _SHIFT_32) + _ONE) * _UNIT_OF_32))
            angle = 2.0 * math.pi * float(bits & _LOW_32) * _UNIT_OF_32
            values[begin + i] = np.float32(radius * math.cos(angle)) * scale
        return
    for i in range(first, first + dim):
        bits = _mix(seed + GOLDEN * (i + _ONE)) >> _SHIFT_39
        # 25 bits, the lowest set: odd numbers, so that no value is 0 and the mean is.
        centred = np.int64(bits | _ONE) - np.int64(1 << 24)
        values[begin + i] = np.float32(centred) * _UNIFORM_SCALE * scale
