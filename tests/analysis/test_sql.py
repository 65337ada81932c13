"""The SQL as text, for two dialects: a change of it shows here."""

import pytest
import sqlglot

from ctr_pipeline.analysis.sql import (
    Query,
    central_query,
    drop_query,
    frequent_values_query,
    group_sizes_query,
    histogram_query,
    interval_query,
    mean_query,
    other_intervals_query,
    other_values_query,
    quantile_query,
    range_query,
    summary_query,
    value_counts_query,
)
from ctr_pipeline.features import (
    Clip,
    ColumnType,
    Fill,
    Log,
    Normalize,
    Standardize,
)

CHAIN = (Fill(value=1.0), Clip(minimum=0.0), Log(), Normalize(), Standardize())

CLEANED = (
    "(SELECT CASE WHEN ISNAN(value) THEN NULL ELSE value END AS value, num_rows, num_clicks "
    "FROM value_counts) AS cleaned"
)
FINITE = (
    "(SELECT value, source, num_rows, num_clicks FROM "
    f"(SELECT value, value AS source, num_rows, num_clicks FROM {CLEANED}) AS step "
    "WHERE ABS(value) <= CAST('1.7976931348623157e308' AS DOUBLE)) AS finite"
)


def test_value_counts_add_up_what_the_parts_say_of_a_column():
    assert value_counts_query().render() == (
        "CREATE TEMPORARY TABLE value_counts AS SELECT value, "
        "CAST(COALESCE(SUM(num_rows), 0) AS BIGINT) AS num_rows, "
        "CAST(COALESCE(SUM(num_clicks), 0) AS BIGINT) AS num_clicks "
        "FROM part_counts GROUP BY value"
    )


def test_summary():
    assert summary_query(ColumnType.TEXT).render() == (
        "SELECT CAST(COALESCE(SUM(CASE WHEN value IS NULL THEN num_rows ELSE 0 END), 0) AS BIGINT) "
        "AS num_missing, "
        "CAST(COALESCE(SUM(CASE WHEN value IS NULL THEN num_clicks ELSE 0 END), 0) AS BIGINT) "
        "AS missing_clicks, "
        "CAST(COALESCE(SUM(CASE WHEN FALSE THEN num_rows ELSE 0 END), 0) AS BIGINT) "
        "AS num_infinite, "
        "COUNT(value) AS num_distinct "
        "FROM (SELECT NULLIF(value, '') AS value, num_rows, num_clicks FROM value_counts) "
        "AS cleaned"
    )


def test_range():
    assert range_query(()).render() == (
        "SELECT CAST(COALESCE(SUM(num_rows), 0) AS BIGINT) AS num_rows, MIN(value) AS minimum, "
        f"MAX(value) AS maximum FROM {FINITE}"
    )


def test_mean():
    assert mean_query(()).render() == (
        "SELECT CAST(SUM(CAST(CAST(ROUND((value * CAST($shrink AS DOUBLE)) * "
        "CAST(4611686018427387904.0 AS DOUBLE)) AS BIGINT) AS DECIMAL(38, 0)) * num_rows) AS TEXT) "
        "AS total "
        f"FROM {FINITE}"
    )


def test_quantiles():
    assert quantile_query(()).render() == (
        "SELECT value, source, first_quantile, last_quantile FROM (SELECT value, source, "
        "((upto - num_rows) * CAST($num_quantiles AS BIGINT)) // CAST($total AS BIGINT) + 1 "
        "AS first_quantile, "
        "(upto * CAST($num_quantiles AS BIGINT)) // CAST($total AS BIGINT) AS last_quantile "
        "FROM (SELECT value, source, num_rows, CAST(SUM(num_rows) OVER (ORDER BY value "
        "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS BIGINT) AS upto "
        f"FROM {FINITE}) AS cumulative) "
        "AS reached WHERE first_quantile <= last_quantile ORDER BY value"
    )


