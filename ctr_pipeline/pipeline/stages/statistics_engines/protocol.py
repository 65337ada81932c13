"""What an engine of `specs.statistics_engines` does for a run."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ctr_pipeline.analysis import StatisticsPlan
from ctr_pipeline.config.models import Config
from ctr_pipeline.dataset.ingested import IngestedRows
from ctr_pipeline.dataset.source import Source
from ctr_pipeline.progress import Progress
from ctr_pipeline.statistics import Statistics


@dataclass(frozen=True)
class StatisticsRequest:
    """Which statistics are computed of which rows.

    Attributes:
        plan: What to compute.
        source: Where the rows are.
        ingested: The same rows, read.
        folder: Where `statistics.json` and `vocabularies/` go.
        compare: Whether the other splits are compared with the training rows.
        progress: Advances by each column.
    """

    plan: StatisticsPlan
    config: Config
    source: Source
    ingested: IngestedRows
    folder: Path
    compare: bool
    progress: Progress


class StatisticsEngine(Protocol):
    """Computes statistics; made without arguments."""

    def has_rows(self, source: Source) -> bool:
        """Whether the rows are where the engine computes; `auto` does not move them there."""

    def check(self, config: Config, source: Source) -> None:
        """Raises before rows are read what could be raised after.

        Raises:
            DataError: The engine would not read or divide the rows as they are read here.
            StatisticsError: The engine cannot be used.
        """

    def prepare(self, request: StatisticsRequest) -> Callable[[], Statistics]:
        """Returns what computes the statistics.

        Raises:
            DataError: The rows are not those that were read.
            StatisticsError: The engine cannot compute all that is asked for; with `auto`, the next
                one is asked then.
        """
