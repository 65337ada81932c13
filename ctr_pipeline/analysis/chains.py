"""Chains of number transforms: as SQL expressions, and over numpy arrays by their kernels.

The SQL form decides order and moments over all values; the kernels give the exact value of a cut
point, since a database's logarithm may differ in the last bit from the one of training.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from sqlglot import exp

from ctr_pipeline.analysis.statistics_plan import Chain
from ctr_pipeline.features import expression_key
from ctr_pipeline.statistics import Moments
from ctr_pipeline.transforms.base import NumberStep, NumberTransform, Transform


def placeholder_prefix(place: int, position: int) -> str:
    """Tells the placeholders of a step from all others of a query.

    Args:
        place: Place of the chain among those of the query.
        position: Position of the step in its chain.
    """
    return f"chain{place}_step{position}"


def build_step(value: exp.Expr, transform: Transform, prefix: str) -> exp.Expr:
    """Builds `value` after one transform, with a placeholder for each number.

    The placeholders are filled by `chain_parameters`, so that chains of one shape share their SQL.

    Args:
        value: The value before, as an expression cheap to repeat; NULL is a missing value.
        transform: The transform.
        prefix: Prefix of the placeholders' names.

    Raises:
        ValueError: The transform's result is no number.
    """

    def number(name: str) -> exp.Expr:
        return exp.cast(exp.Placeholder(this=f"{prefix}_{name}"), "double")

    return _require_number(transform).sql(value, number)


def chain_parameters(
    column: str, chains: Sequence[Chain], moments: Mapping[str, Moments]
) -> dict[str, float]:
    """Returns the numbers for the placeholders of `build_step`, for all steps of a query's chains.

    Args:
        column: The column's name, for the keys of `moments`.
        chains: The transforms.
        moments: By `expression_key` of the chain before each step that needs them.

    Raises:
        ValueError: Moments are missing.
    """
    return {
        f"{placeholder_prefix(place, position)}_{name}": number
        for place, chain in enumerate(chains)
        for position, step in fitted_steps(column, chain, moments)
        for name, number in step.sql_numbers().items()
    }


def is_measurable(column: str, chain: Chain, moments: Mapping[str, Moments]) -> bool:
    """Whether all moments are known that steps of the chain need."""
    return all(
        expression_key(column, chain[:position]) in moments
        for position, transform in enumerate(chain)
        if isinstance(transform, NumberTransform) and transform.needs.moments
    )


def apply_chain(
    values: np.ndarray, column: str, chain: Chain, moments: Mapping[str, Moments]
) -> np.ndarray:
    """Computes values after `chain`.

    Args:
        values: float64 [N], NaN where missing. Where a transform of text begins the chain, they
            are its results.
        column: The column's name, for the keys of `moments`.
        chain: The transforms.
        moments: By `expression_key` of the chain before each step that needs them.

    Returns:
        float64 [N], NaN where missing.

    Raises:
        ValueError: Moments are missing.
    """
    for _, step in fitted_steps(column, chain, moments):
        values = step.kernel(values)
    return values


def fitted_steps(
    column: str, chain: Chain, moments: Mapping[str, Moments]
) -> list[tuple[int, NumberStep]]:
    """Returns the fitted steps from numbers to numbers of a chain, with their positions.

    Raises:
        ValueError: Moments are missing, or a transform has no number as its result.
    """
    steps = []
    for position, transform in enumerate(chain):
        if transform.kind.takes_text and not transform.kind.gives_id:
            continue
        known = _require_number(transform)
        found = moments.get(expression_key(column, chain[:position]))
        if known.needs.moments and found is None:
            raise ValueError(
                f"column '{column}': the moments that '{transform.name}' needs are missing"
            )
        steps.append((position, known.fit(found)))
    return steps


def _require_number(transform: Transform) -> NumberTransform:
    if not isinstance(transform, NumberTransform):
        raise ValueError(f"'{transform.name}' has no number as its result")
    return transform
