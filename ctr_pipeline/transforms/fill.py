"""`fill`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from ctr_pipeline.kernels.float64 import fill
from ctr_pipeline.transforms.base import PlainNumberTransform

if TYPE_CHECKING:
    from sqlglot import exp


class Fill(PlainNumberTransform):
    """Missing values become `value`."""

    example: ClassVar[str] = "{columns: age, number: [{fill: {value: 30}}, standardize]}"
    rank: ClassVar[int] = 10
    name: Literal["fill"] = "fill"
    value: float = Field(description="What a missing value becomes.")

    def sql(self, value: "exp.Expr", number: "Callable[[str], exp.Expr]") -> "exp.Expr":
        """Returns the value, or the placeholder `fill` for NULL."""
        from sqlglot import exp

        return exp.Coalesce(this=value, expressions=[number("fill")])

    def sql_numbers(self) -> dict[str, float]:
        """Returns the value for NULL."""
        return {"fill": self.value}

    def kernel(self, values: np.ndarray) -> np.ndarray:
        """Fills, float64 [N]."""
        return fill(values, self.value)
