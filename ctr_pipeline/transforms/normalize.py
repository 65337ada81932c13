"""`normalize`."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from ctr_pipeline.kernels.float64 import scale, usable_divisor
from ctr_pipeline.transforms.base import Needs, NumberStep, NumberTransform
from ctr_pipeline.transforms.shared.moments import require_finite

if TYPE_CHECKING:
    from sqlglot import exp

    from ctr_pipeline.statistics import Moments


class NormalizeStep(NumberStep):
    """`(x - subtractor) / divisor`."""

    name: Literal["normalize"] = "normalize"
    subtractor: float
    divisor: float

    def sql_numbers(self) -> dict[str, float]:
        """Returns the shift and the width."""
        return {"shift": self.subtractor, "width": self.divisor}

    def kernel(self, values: np.ndarray) -> np.ndarray:
        """Scales, float64 [N]."""
        return scale(values, self.subtractor, self.divisor)


class Normalize(NumberTransform):
    """`(x - minimum) / (maximum - minimum)` over the training rows."""

    example: ClassVar[str] = "{columns: age, number: normalize}"
    rank: ClassVar[int] = 40
    name: Literal["normalize"] = "normalize"

    @property
    def needs(self) -> Needs:
        """The extremes."""
        return Needs(moments=True, words=("minimum", "maximum"))

    def fit(self, moments: "Moments | None") -> NumberStep:
        """Fits minimum and maximum; of nothing but missing values both are 0.

        Raises:
            PreprocessingError: Their difference overflows.
        """
        minimum = maximum = None
        if moments is not None:
            minimum, maximum = moments.minimum, moments.maximum
        if minimum is None or maximum is None:
            minimum, maximum = 0.0, 0.0
        require_finite(minimum, maximum - minimum)
        return NormalizeStep(subtractor=minimum, divisor=usable_divisor(maximum - minimum))

    def step_with(self, numbers: Mapping[str, float]) -> NumberStep:
        """Returns the step of these placeholders' numbers."""
        return NormalizeStep(subtractor=numbers["shift"], divisor=numbers["width"])

    def sql(self, value: "exp.Expr", number: "Callable[[str], exp.Expr]") -> "exp.Expr":
        """Returns the scaled value."""
        from ctr_pipeline.transforms.shared.sql import build_scaling

        return build_scaling(value, number)
