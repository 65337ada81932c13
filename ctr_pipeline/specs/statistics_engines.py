"""The engines that compute statistics, one for each `analysis.engine` but `auto`."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class StatisticsEngineKind:
    """One engine, as it is registered.

    Attributes:
        name: In `analysis.engine`.
        title: In messages.
        code: `module:class` of a `pipeline.stages.statistics_engines.protocol.StatisticsEngine`,
            imported when statistics are computed.
        summary: Follows the name in the config's documentation.
        is_automatic: Whether `auto` may choose it.
        options: Other keys of `analysis` that belong to it.
    """

    name: str
    title: str
    code: str
    summary: str
    is_automatic: bool = False
    options: tuple[str, ...] = ()


_PACKAGE = "ctr_pipeline.pipeline.stages.statistics_engines"
_ALL = (
    StatisticsEngineKind(
        "maxcompute",
        "MaxCompute",
        f"{_PACKAGE}.maxcompute:MaxComputeStatistics",
        "in MaxCompute, from its tables",
        is_automatic=True,
    ),
    StatisticsEngineKind(
        "spark",
        "Spark",
        f"{_PACKAGE}.spark:SparkStatistics",
        "by Spark, from CSV, TSV and Parquet files",
        options=("master", "conf", "start_seconds"),
    ),
    StatisticsEngineKind(
        "duckdb",
        "DuckDB",
        f"{_PACKAGE}.duckdb:DuckDbStatistics",
        "on this machine, from the rows that were read",
        is_automatic=True,
    ),
)

STATISTICS_ENGINES: Mapping[str, StatisticsEngineKind] = {kind.name: kind for kind in _ALL}
"""The engines by name; `auto` is the first automatic one that has the rows."""
