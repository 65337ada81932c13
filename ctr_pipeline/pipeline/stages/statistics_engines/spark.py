"""Statistics of rows that are in files, by Spark."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ctr_pipeline.analysis.engine_protocol import AcceptLabels
from ctr_pipeline.config.models import AnalysisConfig, Config
from ctr_pipeline.dataset.source import Source
from ctr_pipeline.pipeline.stages.statistics_engines.protocol import RowsToCount, ScanPlan

if TYPE_CHECKING:
    from ctr_pipeline.analysis.spark_engine import SparkEngine
    from ctr_pipeline.analysis.table_sql import CountedRows


class SparkStatistics:
    """As `StatisticsEngine`."""

    def has_rows(self, source: Source) -> bool:
        """Spark is only used where the config names it."""
        del source
        return False

    def check(self, config: Config, source: Source) -> None:
        """Raises where Spark would read or divide rows otherwise, or does not start."""
        from ctr_pipeline.analysis.spark_connection import require_spark
        from ctr_pipeline.analysis.spark_rows import require_readable

        require_readable(config.data, source)
        require_spark(config.analysis or AnalysisConfig())

    def prepare(self, rows: RowsToCount) -> "_PreparedFiles":
        """Refuses types that SQL reads otherwise, and lists."""
        from ctr_pipeline.analysis.spark_rows import plan_tables

        tables = plan_tables(rows.config.data, rows.source, rows.columns)
        for table in tables.values():
            table.refuse_lists(rows.lists)
            table.check_types()
        return _PreparedFiles(rows, tables)


@dataclass(frozen=True)
class _PreparedFiles:
    rows: RowsToCount
    tables: "Mapping[str, CountedRows]"

    @property
    def fingerprint(self) -> str:
        return self.rows.origin

    @property
    def others(self) -> tuple[str, ...]:
        return tuple(split for split in self.tables if split != "train")

    def plan_scans(self) -> ScanPlan:
        """Lines are cut once and kept; of Parquet files a query reads the columns that it needs."""
        from ctr_pipeline.analysis.spark_engine import counting_queries

        is_text = self.rows.source.is_delimited
        return ScanPlan(
            engine="Spark",
            num_scans=1 if is_text else 1 + len(self.rows.columns),
            each="all lines, which Spark keeps" if is_text else "one column beside the label",
            size_bytes=self.rows.source.size_bytes,
            queries=tuple(counting_queries(self.tables["train"])),
        )

    @contextmanager
    def open(self, folder: Path, accept: AcceptLabels) -> "Iterator[SparkEngine]":
        """Starts Spark."""
        from ctr_pipeline.analysis.spark_connection import SparkConnection
        from ctr_pipeline.analysis.spark_engine import SparkEngine

        analysis = self.rows.config.analysis or AnalysisConfig()
        with ExitStack() as stack:
            with self.rows.progress.task(f"Spark {analysis.master}", total=None):
                connection = stack.enter_context(SparkConnection(analysis, folder))
            others = {split: self.tables[split] for split in self.others}
            yield SparkEngine(connection, self.tables["train"], others, accept)
