"""Statistics of the rows that were read, by DuckDB in this process."""

from dataclasses import dataclass
from pathlib import Path

from ctr_pipeline.analysis.engine_protocol import AcceptLabels
from ctr_pipeline.analysis.part_engine import PartEngine
from ctr_pipeline.config.models import Config
from ctr_pipeline.dataset.source import Source
from ctr_pipeline.pipeline.resources import num_threads
from ctr_pipeline.pipeline.stages.statistics_engines.protocol import RowsToCount


class DuckDbStatistics:
    """As `StatisticsEngine`."""

    def has_rows(self, source: Source) -> bool:
        """All rows are read onto this machine."""
        del source
        return True

    def check(self, config: Config, source: Source) -> None:
        """Whatever can be read can be counted."""

    def prepare(self, rows: RowsToCount) -> "_PreparedParts":
        """As `StatisticsEngine.prepare`."""
        return _PreparedParts(rows)


@dataclass(frozen=True)
class _PreparedParts:
    rows: RowsToCount

    @property
    def fingerprint(self) -> str:
        return self.rows.read().fingerprint

    @property
    def others(self) -> tuple[str, ...]:
        return tuple(split for split in self.rows.read().splits if split != "train")

    def plan_scans(self) -> None:
        """None: rows are read here for encoding anyway."""

    def open(self, folder: Path, accept: AcceptLabels) -> PartEngine:
        """Ingest has refused what `accept` would."""
        del accept
        splits, runtime = self.rows.read().splits, self.rows.config.runtime
        return PartEngine(
            splits["train"].files,
            spill_folder=folder,
            threads=num_threads(runtime),
            memory_limit_gb=runtime.memory_limit_gb,
            others={split: splits[split].files for split in self.others},
        )
