"""Chains of number transforms as SQL expressions, and the same over numpy arrays.

The SQL form decides order and moments over all values; the numpy form gives the exact value of a
cut point, since a database's logarithm may differ in the last bit from the one of training.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from sqlglot import exp

from ctr_pipeline.analysis.aggregates import Chain
from ctr_pipeline.features import (
    Clip,
    CountEncode,
    Fill,
    Log,
    Normalize,
    Standardize,
    TargetEncode,
    Transform,
    expression_key,
)
from ctr_pipeline.statistics import Moments


def placeholder_prefix(place: int, position: int) -> str:
    """Tells the placeholders of a step from all others of a query.

    Args:
        place: Place of the chain among those of the query.
        position: Position of the step in its chain.
    """
    return f"chain{place}_step{position}"


def build_step(value: exp.Expr, transform: Transform, prefix: str) -> exp.Expr:
    """`value` after one transform, with a placeholder for each number; NULL is a missing value.

    The placeholders are filled by `chain_parameters`, so that chains of one shape share their SQL.

    Args:
        value: The value before, as an expression cheap to repeat.
        transform: The transform.

    Raises:
        ValueError: The transform's result is no number.
    """
    match transform:
        case Log():
            return _build_log(value)
        case Fill():
            return exp.Coalesce(this=value, expressions=[_placeholder(prefix, "fill")])
        case Clip(minimum=minimum, maximum=maximum):
            return _build_clip(value, prefix, low=minimum is not None, high=maximum is not None)
        case Standardize(clip=clip):
            # NULL is neither below nor above a bound, so missing values stay missing.
            return _build_clip(
                _build_scaling(value, prefix), prefix, low=clip is not None, high=clip is not None
            )
        case Normalize():
            return _build_scaling(value, prefix)
        case _:
            raise ValueError(f"'{transform.name}' has no number as its result")


def chain_parameters(
    column: str, chains: Sequence[Chain], moments: Mapping[str, Moments]
) -> dict[str, float]:
    """The numbers for the placeholders of `build_step`, for all steps of the chains of a query.

    Args:
        column: The column's name, for the keys of `moments`.
        chains: The transforms.
        moments: By `expression_key` of the chain before each step that needs them.

    Raises:
        ValueError: Moments are missing.
    """
    parameters: dict[str, float] = {}
    for place, chain in enumerate(chains):
        for position, transform in enumerate(chain):
            known = moments.get(expression_key(column, chain[:position]))
            prefix = placeholder_prefix(place, position)
            for name, number in _step_numbers(column, transform, known).items():
                parameters[f"{prefix}_{name}"] = number
    return parameters


def is_measurable(column: str, chain: Chain, moments: Mapping[str, Moments]) -> bool:
    """Whether all moments are known that steps of the chain need."""
    return all(
        expression_key(column, chain[:position]) in moments
        for position, transform in enumerate(chain)
        if isinstance(transform, Standardize | Normalize)
    )


def apply_chain(
    values: np.ndarray, column: str, chain: Chain, moments: Mapping[str, Moments]
) -> np.ndarray:
    """Values after `chain`.

    Args:
        values: float64 [N], NaN where missing.
        column: The column's name, for the keys of `moments`.
        chain: The transforms.
        moments: By `expression_key` of the chain before each step that needs them.

    A transform of text, which begins a chain, is passed over: the values are its results.

    Returns:
        float64 [N], NaN where missing.

    Raises:
        ValueError: Moments are missing.
    """
    for position, transform in enumerate(chain):
        if transform.kind.takes_text:
            continue
        known = moments.get(expression_key(column, chain[:position]))
        values = apply_step(values, transform, _step_numbers(column, transform, known))
    return values


def _step_numbers(column: str, transform: Transform, moments: Moments | None) -> dict[str, float]:
    match transform:
        case Log() | CountEncode() | TargetEncode():
            return {}
        case Fill(value=value):
            return {"fill": value}
        case Clip(minimum=minimum, maximum=maximum):
            bounds = {"low": minimum, "high": maximum}
            return {name: bound for name, bound in bounds.items() if bound is not None}
        case Standardize() | Normalize():
            if moments is None:
                raise ValueError(
                    f"column '{column}': the moments that '{transform.name}' needs are missing"
                )
            return _scaling_numbers(transform, moments)
        case _:
            raise ValueError(f"column '{column}': '{transform.name}' has no number as its result")


def _scaling_numbers(transform: Standardize | Normalize, moments: Moments) -> dict[str, float]:
    # A constant column has the width 0; dividing by 1 instead maps it to 0.
    if isinstance(transform, Normalize):
        low, high = moments.minimum or 0.0, moments.maximum or 0.0
        return {"shift": low, "width": (high - low) or 1.0}
    numbers = {"shift": moments.mean or 0.0, "width": moments.standard_deviation or 1.0}
    if transform.clip is not None:
        numbers |= {"low": -transform.clip, "high": transform.clip}
    return numbers


def apply_step(
    values: np.ndarray, transform: Transform, numbers: Mapping[str, float]
) -> np.ndarray:
    """Values after one transform.

    Args:
        values: float64 [N], NaN where missing.
        transform: The transform, of numbers.
        numbers: The transform's numbers, by the ends of their placeholders' names.

    Raises:
        ValueError: The transform's result is no number.
    """
    if isinstance(transform, Log):
        return np.log1p(np.where(values < 0, 0.0, values))
    if isinstance(transform, Fill):
        return np.where(np.isnan(values), numbers["fill"], values)
    if isinstance(transform, Standardize | Normalize):
        with np.errstate(over="ignore"):
            values = (values - numbers["shift"]) / numbers["width"]
    elif not isinstance(transform, Clip):
        raise ValueError(f"'{transform.name}' has no number as its result")
    # Comparisons with NaN are false, so that missing values stay missing.
    for name, outside in (("low", np.less), ("high", np.greater)):
        if name in numbers:
            values = np.where(outside(values, numbers[name]), numbers[name], values)
    return values


def _build_log(value: exp.Expr) -> exp.Expr:
    """log(1 + max(x, 0)); for small x by the identity log1p(x) = ln(u) x / (u - 1), u = 1 + x.

    W. Kahan's identity keeps full precision with the logarithm that every dialect has; see
    D. Goldberg, "What every computer scientist should know about floating-point arithmetic",
    ACM Computing Surveys 23 (1991), theorem 4.
    """
    one = _double("1.0")

    def one_plus() -> exp.Expr:
        return exp.Paren(this=exp.Add(this=one.copy(), expression=value.copy()))

    precise = exp.Div(
        this=exp.Mul(this=exp.Ln(this=one_plus()), expression=value.copy()),
        expression=exp.Paren(this=exp.Sub(this=one_plus(), expression=one.copy())),
    )
    return (
        exp.Case()
        .when(exp.LTE(this=value.copy(), expression=_double("0.0")), _double("0.0"))
        .when(exp.EQ(this=one_plus(), expression=one.copy()), value.copy())
        .when(exp.GT(this=value.copy(), expression=one.copy()), exp.Ln(this=one_plus()))
        .else_(precise)
    )


def _build_scaling(value: exp.Expr, prefix: str) -> exp.Expr:
    shifted = exp.Sub(this=value, expression=_placeholder(prefix, "shift"))
    return exp.Div(this=exp.Paren(this=shifted), expression=_placeholder(prefix, "width"))


def _build_clip(value: exp.Expr, prefix: str, *, low: bool, high: bool) -> exp.Expr:
    # Not GREATEST and LEAST: dialects differ in whether these pass over NULL.
    if not (low or high):
        return value
    case = exp.Case()
    for wanted, name, outside in ((low, "low", exp.LT), (high, "high", exp.GT)):
        if wanted:
            bound = _placeholder(prefix, name)
            case = case.when(outside(this=value.copy(), expression=bound), bound.copy())
    return case.else_(value)


def _placeholder(prefix: str, name: str) -> exp.Expr:
    return exp.cast(exp.Placeholder(this=f"{prefix}_{name}"), "double")


def _double(text: str) -> exp.Expr:
    return exp.cast(exp.Literal.number(text), "double")
