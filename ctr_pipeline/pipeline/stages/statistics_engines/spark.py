"""Statistics of training rows that are in files, by Spark."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ctr_pipeline.analysis import StatisticsPlan, collect_statistics_with
from ctr_pipeline.config.models import AnalysisConfig, Config
from ctr_pipeline.dataset.ingested import IngestedRows
from ctr_pipeline.dataset.source import Source
from ctr_pipeline.errors import DataError
from ctr_pipeline.progress import Progress
from ctr_pipeline.statistics import Statistics


def spark_of(config: Config) -> AnalysisConfig | None:
    """Which Spark computes the statistics; None if none does."""
    analysis = config.analysis
    return analysis if analysis is not None and analysis.engine == "spark" else None


def require_spark_for(config: Config, source: Source) -> None:
    """Raises before rows are read what would else be raised after; nothing without Spark.

    Raises:
        DataError: Spark would not read or divide the rows as they are read here.
        StatisticsError: Spark cannot be asked.
    """
    analysis = spark_of(config)
    if analysis is None:
        return
    from ctr_pipeline.analysis.spark_connection import require_spark
    from ctr_pipeline.analysis.spark_rows import require_readable

    require_readable(config.data, source)
    require_spark(analysis)


def collect_spark_statistics(
    plan: StatisticsPlan,
    config: Config,
    analysis: AnalysisConfig,
    source: Source,
    ingested: IngestedRows,
    *,
    folder: Path,
    compare: bool,
    progress: Progress,
) -> Statistics:
    """Statistics of the training rows by Spark.

    Args:
        plan: What to compute.
        config: How rows are read and divided.
        analysis: How to reach Spark.
        source: The files.
        ingested: The same rows, read; both must have as many, with as many clicks.
        folder: The run folder.
        compare: Whether the other splits are compared with the training rows.
        progress: Advances by each column.

    Raises:
        DataError: Rows were left out as bad, or files changed since they were read.
        StatisticsError: Spark does not start, or a query fails.
        RunFolderError: The folder cannot be written.
    """
    from ctr_pipeline.analysis.engine_protocol import LabelCounts
    from ctr_pipeline.analysis.spark_connection import SparkConnection
    from ctr_pipeline.analysis.spark_engine import CountedRows, SparkEngine
    from ctr_pipeline.analysis.spark_rows import plan_tables

    if ingested.bad_rows.total:
        raise DataError(
            f"bad rows were left out ({ingested.bad_rows.total}), and Spark would not leave out "
            "the same ones",
            place="analysis.engine",
            remedy="Mend or remove them, or leave analysis out",
        )
    splits = ingested.splits
    tables = plan_tables(
        config.data, source, {name: split.num_rows for name, split in splits.items()}
    )
    rows = {
        name: CountedRows(table, LabelCounts(splits[name].num_rows, splits[name].num_positive))
        for name, table in tables.items()
        if name == "train" or compare
    }
    train = rows.pop("train")
    train.table.check(plan)

    @contextmanager
    def open_engine(spill_folder: Path) -> Iterator[SparkEngine]:
        with ExitStack() as stack:
            with progress.task(f"Spark {analysis.master}", total=None):
                connection = stack.enter_context(SparkConnection(analysis, spill_folder))
            yield SparkEngine(connection, train, rows)

    return collect_statistics_with(
        open_engine,
        plan,
        folder,
        data_fingerprint=ingested.fingerprint,
        progress=progress,
        memory_limit_gb=config.runtime.memory_limit_gb,
        compared=tuple(rows),
    )
