"""`standardize`."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from ctr_pipeline.kernels.float64 import clip_values, scale, usable_divisor
from ctr_pipeline.transforms.base import Needs, NumberStep, NumberTransform
from ctr_pipeline.transforms.shared.moments import require_finite

if TYPE_CHECKING:
    from sqlglot import exp

    from ctr_pipeline.statistics import Moments


class StandardizeStep(NumberStep):
    """`(x - mean) / standard_deviation`, clipped to ± clip; deviation 0 divides by 1."""

    name: Literal["standardize"] = "standardize"
    mean: float
    standard_deviation: float
    clip: float | None

    def sql_numbers(self) -> dict[str, float]:
        """Returns the shift, the width and the bounds."""
        numbers = {"shift": self.mean, "width": usable_divisor(self.standard_deviation)}
        if self.clip is not None:
            numbers |= {"low": -self.clip, "high": self.clip}
        return numbers

    def kernel(self, values: np.ndarray) -> np.ndarray:
        """Scales and clips, float64 [N]."""
        scaled = scale(values, self.mean, usable_divisor(self.standard_deviation))
        return scaled if self.clip is None else clip_values(scaled, -self.clip, self.clip)


class Standardize(NumberTransform):
    """`(x - mean) / standard deviation` over the training rows, clipped; missing stays missing."""

    example: ClassVar[str] = "{columns: age, number: {standardize: {clip: 3.0}}}"
    rank: ClassVar[int] = 40
    name: Literal["standardize"] = "standardize"
    clip: float | None = Field(
        default=5.0, gt=0, description="Clip to ± this many deviations; null to leave as it is."
    )

    @property
    def needs(self) -> Needs:
        """Mean and deviation."""
        return Needs(moments=True, words=("mean", "standard deviation"))

    def fit(self, moments: "Moments | None") -> NumberStep:
        """Fits mean and deviation; of nothing but missing values they are 0 and 1.

        Raises:
            PreprocessingError: They overflow.
        """
        mean = deviation = None
        if moments is not None:
            mean, deviation = moments.mean, moments.standard_deviation
        if mean is None or deviation is None:
            mean, deviation = 0.0, 0.0
        require_finite(mean, deviation)
        return StandardizeStep(
            mean=mean, standard_deviation=usable_divisor(deviation), clip=self.clip
        )

    def step_with(self, numbers: Mapping[str, float]) -> NumberStep:
        """Returns the step of these placeholders' numbers."""
        return StandardizeStep(
            mean=numbers["shift"], standard_deviation=numbers["width"], clip=self.clip
        )

    def sql(self, value: "exp.Expr", number: "Callable[[str], exp.Expr]") -> "exp.Expr":
        """Returns the scaled and clipped value; NULL is neither below nor above a bound."""
        from ctr_pipeline.transforms.shared.sql import build_clip, build_scaling

        has_clip = self.clip is not None
        return build_clip(build_scaling(value, number), number, low=has_clip, high=has_clip)
