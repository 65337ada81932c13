"""SQL that several transforms share."""

from collections.abc import Callable

from sqlglot import exp


def build_clip(
    value: exp.Expr, number: Callable[[str], exp.Expr], *, low: bool, high: bool
) -> exp.Expr:
    """Clips to the placeholders `low` and `high`, where these are wanted; NULL stays NULL."""
    # Not GREATEST and LEAST: dialects differ in whether these pass over NULL.
    if not (low or high):
        return value
    case = exp.Case()
    for wanted, name, outside in ((low, "low", exp.LT), (high, "high", exp.GT)):
        if wanted:
            bound = number(name)
            case = case.when(outside(this=value.copy(), expression=bound), bound.copy())
    return case.else_(value)


def build_scaling(value: exp.Expr, number: Callable[[str], exp.Expr]) -> exp.Expr:
    """Computes `(value - shift) / width` with these two placeholders."""
    shifted = exp.Sub(this=value, expression=number("shift"))
    return exp.Div(this=exp.Paren(this=shifted), expression=number("width"))


def at_least(column: exp.Expr, count: int) -> exp.Expr:
    """Whether the column is not below a count."""
    return exp.GTE(this=column.copy(), expression=exp.Literal.number(count))


def double(number: float) -> exp.Expr:
    """A float64 that stands in the query."""
    return exp.cast(exp.Literal.number(repr(number)), "double")