def test_frequent_values():
    assert frequent_values_query(ColumnType.NUMBER, 2, 5).render() == (
        f"SELECT value, num_rows, num_clicks FROM {CLEANED} "
        "WHERE NOT value IS NULL AND num_rows >= 2 ORDER BY num_rows DESC, value LIMIT 5"
    )


ALL_QUERIES = [
    drop_query(),
    value_counts_query(),
    *(summary_query(kind) for kind in ColumnType),
    *(frequent_values_query(kind, 2, size) for kind in ColumnType for size in (None, 5)),
    *(histogram_query(edges) for edges in (0, 1, 19)),
    *(
        build(chain)
        for build in (range_query, mean_query, central_query, quantile_query)
        for chain in ((), CHAIN)
    ),
]


@pytest.mark.parametrize("query", ALL_QUERIES)
@pytest.mark.parametrize("dialect", ["duckdb", "spark"])
def test_every_query_is_valid_in_its_dialect(query: Query, dialect: str):
    text = query.render(dialect)
    assert sqlglot.parse_one(text, dialect=dialect).sql(dialect=dialect) == text


def test_a_long_chain_does_not_multiply_its_sql():
    one, ten = (len(range_query((Log(), Clip(minimum=0.0)) * times).render()) for times in (1, 10))
    assert ten < 12 * one


def test_intervals_are_closed_on_the_right():
    assert interval_query(1).render() == (
        "SELECT place, CAST(COALESCE(SUM(num_rows), 0) AS BIGINT) AS num_rows, "
        "CAST(COALESCE(SUM(num_clicks), 0) AS BIGINT) AS num_clicks FROM "
        "(SELECT CASE WHEN value IS NULL THEN NULL WHEN value <= CAST($edge0 AS DOUBLE) THEN 0 "
        f"ELSE 1 END AS place, num_rows, num_clicks FROM {CLEANED}) AS keyed "
        "GROUP BY place ORDER BY place"
    )


def test_group_sizes():
    assert group_sizes_query().render() == (
        "SELECT num_rows, num_clicks, COUNT(*) AS num_values "
        "FROM (SELECT NULLIF(value, '') AS value, num_rows, num_clicks FROM value_counts) "
        "AS cleaned WHERE NOT value IS NULL GROUP BY num_rows, num_clicks "
        "ORDER BY num_rows, num_clicks"
    )


def test_values_of_other_rows_join_those_of_training():
    assert other_values_query().render() == (
        "SELECT sample, is_known, value, CAST(COALESCE(SUM(num_rows), 0) AS BIGINT) AS num_rows "
        "FROM (SELECT cleaned.sample, CASE WHEN cleaned.value IS NULL THEN NULL "
        "ELSE NOT known.num_rows IS NULL END AS is_known, "
        "CASE WHEN known.num_rows > CAST($least_rows AS BIGINT) OR "
        "(known.num_rows = CAST($least_rows AS BIGINT) AND cleaned.value <= $last_value) "
        "THEN cleaned.value END AS value, cleaned.num_rows FROM "
        "(SELECT NULLIF(value, '') AS value, sample, num_rows FROM other_counts) AS cleaned "
        "LEFT JOIN value_counts AS known ON cleaned.value = known.value) AS keyed "
        "GROUP BY sample, is_known, value ORDER BY sample, is_known, value"
    )


def test_intervals_of_other_rows():
    query = other_intervals_query(0)
    assert query.render() == (
        "SELECT sample, place, CAST(COALESCE(SUM(num_rows), 0) AS BIGINT) AS num_rows FROM "
        "(SELECT sample, CASE WHEN value IS NULL THEN NULL ELSE 0 END AS place, num_rows "
        "FROM (SELECT CASE WHEN ISNAN(value) THEN NULL ELSE value END AS value, sample, num_rows "
        "FROM other_counts) AS cleaned) AS keyed GROUP BY sample, place ORDER BY sample, place"
    )
