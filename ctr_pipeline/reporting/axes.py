"""Scales, ticks and the frame of a chart."""

import math
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from ctr_pipeline.reporting.formats import short_count


@dataclass(frozen=True)
class Scale:
    """A straight line from values [low, high] to positions [start, end]."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The position of `value`, to a tenth of a unit."""
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)


def padded_range(values: list[float], padding: float = 0.06) -> tuple[float, float]:
    """The range of `values` with room on both sides, never empty."""
    low, high = min(values), max(values)
    room = (high - low) * padding or max(abs(high) * 0.05, 1e-3)
    return low - room, high + room


def nice_ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` round values in [low, high], steps of 1, 2, 2.5 or 5 times a power of ten."""
    raw = (high - low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1.0, 2.0, 2.5, 5.0, 10.0) if m * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def tick_texts(ticks: list[float]) -> list[str]:
    """Ticks with just the digits that tell them apart."""
    if len(ticks) < 2:
        return [f"{tick:g}" for tick in ticks]
    step = min(b - a for a, b in pairwise(ticks))
    if step >= 1:
        return [short_count(tick) for tick in ticks]
    exponent = -math.floor(math.log10(step) + 1e-9)
    digits = next(
        d
        for d in range(exponent, exponent + 3)
        if d == exponent + 2 or abs(round(step, d) - step) < step * 1e-6
    )
    return [f"{tick:.{digits}f}" for tick in ticks]


@dataclass(frozen=True)
class Frame:
    """The plotting area inside a chart, in the units of its view box."""

    left: float
    top: float
    right: float
    bottom: float

    def x_scale(self, low: float, high: float) -> Scale:
        """The scale from values to horizontal positions."""
        return Scale(low, high, self.left, self.right)

    def y_scale(self, low: float, high: float) -> Scale:
        """The scale from values to vertical positions; larger values are higher."""
        return Scale(low, high, self.bottom, self.top)

    def y_axis(self, scale: Scale, ticks: list[float], texts: list[str]) -> Markup:
        """Horizontal grid lines with their values at the left."""
        return Markup("").join(
            Markup(
                '<path class="grid" d="M{} {}H{}"/><text class="tick end" x="{}" y="{}">{}</text>'
            ).format(
                self.left, scale(tick), self.right, self.left - 6, round(scale(tick) + 3.5, 1), text
            )
            for tick, text in zip(ticks, texts, strict=True)
        )

    def x_axis(self, scale: Scale, ticks: list[float], texts: list[str], name: str) -> Markup:
        """The bottom line with values below it and the axis's name below them."""
        marks = Markup("").join(
            Markup('<text class="tick middle" x="{}" y="{}">{}</text>').format(
                scale(tick), self.bottom + 15, text
            )
            for tick, text in zip(ticks, texts, strict=True)
        )
        return Markup(
            '<path class="axis" d="M{} {}H{}"/>{}'
            '<text class="axis-name middle" x="{}" y="{}">{}</text>'
        ).format(
            self.left,
            self.bottom,
            self.right,
            marks,
            round((self.left + self.right) / 2, 1),
            self.bottom + 31,
            name,
        )
