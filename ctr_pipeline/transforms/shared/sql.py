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


def double(text: str) -> exp.Expr:
    """Returns a constant of type double."""
    return exp.cast(exp.Literal.number(text), "double")
