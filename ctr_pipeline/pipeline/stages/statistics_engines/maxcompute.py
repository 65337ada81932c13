"""Statistics of training rows that are in tables of MaxCompute, by the service that holds them."""

import tempfile
from pathlib import Path

from ctr_pipeline.analysis import StatisticsPlan, collect_statistics, collect_statistics_with
from ctr_pipeline.analysis.aggregates import plan_profile
from ctr_pipeline.analysis.collect import STATISTICS_FILE
from ctr_pipeline.config.models import DataConfig, RuntimeConfig
from ctr_pipeline.dataset.formats.maxcompute.source import MaxComputeTable
from ctr_pipeline.dataset.ingested import IngestedRows
from ctr_pipeline.dataset.source import Source
from ctr_pipeline.errors import StatisticsError
from ctr_pipeline.pipeline.resources import num_threads
from ctr_pipeline.progress import Progress
from ctr_pipeline.statistics import Statistics, save_statistics


def collect_maxcompute_statistics(
    plan: StatisticsPlan,
    data: DataConfig,
    source: Source,
    ingested: IngestedRows,
    folder: Path,
    *,
    memory_limit_gb: float,
    progress: Progress,
) -> Statistics | None:
    """Statistics of the training rows by MaxCompute, if they are in tables of it.

    Args:
        plan: What to compute.
        data: How rows are read.
        source: Where they are.
        ingested: The same rows, read; both must have as many, with as many clicks.
        folder: The run folder.
        memory_limit_gb: Memory of what is computed here, in 10^9 bytes.
        progress: Advances by each column; shows why MaxCompute is not asked.

    Returns:
        None if the rows are in files, or a column's type in the table is not the one it is read as,
        or labels are not 0 and 1, or rows are in more tables than a query combines: then the
        ingested rows are counted here, with the same result.

    Raises:
        DataError: The table changed since its rows were read, or may not be read.
        StatisticsError: A query fails.
        RunFolderError: The folder cannot be written.
    """
    tables = [source.opened[place] for place in source.files["train"]]
    sources = [table for table in tables if isinstance(table, MaxComputeTable)]
    if not sources:
        return None
    if data.positive is not None:
        progress.log("Statistics are computed here, not by MaxCompute: data.positive is read here")
        return None
    from ctr_pipeline.analysis.engine_protocol import LabelCounts
    from ctr_pipeline.analysis.maxcompute_engine import MaxComputeEngine, plan_sources
    from ctr_pipeline.analysis.table_sql import TrainingTable

    missing = tuple(dict.fromkeys(("", *data.missing_values)))
    try:
        table = TrainingTable(
            label=data.label,
            sources=plan_sources(sources, missing),
            skip_bad_labels=data.bad_rows == "skip",
            weight=data.weight,
        )
        table.check(plan)
    except StatisticsError as error:
        progress.log(f"Statistics are computed here, not by MaxCompute: {error.message}")
        return None
    rows = ingested.splits["train"]
    expected = LabelCounts(rows.num_rows, rows.num_positive)
    return collect_statistics_with(
        lambda _: MaxComputeEngine(sources[0].client, table, expected),
        plan,
        folder,
        data_fingerprint=ingested.fingerprint,
        progress=progress,
        memory_limit_gb=memory_limit_gb,
    )


def add_drift(
    statistics: Statistics,
    plan: StatisticsPlan,
    ingested: IngestedRows,
    folder: Path,
    *,
    runtime: RuntimeConfig,
    progress: Progress,
) -> Statistics:
    """The statistics of a service with the drift of the other splits, which it does not count.

    All rows are here as well, so the training rows are counted once more beside the others; what
    the service found stays as it is. Statistics that have a drift already are left alone.

    Args:
        statistics: Statistics of the training rows.
        plan: What was asked of the service.
        ingested: All rows, read.
        folder: The run folder, where the statistics are kept.
        runtime: Threads and memory.
        progress: Advances by each column.

    Raises:
        StatisticsError: Memory and disk do not suffice.
        RunFolderError: The folder cannot be written.
    """
    others = {name: split.files for name, split in ingested.splits.items() if name != "train"}
    if statistics.drift or not others:
        return statistics
    progress.log("Comparing the other splits with the training rows on this machine")
    with tempfile.TemporaryDirectory(prefix=".drift-", dir=folder) as name:
        counted = collect_statistics(
            plan_profile(plan),
            ingested.splits["train"].files,
            Path(name),
            data_fingerprint=ingested.fingerprint,
            threads=num_threads(runtime),
            memory_limit_gb=runtime.memory_limit_gb,
            progress=progress,
            others=others,
        )
    found = statistics.model_copy(update={"drift": counted.drift})
    save_statistics(folder / STATISTICS_FILE, found)
    return found
