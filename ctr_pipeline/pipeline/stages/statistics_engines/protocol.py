"""What an engine of `specs.statistics_engines` does for a run."""

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ctr_pipeline.analysis.engine_protocol import AcceptLabels, Engine
from ctr_pipeline.config.models import Config
from ctr_pipeline.dataset.ingested import IngestedRows
from ctr_pipeline.dataset.source import Source
from ctr_pipeline.progress import Progress
from ctr_pipeline.specs.columns import ColumnType


@dataclass(frozen=True)
class RowsToCount:
    """Which columns are counted, and of which rows.

    Attributes:
        config: How rows are read and divided.
        source: Where they are.
        columns: The columns that features read, and how they are read.
        lists: Columns among them that hold lists.
        origin: Changes when the rows do.
        read: Reads all rows onto this machine, once.
        progress: Shows what an engine waits for.
    """

    config: Config
    source: Source
    columns: Mapping[str, ColumnType]
    lists: Collection[str]
    origin: str
    read: Callable[[], IngestedRows]
    progress: Progress


@dataclass(frozen=True)
class ScanPlan:
    """What an engine reads of a source.

    Attributes:
        engine: What reads, such as `MaxCompute`.
        num_scans: How often it reads the rows.
        each: What one scan reads.
        size_bytes: What all rows take where they are kept; 0 if that is not known.
        queries: The SQL of the scans.
        costs: What the service says of each query; empty if no service counts.
    """

    engine: str
    num_scans: int
    each: str
    size_bytes: int
    queries: tuple[str, ...] = ()
    costs: tuple[str, ...] = ()


class PreparedRows(Protocol):
    """Rows that an engine is ready to count."""

    @property
    def fingerprint(self) -> str:
        """Changes when the rows do; an engine that counts rows on this machine reads them."""

    @property
    def others(self) -> tuple[str, ...]:
        """The splits beside `train`."""

    def plan_scans(self) -> ScanPlan | None:
        """What will be read; None if the rows are read here for encoding anyway.

        Raises:
            DataError: The rows cannot be read.
            StatisticsError: The engine refuses the queries.
        """

    def open(self, folder: Path, accept: AcceptLabels) -> AbstractContextManager[Engine]:
        """Starts the engine.

        Args:
            folder: For intermediate results.
            accept: Is given the labels of all splits first, where rows are counted before they are
                read.
        """


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

    def prepare(self, rows: RowsToCount) -> PreparedRows:
        """Decides what to read; reads no row.

        Raises:
            DataError: The rows cannot be read or divided as they are here.
            StatisticsError: The engine cannot compute all that is asked for; with `auto`, the next
                one is asked then.
        """
