"""`clip`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from ctr_pipeline.kernels.float64 import clip_values
from ctr_pipeline.transforms.base import PlainNumberTransform

if TYPE_CHECKING:
    from sqlglot import exp


class Clip(PlainNumberTransform):
    """Values below `minimum` become `minimum`, above `maximum` become `maximum`."""

    example: ClassVar[str] = (
        "{columns: price, number: [{clip: {minimum: 0, maximum: 1000}}, log, standardize]}"
    )
    rank: ClassVar[int] = 20
    name: Literal["clip"] = "clip"
    minimum: float | None = Field(default=None, description="Smallest value kept; null: no bound.")
    maximum: float | None = Field(default=None, description="Largest value kept; null: no bound.")

    @model_validator(mode="after")
    def _ordered(self) -> "Clip":
        if self.minimum is None and self.maximum is None:
            raise ValueError("needs a minimum, a maximum, or both")
        if self.minimum is not None and self.maximum is not None and self.minimum > self.maximum:
            raise ValueError(f"minimum {self.minimum} is above maximum {self.maximum}")
        return self

    def sql(self, value: "exp.Expr", number: "Callable[[str], exp.Expr]") -> "exp.Expr":
        """Returns the clipped value."""
        from ctr_pipeline.transforms.shared.sql import build_clip

        low, high = self.minimum is not None, self.maximum is not None
        return build_clip(value, number, low=low, high=high)

    def sql_numbers(self) -> dict[str, float]:
        """Returns the bounds that there are."""
        bounds = {"low": self.minimum, "high": self.maximum}
        return {name: bound for name, bound in bounds.items() if bound is not None}

    def kernel(self, values: np.ndarray) -> np.ndarray:
        """Clips, float64 [N]."""
        return clip_values(values, self.minimum, self.maximum)
