"""Statistics of training rows that are in files, by Spark."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ctr_pipeline.analysis import collect_statistics_with
from ctr_pipeline.config.models import AnalysisConfig, Config
from ctr_pipeline.dataset.source import Source
from ctr_pipeline.errors import DataError
from ctr_pipeline.pipeline.stages.statistics_engines.protocol import StatisticsRequest
from ctr_pipeline.statistics import Statistics


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

    def prepare(self, request: StatisticsRequest) -> Callable[[], Statistics]:
        """Refuses rows of which bad ones were left out; other splits are compared by Spark."""
        from ctr_pipeline.analysis.engine_protocol import LabelCounts
        from ctr_pipeline.analysis.spark_connection import SparkConnection
        from ctr_pipeline.analysis.spark_engine import CountedRows, SparkEngine
        from ctr_pipeline.analysis.spark_rows import plan_tables

        config, ingested = request.config, request.ingested
        analysis = config.analysis or AnalysisConfig()
        if ingested.bad_rows.total:
            raise DataError(
                f"bad rows were left out ({ingested.bad_rows.total}), and Spark would not leave "
                "out the same ones",
                place="analysis.engine",
                remedy="Mend or remove them, or leave analysis out",
            )
        splits = ingested.splits
        tables = plan_tables(
            config.data, request.source, {name: split.num_rows for name, split in splits.items()}
        )
        rows = {
            name: CountedRows(table, LabelCounts(splits[name].num_rows, splits[name].num_positive))
            for name, table in tables.items()
            if name == "train" or request.compare
        }
        train = rows.pop("train")
        train.table.check(request.plan)

        @contextmanager
        def open_engine(spill_folder: Path) -> Iterator[SparkEngine]:
            with ExitStack() as stack:
                with request.progress.task(f"Spark {analysis.master}", total=None):
                    connection = stack.enter_context(SparkConnection(analysis, spill_folder))
                yield SparkEngine(connection, train, rows)

        return lambda: collect_statistics_with(
            open_engine,
            request.plan,
            request.folder,
            data_fingerprint=ingested.fingerprint,
            progress=request.progress,
            memory_limit_gb=config.runtime.memory_limit_gb,
            compared=tuple(rows),
        )
