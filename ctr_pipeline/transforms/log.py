"""`log`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from ctr_pipeline.kernels.float64 import SMALLEST_NORMAL, flush_subnormal
from ctr_pipeline.transforms.base import PlainNumberTransform

if TYPE_CHECKING:
    from sqlglot import exp


class Log(PlainNumberTransform):
    """`log(1 + max(x, 0))`, natural; missing stays missing."""

    example: ClassVar[str] = "{columns: price, number: [log, standardize]}"
    name: Literal["log"] = "log"

    def sql(self, value: "exp.Expr", number: "Callable[[str], exp.Expr]") -> "exp.Expr":
        """Returns log(1 + max(x, 0)), for small x as log1p(x) = ln(u) x / (u - 1), u = 1 + x.

        W. Kahan's identity keeps full precision with the logarithm that every dialect has; see
        D. Goldberg, "What every computer scientist should know about floating-point arithmetic",
        ACM Computing Surveys 23 (1991), theorem 4.
        """
        from sqlglot import exp

        from ctr_pipeline.transforms.shared.sql import double

        del number
        one = double(1.0)

        def one_plus() -> exp.Expr:
            return exp.Paren(this=exp.Add(this=one.copy(), expression=value.copy()))

        precise = exp.Div(
            this=exp.Mul(this=exp.Ln(this=one_plus()), expression=value.copy()),
            expression=exp.Paren(this=exp.Sub(this=one_plus(), expression=one.copy())),
        )
        return (
            exp.Case()
            .when(exp.LT(this=value.copy(), expression=double(SMALLEST_NORMAL)), double(0.0))
            .when(exp.EQ(this=one_plus(), expression=one.copy()), value.copy())
            .when(exp.GT(this=value.copy(), expression=one.copy()), exp.Ln(this=one_plus()))
            .else_(precise)
        )

    def kernel(self, values: np.ndarray) -> np.ndarray:
        """Computes log(1 + max(x, 0)), float64 [N]."""
        # Not np.maximum, which would warn of NaN in some versions; NaN < 0 is false, so NaN stays.
        return flush_subnormal(np.log1p(np.where(values < 0, 0.0, values)))
