"""Which engine computes the statistics of a run."""

from collections.abc import Mapping
from importlib import import_module

from ctr_pipeline.config.models import Config
from ctr_pipeline.dataset.source import Source
from ctr_pipeline.errors import StatisticsError
from ctr_pipeline.pipeline.stages.statistics_engines.protocol import (
    PreparedRows,
    RowsToCount,
    StatisticsEngine,
)
from ctr_pipeline.specs.statistics_engines import STATISTICS_ENGINES, StatisticsEngineKind


def check_engine(config: Config, source: Source) -> None:
    """Checks, before rows are read, the engine that is asked first.

    Raises:
        DataError: It would not read or divide the rows as they are read here.
        StatisticsError: It cannot be used.
    """
    _, engine = _candidates(config, source, STATISTICS_ENGINES)[0]
    engine.check(config, source)


def prepare_engine(
    rows: RowsToCount, engines: Mapping[str, StatisticsEngineKind] = STATISTICS_ENGINES
) -> PreparedRows:
    """Prepares the engine that the config names, or the first that can compute what is asked for.

    Args:
        rows: What is counted.
        engines: Engines, by the name that `analysis.engine` gives.

    Raises:
        DataError: The rows cannot be read or divided.
        StatisticsError: The engine cannot compute what is asked for.
    """
    *others, (_, last) = _candidates(rows.config, rows.source, engines)
    for kind, engine in others:
        try:
            return engine.prepare(rows)
        except StatisticsError as error:
            rows.progress.log(
                f"Statistics are not computed by {kind.title}: {error.place}: {error.message}"
            )
    return last.prepare(rows)


def _candidates(
    config: Config, source: Source, engines: Mapping[str, StatisticsEngineKind]
) -> list[tuple[StatisticsEngineKind, StatisticsEngine]]:
    """The engine that the config names, or those to ask in order."""
    named = "auto" if config.analysis is None else config.analysis.engine
    if named != "auto":
        kind = engines[named]
        return [(kind, open_engine(kind))]
    automatic = [(kind, open_engine(kind)) for kind in engines.values() if kind.is_automatic]
    return [(kind, engine) for kind, engine in automatic if engine.has_rows(source)]


def open_engine(kind: StatisticsEngineKind) -> StatisticsEngine:
    """An engine of that kind; its module is imported only now."""
    module, _, name = kind.code.partition(":")
    engine: StatisticsEngine = getattr(import_module(module), name)()
    return engine
