"""Every transform of numbers means the same in SQL and in its kernel."""

import duckdb
import numpy as np
import pytest
from sqlglot import exp

from ctr_pipeline.analysis.chains import (
    apply_chain,
    build_step,
    chain_parameters,
    placeholder_prefix,
)
from ctr_pipeline.preprocessing.fit import plan_preprocessing
from ctr_pipeline.transforms.base import TransformKind
from ctr_pipeline.transforms.bucketize import Bucketize
from tests.preprocessing.preprocessing_cases import EXAMPLES, number_spec, statistics_for

STEPS = [
    transform
    for examples in EXAMPLES.values()
    for transform in examples
    if transform.kind is TransformKind.NUMBER_TO_NUMBER
]
VALUES = np.array([np.nan, -7.5, -1.0, -0.0, 0.0, 1e-9, 0.25, 0.7, 1.0, 3.0, 99.0, 1e6, 1e30])


def by_sql(transform, parameters):
    step = build_step(exp.column("x"), transform, placeholder_prefix(0, 0))
    rows = [(number, None if np.isnan(x) else x) for number, x in enumerate(VALUES.tolist())]
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE t (n INTEGER, x DOUBLE)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", rows)
        query = f"SELECT {step.sql('duckdb')} FROM t ORDER BY n"
        found = connection.execute(query, parameters).fetchall()
    return np.array([np.nan if value is None else value for (value,) in found])


@pytest.mark.parametrize("transform", STEPS, ids=str)
def test_a_step_is_the_same_in_sql_and_kernel(transform, tmp_path):
    spec = number_spec("x", number=[transform])
    statistics = statistics_for([spec], tmp_path)
    moments = statistics.derived_moments
    expected = apply_chain(VALUES, "x", (transform,), moments)
    assert not np.array_equal(expected, VALUES, equal_nan=True)
    sql = by_sql(transform, chain_parameters("x", [(transform,)], moments))
    np.testing.assert_allclose(sql, expected, rtol=1e-14)
    ((step,),) = [
        number.steps for number in plan_preprocessing([spec], statistics, tmp_path).numbers
    ]
    np.testing.assert_array_equal(step.kernel(VALUES), expected)
    assert transform.step_with(step.sql_numbers()) == step


def test_a_step_without_a_meaning_here_is_refused():
    with pytest.raises(ValueError, match="has no number as its result"):
        apply_chain(VALUES, "x", (Bucketize(quantiles=3),), {})
