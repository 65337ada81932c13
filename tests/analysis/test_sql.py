"""The SQL as text, for two dialects: a change of it shows here."""

import pytest
import sqlglot

from ctr_pipeline.analysis.comparison import other_intervals_query, other_values_query
from ctr_pipeline.analysis.groups import bins_query, group_sizes_query
from ctr_pipeline.analysis.moments import central_query, mean_query
from ctr_pipeline.analysis.quantiles import largest_counts_query, quantile_query
from ctr_pipeline.analysis.ranges import counts_query, range_query
from ctr_pipeline.analysis.sql import Query
from ctr_pipeline.analysis.top_values import frequent_values_query
from ctr_pipeline.analysis.value_counts import drop_query, value_counts_query
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.transforms.clip import Clip
from ctr_pipeline.transforms.count_encode import CountEncode
from ctr_pipeline.transforms.fill import Fill
from ctr_pipeline.transforms.log import Log
from ctr_pipeline.transforms.normalize import Normalize
from ctr_pipeline.transforms.standardize import Standardize

CHAIN = (Fill(value=1.0), Clip(minimum=0.0), Log(), Normalize(), Standardize())

CLEANED = (
    "(SELECT CASE WHEN ISNAN(value) THEN NULL ELSE value END AS value, num_rows, num_clicks "
    "FROM value_counts) AS cleaned"
)
LARGEST = "CAST('1.7976931348623157e308' AS DOUBLE)"
FINITE = (
    "(SELECT value, num_rows, num_clicks, "
    f"CASE WHEN ABS(value0) <= {LARGEST} THEN value0 END AS value0 FROM "
    f"(SELECT value, num_rows, num_clicks, value AS value0 FROM {CLEANED}) AS step) AS finite"
)
FINITE_RANGE = (
    "CAST(COALESCE(SUM(CASE WHEN NOT value0 IS NULL THEN num_rows ELSE 0 END), 0) AS BIGINT) "
    "AS num_rows0, MIN(value0) AS minimum0, MAX(value0) AS maximum0"
)


@pytest.mark.parametrize(
    ("column_type", "order"), [(ColumnType.NUMBER, " ORDER BY value"), (ColumnType.TEXT, "")]
)
def test_value_counts_add_up_what_the_parts_say_of_a_column(column_type: ColumnType, order: str):
    assert value_counts_query(column_type).render() == (
        "CREATE TEMPORARY TABLE value_counts AS SELECT value, "
        "CAST(COALESCE(SUM(num_rows), 0) AS BIGINT) AS num_rows, "
        "CAST(COALESCE(SUM(num_clicks), 0) AS BIGINT) AS num_clicks "
        f"FROM part_counts GROUP BY value{order}"
    )


