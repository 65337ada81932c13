"""The stand-in's grammar takes what the reference names and refuses the rest."""

import pytest
from sqlglot import exp

from ctr_pipeline.analysis.groups import bins_query, group_sizes_query
from ctr_pipeline.analysis.moments import central_query, mean_query
from ctr_pipeline.analysis.quantiles import largest_counts_query, quantile_query
from ctr_pipeline.analysis.ranges import counts_query, range_query
from ctr_pipeline.analysis.sql import TABLE
from ctr_pipeline.analysis.top_values import frequent_values_query
from ctr_pipeline.dataset.formats.maxcompute.dialect import (
    SETTINGS,
    create_table,
    drop_table,
    insert_partitions,
    render,
)
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.transforms.clip import Clip
from ctr_pipeline.transforms.count_encode import CountEncode
from ctr_pipeline.transforms.fill import Fill
from ctr_pipeline.transforms.log import Log
from ctr_pipeline.transforms.normalize import Normalize
from ctr_pipeline.transforms.standardize import Standardize
from ctr_pipeline.transforms.target_encode import TargetEncode
from tests.maxcompute import maxcompute_grammar

CHAIN = (Fill(value=1.0), Clip(minimum=0.0), Log(), Normalize(), Standardize())
ENCODED = ((CountEncode(),), (CountEncode(), Log()))
QUERIES = [
    *(counts_query(kind) for kind in ColumnType),
    *(frequent_values_query(kind, 2, size) for kind in ColumnType for size in (None, 5)),
    *(bins_query(*edges) for edges in ((0, 0), (1, 1), (20, 19))),
    group_sizes_query(),
    *(
        build(chains)
        for build in (range_query, mean_query, central_query)
        for chains in (((),), ((), CHAIN), ENCODED, ((TargetEncode(), Standardize()),))
    ),
    counts_query(ColumnType.NUMBER, ((), CHAIN)),
    *(quantile_query(chain, 2) for chain in ((), CHAIN, *ENCODED)),
    *(largest_counts_query(chain, 30) for chain in ((), CHAIN, *ENCODED)),
]


@pytest.mark.parametrize("query", QUERIES)
def test_every_query_of_the_plan_is_in_the_reference(query):
    names = {node.name for node in query.tree.find_all(exp.Placeholder)}
    tree = query.bind(dict.fromkeys(names, 1.5), {TABLE: exp.table_("counts", db="ads")})
    text = render(tree)
    maxcompute_grammar.parse(text, SETTINGS)
    assert "`ads`.`counts`" in text
    assert "value_counts" not in text


def test_tables_are_made_for_a_day_and_dropped():
    table = exp.table_("counts", db="ads")
    made = render(create_table(table, {"number": "double", "text": "text"}, "feature"))
    assert made == (
        "CREATE TABLE `ads`.`counts` (`number` DOUBLE, `text` STRING) "
        "PARTITIONED BY (`feature` STRING) LIFECYCLE 1"
    )
    filled = render(insert_partitions(table, "feature", exp.select("1", "2", "3")))
    assert filled == "INSERT OVERWRITE TABLE `ads`.`counts` PARTITION(`feature`) SELECT 1, 2, 3"
    dropped = render(drop_table(table))
    assert dropped == "DROP TABLE IF EXISTS `ads`.`counts`"
    for text in (made, filled, dropped):
        maxcompute_grammar.parse(text, SETTINGS)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("SELECT FARM_FINGERPRINT(`a`) AS `h` FROM `t`", "function"),
        ("SELECT APPROX_QUANTILE(`a`, 0.5) AS `q` FROM `t`", "function"),
        ("SELECT CAST(`a` AS HUGEINT) AS `h` FROM `t`", "type INT128"),
        ("SELECT CAST(`a` AS DECIMAL(39, 0)) AS `d` FROM `t`", "DECIMAL"),
        ("SELECT CAST(`a` AS TIMESTAMP) AS `d` FROM `t`", "TIMESTAMP"),
        ("SELECT `a` FROM (SELECT `a` FROM `t`)", "alias"),
        ("SELECT `a` FROM `t` UNION SELECT `a` FROM `u`", "UNION ALL"),
        ("SELECT NTILE(4) OVER (ORDER BY `a`) AS `n` FROM `t`", "function NTILE"),
        ("SELECT `a` << 2 AS `b` FROM `t`", "not known"),
        ("CREATE VIEW `v` AS SELECT 1", "VIEW"),
        ("SELECT $a AS `b`", "exception"),
        ("SELECT FROM WHERE", "exception"),
        ("DELETE FROM `t`", "not known"),
        ("CREATE TABLE `t` (`a` BIGINT) AS SELECT 1 AS `a`", "TABLE is not known"),
        ("INSERT INTO TABLE `t` SELECT 1 AS `a`", "INSERT OVERWRITE"),
        ("SELECT `p` FROM `t` LATERAL VIEW EXPLODE(ARRAY(1)) c AS `p`", "POSEXPLODE"),
    ],
)
def test_grammar_refuses_what_the_reference_does_not_name(text, says):
    with pytest.raises(maxcompute_grammar.GrammarError, match=says):
        maxcompute_grammar.parse(text, SETTINGS)


def test_settings_are_needed():
    ordered = "SELECT `a` FROM `t` ORDER BY `a`"
    maxcompute_grammar.parse(ordered, SETTINGS)
    maxcompute_grammar.parse(ordered + " LIMIT 5", {})
    with pytest.raises(maxcompute_grammar.GrammarError, match="LIMIT"):
        maxcompute_grammar.parse(ordered, {})
    with pytest.raises(maxcompute_grammar.GrammarError, match=r"odps.sql.decimal.odps2"):
        maxcompute_grammar.parse("SELECT CAST(`a` AS DECIMAL(38, 0)) AS `d` FROM `t`", {})
