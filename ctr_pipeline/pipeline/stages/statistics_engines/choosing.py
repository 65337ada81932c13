"""Which engine computes the statistics of a run."""

from importlib import import_module

from ctr_pipeline.config.models import Config
from ctr_pipeline.dataset.source import Source
from ctr_pipeline.errors import StatisticsError
from ctr_pipeline.pipeline.stages.statistics_engines.protocol import (
    StatisticsEngine,
    StatisticsRequest,
)
from ctr_pipeline.specs.statistics_engines import STATISTICS_ENGINES, StatisticsEngineKind
from ctr_pipeline.statistics import Statistics


def check_engine(config: Config, source: Source) -> None:
    """Checks, before rows are read, the engine that is asked first.

    Raises:
        DataError: It would not read or divide the rows as they are read here.
        StatisticsError: It cannot be used.
    """
    _, engine = _candidates(config, source)[0]
    engine.check(config, source)


def compute_statistics(request: StatisticsRequest) -> Statistics:
    """The statistics by the engine that the config names, or by the first that can.

    Raises:
        DataError: The rows are not those that were read, or cannot be read.
        StatisticsError: The engine cannot compute what is asked for, or fails.
        RunFolderError: The folder cannot be written.
    """
    *others, (_, last) = _candidates(request.config, request.source)
    for kind, engine in others:
        try:
            compute = engine.prepare(request)
        except StatisticsError as error:
            request.progress.log(
                f"Statistics are not computed by {kind.title}: {error.place}: {error.message}"
            )
        else:
            return compute()
    return last.prepare(request)()


def _candidates(
    config: Config, source: Source
) -> list[tuple[StatisticsEngineKind, StatisticsEngine]]:
    """The engine that the config names, or those to ask in order."""
    named = "auto" if config.analysis is None else config.analysis.engine
    if named != "auto":
        kind = STATISTICS_ENGINES[named]
        return [(kind, _open(kind))]
    automatic = [(kind, _open(kind)) for kind in STATISTICS_ENGINES.values() if kind.is_automatic]
    return [(kind, engine) for kind, engine in automatic if engine.has_rows(source)]


def _open(kind: StatisticsEngineKind) -> StatisticsEngine:
    module, _, name = kind.code.partition(":")
    engine: StatisticsEngine = getattr(import_module(module), name)()
    return engine