def test_summary():
    assert counts_query(ColumnType.TEXT).render() == (
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
    assert range_query(((),)).render() == f"SELECT {FINITE_RANGE} FROM {FINITE}"


def test_the_summary_of_numbers_gives_ranges_in_the_same_scan():
    summary = counts_query(ColumnType.NUMBER).render()
    assert summary.endswith(f"AS num_distinct FROM {CLEANED}")
    both = counts_query(ColumnType.NUMBER, ((),)).render()
    assert both == summary.removesuffix(f" FROM {CLEANED}") + f", {FINITE_RANGE} FROM {FINITE}"


def test_mean():
    assert mean_query(((),)).render() == (
        "SELECT SUM((value0 * CAST($shrink0 AS DOUBLE)) * CAST(num_rows AS DOUBLE)) AS total0 "
        f"FROM {FINITE}"
    )


def test_chains_of_a_query_take_their_steps_side_by_side():
    query = range_query(((), (Fill(value=1.0),), (Fill(value=2.0), Clip(minimum=0.0))))
    assert (
        "(SELECT value, num_rows, num_clicks, value0, value1, CASE WHEN value2 < "
        "CAST($chain2_step1_low AS DOUBLE) THEN CAST($chain2_step1_low AS DOUBLE) "
        "ELSE value2 END AS value2 FROM "
        "(SELECT value, num_rows, num_clicks, value0, "
        "COALESCE(value1, CAST($chain1_step0_fill AS DOUBLE)) AS value1, "
        "COALESCE(value2, CAST($chain2_step0_fill AS DOUBLE)) AS value2 FROM "
        "(SELECT value, num_rows, num_clicks, value AS value0, value AS value1, value AS value2 "
        f"FROM {CLEANED}) AS step) AS step) AS step"
    ) in query.render()


def test_chains_that_begin_otherwise_are_no_one_query():
    with pytest.raises(ValueError, match="begin alike"):
        range_query(((), (CountEncode(), Log())))


def test_quantiles():
    assert quantile_query(()).render() == (
        "SELECT value, source, first_quantile0, last_quantile0, is_edge0 FROM "
        "(SELECT value, source, "
        "((upto0 - light0) * CAST($num_quantiles0 AS BIGINT)) // CAST($total0 AS BIGINT) + 1 "
        "AS first_quantile0, "
        "(upto0 * CAST($num_quantiles0 AS BIGINT)) // CAST($total0 AS BIGINT) AS last_quantile0, "
        "is_edge0 FROM "
        "(SELECT value, source, light0, CAST(SUM(light0) OVER (ORDER BY value "
        "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS BIGINT) AS upto0, "
        "CAST(SUM(heavy0) OVER (ORDER BY value ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) "
        "AS BIGINT) AS is_edge0 FROM "
        "(SELECT value, source, "
        "CASE WHEN num_rows >= CAST($heavy0 AS BIGINT) THEN 0 ELSE num_rows END AS light0, "
        "CASE WHEN num_rows >= CAST($heavy0 AS BIGINT) THEN 1 ELSE 0 END AS heavy0 "
        "FROM (SELECT value0 AS value, value AS source, num_rows "
        f"FROM {FINITE} WHERE NOT value0 IS NULL) AS present) AS weighed) AS cumulative) "
        "AS reached WHERE first_quantile0 <= last_quantile0 OR is_edge0 > 0 ORDER BY value"
    )


def test_frequent_values():
    assert frequent_values_query(ColumnType.NUMBER, 2, 5).render() == (
        f"SELECT value, num_rows, num_clicks FROM {CLEANED} "
        "WHERE NOT value IS NULL AND num_rows >= 2 ORDER BY num_rows DESC, value LIMIT 5"
    )


ALL_QUERIES = [
    drop_query(),
    *(value_counts_query(kind) for kind in ColumnType),
    *(counts_query(kind) for kind in ColumnType),
    *(frequent_values_query(kind, 2, size) for kind in ColumnType for size in (None, 5)),
    *(bins_query(*edges) for edges in ((0, 0), (1, 1), (20, 19))),
    counts_query(ColumnType.NUMBER, ((), CHAIN)),
    group_sizes_query(),
    *(
        build(chains)
        for build in (range_query, mean_query, central_query)
        for chains in (((),), ((), CHAIN, CHAIN[:2]))
    ),
    *(quantile_query(chain, num_sets) for chain in ((), CHAIN) for num_sets in (1, 3)),
    *(largest_counts_query(chain, 30) for chain in ((), CHAIN)),
]


@pytest.mark.parametrize("query", ALL_QUERIES)
@pytest.mark.parametrize("dialect", ["duckdb", "spark"])
def test_every_query_is_valid_in_its_dialect(query: Query, dialect: str):
    text = query.render(dialect)
    assert sqlglot.parse_one(text, dialect=dialect).sql(dialect=dialect) == text


def test_a_long_chain_does_not_multiply_its_sql():
    chain = (Log(), Clip(minimum=0.0))
    one, ten = (len(range_query((chain * times,)).render()) for times in (1, 10))
    assert ten < 12 * one


def test_intervals_are_closed_on_the_right_and_bins_on_the_left():
    assert bins_query(1, 1).render() == (
        "SELECT place, bin, CAST(COALESCE(SUM(num_rows), 0) AS BIGINT) AS num_rows, "
        "CAST(COALESCE(SUM(num_clicks), 0) AS BIGINT) AS num_clicks FROM "
        "(SELECT CASE WHEN value IS NULL THEN NULL WHEN value <= CAST($cut0 AS DOUBLE) THEN 0 "
        "ELSE 1 END AS place, "
        f"CASE WHEN value IS NULL OR ABS(value) > {LARGEST} THEN NULL "
        "WHEN value < CAST($edge0 AS DOUBLE) THEN 0 ELSE 1 END AS bin, "
        f"num_rows, num_clicks FROM {CLEANED}) AS keyed "
        "GROUP BY place, bin ORDER BY place, bin"
    )


def test_group_sizes():
    assert group_sizes_query().render() == (
        "SELECT is_missing, num_rows, num_clicks, COUNT(*) AS num_values "
        "FROM (SELECT CASE WHEN value IS NULL THEN 1 ELSE 0 END AS is_missing, num_rows, "
        "num_clicks FROM (SELECT NULLIF(value, '') AS value, num_rows, num_clicks "
        "FROM value_counts) AS cleaned) AS groups GROUP BY is_missing, num_rows, num_clicks "
        "ORDER BY is_missing, num_rows, num_clicks"
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
