"""Statistics of the rows that were read, by DuckDB in this process."""

from collections.abc import Callable

from ctr_pipeline.analysis import collect_statistics
from ctr_pipeline.config.models import Config
from ctr_pipeline.dataset.source import Source
from ctr_pipeline.pipeline.resources import num_threads
from ctr_pipeline.pipeline.stages.statistics_engines.protocol import StatisticsRequest
from ctr_pipeline.statistics import Statistics


class DuckDbStatistics:
    """As `StatisticsEngine`."""

    def has_rows(self, source: Source) -> bool:
        """All rows are read onto this machine."""
        del source
        return True

    def check(self, config: Config, source: Source) -> None:
        """Whatever can be read can be counted."""

    def prepare(self, request: StatisticsRequest) -> Callable[[], Statistics]:
        """Other splits are compared in the same queries."""
        splits, runtime = request.ingested.splits, request.config.runtime
        others = {name: split.files for name, split in splits.items() if name != "train"}
        return lambda: collect_statistics(
            request.plan,
            splits["train"].files,
            request.folder,
            data_fingerprint=request.ingested.fingerprint,
            threads=num_threads(runtime),
            memory_limit_gb=runtime.memory_limit_gb,
            progress=request.progress,
            others=others if request.compare else {},
        )
