"""One vocabulary of several columns, whose ids are of one embedding table.

A value is as frequent as it is in all of the columns together: rows of a plain column and elements
of a sequence count alike, each being one use of the value's embedding. Whatever engine counted the
columns, their counts are added up here, in the database's memory limit.
"""

from collections.abc import Mapping
from pathlib import Path

from ctr_pipeline.analysis.duckdb_engine import DuckDbEngine
from ctr_pipeline.analysis.sql import PART_COUNTS
from ctr_pipeline.analysis.statistics_plan import ColumnPlan, StatisticsPlan
from ctr_pipeline.analysis.top_values import frequent_values_query, kept_values_query
from ctr_pipeline.analysis.value_counts import drop_query, value_counts_query
from ctr_pipeline.analysis.value_files import read_counts, vocabulary_files, write_new_values
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.statistics import ColumnStatistics, VocabularyStatistics


def counts_file(staging: Path, plan: StatisticsPlan, column: ColumnPlan) -> Path:
    """Where all values of a column that shares its vocabulary are kept until it is made."""
    return staging / f"shared-{plan.columns.index(column):04d}.parquet"


def collect_shared_vocabularies(
    plan: StatisticsPlan,
    statistics: Mapping[str, ColumnStatistics],
    staging: Path,
    *,
    memory_limit_gb: float,
) -> dict[str, VocabularyStatistics]:
    """Makes the vocabulary of each table that several columns share.

    Args:
        staging: Holds the columns' `counts_file`s; vocabularies go there.
        memory_limit_gb: Memory of the database before it spills into `staging`, in 10^9 bytes.

    Returns:
        By column; columns of one table have one file.

    Raises:
        StatisticsError: Memory and disk do not suffice.
    """
    by_table: dict[str, list[ColumnPlan]] = {}
    for column in plan.columns:
        if column.table is not None:
            by_table.setdefault(column.table, []).append(column)
    if not by_table:
        return {}
    found = {}
    with DuckDbEngine(
        spill_folder=staging / "spill-shared", threads=1, memory_limit_gb=memory_limit_gb
    ) as database:
        for columns in by_table.values():
            for one in _collect_table(plan, columns, statistics, staging, database):
                found[one.column] = one
    return found


def _collect_table(
    plan: StatisticsPlan,
    columns: list[ColumnPlan],
    statistics: Mapping[str, ColumnStatistics],
    staging: Path,
    database: DuckDbEngine,
) -> list[VocabularyStatistics]:
    wanted = columns[0].vocabulary
    if wanted is None:
        raise ValueError(f"column '{columns[0].column}' shares a vocabulary and wants none")
    file = vocabulary_files(plan)[columns[0].column]
    parts = {column.column: counts_file(staging, plan, column) for column in columns}
    database.offer(PART_COUNTS, read_counts(parts.values()))
    database.execute(value_counts_query(ColumnType.TEXT))
    frequent = frequent_values_query(ColumnType.TEXT, wanted.min_count, wanted.max_size)
    size, _ = write_new_values(staging / file, database.batches(frequent))
    made = []
    for name, part in parts.items():
        database.offer(PART_COUNTS, read_counts([part]))
        kept = kept_values_query(wanted.min_count, wanted.max_size)
        ((num_values, num_rows),) = database.rows(kept)
        made.append(
            VocabularyStatistics(
                column=name,
                min_count=wanted.min_count,
                max_size=wanted.max_size,
                file=file,
                size=size,
                num_excluded_values=statistics[name].num_distinct - num_values,
                num_excluded_rows=statistics[name].num_values - num_rows,
                columns=tuple(parts),
            )
        )
    database.execute(drop_query())
    return made
