"""`bucketize`."""

import math
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from ctr_pipeline.transforms.base import Fitting, IdStep, IdTransform, Needs, TransformKind
from ctr_pipeline.transforms.shared.intervals import (
    LN2_SMALL_IDS,
    LN2_TOP,
    IntervalsStep,
    boundary_level,
    boundary_steps,
    ln2_level,
)


class Bucketize(IdTransform):
    """The index of the left-closed interval that holds x; missing values have their own id.

    Exactly one of `boundaries`, `quantiles`, `equal_width` and `ln2` says where the intervals are
    cut. With quantiles, all have about equally many training rows: a value of at least half of
    them, such as a frequent 0, has an interval of its own, and the other rows are cut at their own
    quantiles. A column of at most so many values has an interval for each.
    """

    kind: ClassVar[TransformKind] = TransformKind.NUMBER_TO_ID
    example: ClassVar[str] = "{columns: I1..I13, id: {bucketize: {quantiles: 30}}}"
    short_form: ClassVar[dict[str, Any]] = {"quantiles": 30}
    name: Literal["bucketize"] = "bucketize"
    boundaries: tuple[float, ...] | None = Field(
        default=None, description="Cut points, strictly increasing."
    )
    quantiles: int | None = Field(
        default=None,
        ge=2,
        le=10_000,
        description="Cut into so many intervals of equally many training rows; an interval around "
        "a value of half the rows becomes up to three.",
    )
    equal_width: int | None = Field(
        default=None,
        ge=2,
        le=10_000,
        description="Cut into so many intervals of one width between the training rows' smallest "
        "and largest finite value; the outermost ones are open.",
    )
    ln2: bool = Field(
        default=False, description="floor(ln(x)^2) for x > 2, as the Criteo contest's winners did."
    )

    @model_validator(mode="after")
    def _one_way(self) -> "Bucketize":
        numbers = (self.boundaries, self.quantiles, self.equal_width)
        if sum(way is not None for way in numbers) + self.ln2 != 1:
            raise ValueError("needs exactly one of boundaries, quantiles, equal_width and ln2")
        if self.boundaries is not None:
            pairs = zip(self.boundaries, self.boundaries[1:], strict=False)
            if not self.boundaries:
                raise ValueError("boundaries is empty")
            for place, boundary in enumerate(self.boundaries):
                if math.isnan(boundary):
                    raise ValueError(f"boundaries[{place}] is NaN; a boundary must be a number")
            for low, high in pairs:
                if not low < high:
                    raise ValueError(
                        f"boundaries must be strictly increasing, and {high:g} follows {low:g}"
                    )
        return self

    def option_problems(self) -> list[str]:
        """Returns what is wrong with the options."""
        return [
            f"bucketize has a boundary {boundary}. Use a finite number"
            for boundary in self.boundaries or ()
            if not math.isfinite(boundary)
        ]

    @property
    def needs(self) -> Needs:
        """Quantiles, or the extremes, unless the options say where the intervals are cut."""
        if self.quantiles is not None:
            return Needs(quantiles=self.quantiles, words=(f"{self.quantiles} quantiles",))
        if self.equal_width is not None:
            return Needs(moments=True, words=("minimum", "maximum"))
        return Needs()

    def ids_before_fit(self) -> int | None:
        """The intervals, and the missing id."""
        if self.boundaries is not None:
            return len(self.boundaries) + 2
        if self.quantiles is not None:
            # Each value with an interval of its own may divide another interval.
            return 2 * self.quantiles
        return None if self.equal_width is None else self.equal_width + 1

    def fit(self, fitting: Fitting) -> tuple[IdStep, int]:
        """Fits the cut points."""
        if self.ln2:
            return fitting.intervals(ln2_level, ln2_level, LN2_SMALL_IDS + LN2_TOP + 1)
        if self.boundaries is not None:
            boundaries = self.boundaries
        elif self.equal_width is not None:
            boundaries = _equal_widths(self.equal_width, fitting)
        else:
            boundaries = fitting.quantiles(self.quantiles or 0)
        cuts = np.array(boundaries, np.float64)
        if not fitting.has_steps_before:
            # Bisection would find the same, in two milliseconds a feature.
            step = IntervalsStep.of(boundary_steps(cuts), missing_id=len(cuts) + 1)
            return step, len(cuts) + 2
        level = boundary_level(cuts)
        return fitting.intervals(level, level, len(cuts) + 1)


def _equal_widths(count: int, fitting: Fitting) -> tuple[float, ...]:
    moments = fitting.moments()
    if moments.minimum is None or moments.maximum is None:
        return ()
    shares = np.arange(1, count) / count
    # Not by the width of an interval, which may overflow.
    cuts = np.unique(moments.minimum * (1 - shares) + moments.maximum * shares)
    # Of a range too narrow for so many intervals, a cut at its end would make an empty one.
    return tuple(cuts[cuts > moments.minimum].tolist())
