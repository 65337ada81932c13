"""Statistics of training rows that are in tables of MaxCompute, by the service that holds them."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from ctr_pipeline.analysis import collect_statistics, collect_statistics_with
from ctr_pipeline.analysis.collect import STATISTICS_FILE
from ctr_pipeline.analysis.statistics_plan import plan_profile
from ctr_pipeline.config.models import Config
from ctr_pipeline.dataset.formats.maxcompute.source import MaxComputeTable
from ctr_pipeline.dataset.source import Source
from ctr_pipeline.errors import StatisticsError
from ctr_pipeline.pipeline.resources import num_threads
from ctr_pipeline.pipeline.stages.statistics_engines.protocol import StatisticsRequest
from ctr_pipeline.statistics import Statistics, save_statistics


class MaxComputeStatistics:
    """As `StatisticsEngine`."""

    def has_rows(self, source: Source) -> bool:
        """Whether the training rows are in tables of MaxCompute."""
        return bool(_tables(source))

    def check(self, config: Config, source: Source) -> None:
        """Raises StatisticsError if the rows are elsewhere."""
        del config
        if not self.has_rows(source):
            raise StatisticsError(
                "is maxcompute, which computes on its own tables, and the training rows are no "
                "table of it",
                place="analysis.engine",
                remedy="Leave analysis out, or name a table as odps://PROJECT/TABLE",
            )

    def prepare(self, request: StatisticsRequest) -> Callable[[], Statistics]:
        """Refuses labels that are not 0 and 1, types that SQL reads otherwise, and lists."""
        from ctr_pipeline.analysis.engine_protocol import LabelCounts
        from ctr_pipeline.analysis.maxcompute_engine import MaxComputeEngine, plan_sources
        from ctr_pipeline.analysis.table_sql import TrainingTable

        data, ingested = request.config.data, request.ingested
        if data.positive is not None:
            raise StatisticsError(
                "makes labels while rows are read",
                place="data.positive",
                remedy="Leave analysis out, or have a column of 0 and 1 in the table",
            )
        sources = _tables(request.source)
        missing = tuple(dict.fromkeys(("", *data.missing_values)))
        table = TrainingTable(
            label=data.label,
            sources=plan_sources(sources, missing),
            skip_bad_labels=data.bad_rows == "skip",
            weight=data.weight,
        )
        table.check(request.plan)
        rows = ingested.splits["train"]
        expected = LabelCounts(rows.num_rows, rows.num_positive)

        def compute() -> Statistics:
            found = collect_statistics_with(
                lambda _: MaxComputeEngine(sources[0].client, table, expected),
                request.plan,
                request.folder,
                data_fingerprint=ingested.fingerprint,
                progress=request.progress,
                memory_limit_gb=request.config.runtime.memory_limit_gb,
            )
            return _with_drift(found, request) if request.compare else found

        return compute


def _tables(source: Source) -> list[MaxComputeTable]:
    opened = [source.opened[place] for place in source.files["train"]]
    return [table for table in opened if isinstance(table, MaxComputeTable)]


def _with_drift(statistics: Statistics, request: StatisticsRequest) -> Statistics:
    """The statistics with the drift of the other splits, which the service does not count.

    All rows are here as well, so the training rows are counted once more beside the others; what
    the service found stays as it is. Statistics that have a drift already are left alone.
    """
    splits, runtime = request.ingested.splits, request.config.runtime
    others = {name: split.files for name, split in splits.items() if name != "train"}
    if statistics.drift or not others:
        return statistics
    request.progress.log("Comparing the other splits with the training rows on this machine")
    with tempfile.TemporaryDirectory(prefix=".drift-", dir=request.folder) as name:
        counted = collect_statistics(
            plan_profile(request.plan),
            splits["train"].files,
            Path(name),
            data_fingerprint=request.ingested.fingerprint,
            threads=num_threads(runtime),
            memory_limit_gb=runtime.memory_limit_gb,
            progress=request.progress,
            others=others,
        )
    found = statistics.model_copy(update={"drift": counted.drift})
    save_statistics(request.folder / STATISTICS_FILE, found)
    return found
