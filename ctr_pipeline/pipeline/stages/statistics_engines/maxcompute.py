"""Statistics of rows that are in tables of MaxCompute, by the service that holds them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ctr_pipeline.analysis.engine_protocol import AcceptLabels
from ctr_pipeline.config.models import Config
from ctr_pipeline.dataset.formats.maxcompute.reading import MaxComputeTable
from ctr_pipeline.dataset.formats.maxcompute.table import HashRange
from ctr_pipeline.dataset.key_values import as_kept
from ctr_pipeline.dataset.source import Source
from ctr_pipeline.dataset.splits import SPLITS, plan_hash_ranges, shares_of
from ctr_pipeline.dataset.value_sql import typed_value
from ctr_pipeline.dataset.value_texts import missing_texts
from ctr_pipeline.errors import StatisticsError
from ctr_pipeline.pipeline.stages.statistics_engines.protocol import RowsToCount, ScanPlan
from ctr_pipeline.specs.columns import ColumnType

if TYPE_CHECKING:
    from ctr_pipeline.analysis.maxcompute_engine import MaxComputeEngine
    from ctr_pipeline.analysis.table_sql import CountedRows
    from ctr_pipeline.dataset.formats.maxcompute.client import MaxComputeClient


class MaxComputeStatistics:
    """As `StatisticsEngine`."""

    def has_rows(self, source: Source) -> bool:
        """Whether the training rows are in tables of MaxCompute."""
        return bool(_tables(source, "train"))

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

    def prepare(self, rows: RowsToCount) -> "_PreparedTables":
        """Refuses labels that are not 0 and 1, types that SQL reads otherwise, and lists."""
        from ctr_pipeline.analysis.maxcompute_engine import plan_sources
        from ctr_pipeline.analysis.table_sql import CountedRows

        data = rows.config.data
        if data.positive is not None:
            raise StatisticsError(
                "makes labels while rows are read",
                place="data.positive",
                remedy="Leave analysis out, or have a column of 0 and 1 in the table",
            )
        if data.key_value is not None:
            # A number would be the CAST of a text, whose digits in front are taken if it is no
            # number as MaxCompute knows it, unless the project has odps.function.strictmode:
            # https://www.alibabacloud.com/help/en/document_detail/455502.html. Of several
            # separators in a pair, KEYVALUE may return anything:
            # https://www.alibabacloud.com/help/en/maxcompute/user-guide/keyvalue
            raise StatisticsError(
                "makes columns while rows are read",
                place="data.key_value",
                remedy="Leave analysis out, or have the keys as columns of the table",
            )
        splits = {split: _tables(rows.source, split) for split in SPLITS}
        splits = _divided(rows, {split: tables for split, tables in splits.items() if tables})
        counted = CountedRows(
            data.label,
            rows.columns,
            plan_sources(list(splits.values()), missing_texts(data.missing_values)),
            weight=data.weight,
        )
        counted.refuse_lists(rows.lists)
        counted.check_types()
        others = tuple(split for split in splits if split != "train")
        return _PreparedTables(rows, splits["train"][0].client, counted, others)


@dataclass(frozen=True)
class _PreparedTables:
    rows: RowsToCount
    client: "MaxComputeClient"
    counted: "CountedRows"
    others: tuple[str, ...]

    @property
    def fingerprint(self) -> str:
        return self.rows.origin

    def plan_scans(self) -> ScanPlan:
        """Asks the service what each scan costs."""
        from ctr_pipeline.analysis.maxcompute_engine import COLUMNS_A_SCAN, counting_queries

        queries = counting_queries(self.counted)
        costs = tuple(self.client.cost_of(query) for query in queries)
        return ScanPlan(
            engine="MaxCompute",
            num_scans=len(queries),
            each=f"up to {COLUMNS_A_SCAN} columns of all splits",
            size_bytes=self.rows.source.size_bytes,
            queries=tuple(queries),
            costs=costs,
        )

    def open(self, folder: Path, accept: AcceptLabels) -> "MaxComputeEngine":
        """Nothing is kept in the folder."""
        from ctr_pipeline.analysis.maxcompute_engine import MaxComputeEngine

        del folder
        return MaxComputeEngine(self.client, self.counted, self.others, accept)


def _divided(
    rows: RowsToCount, tables: Mapping[str, list[MaxComputeTable]]
) -> dict[str, list[MaxComputeTable]]:
    """The tables of each split; those of data.train are divided as where their rows are read."""
    data = rows.config.data
    shares = shares_of(data.split, tables)
    if shares.splits == ("train",):
        return dict(tables)
    column, schema = data.split.column, tables["train"][0].schema
    if data.split.by == "time" or column is None:
        raise StatisticsError(
            "divides rows by times, which are compared where rows are read",
            place="data.split.by",
            remedy="Leave analysis out, divide rows by: hash, or name tables or partitions in "
            "data.valid and data.test",
        )
    kind, read_as = schema.field(column).type, rows.columns.get(column, ColumnType.TEXT)
    missing = missing_texts(data.missing_values)
    if read_as is not ColumnType.TEXT or typed_value(column, kind, read_as, missing) is None:
        what = "read as a number" if read_as is ColumnType.NUMBER else f"of the type {kind}"
        raise StatisticsError(
            f"is {what}, which MaxCompute writes otherwise than it is hashed where rows are read",
            place=f"data.split.column '{column}'",
            remedy="Leave analysis out, or divide rows by a column of texts or whole numbers that "
            "is no number feature",
        )
    found = dict(tables)
    for split, hashes in plan_hash_ranges(shares).items():
        chosen = HashRange(((column, kind),), None, hashes, missing)
        found[split] = [
            replace(one, path=replace(one.path, chosen=chosen)) for one in tables["train"]
        ]
    return {split: found[split] for split in SPLITS if split in found}


def _tables(source: Source, split: str) -> list[MaxComputeTable]:
    opened = [as_kept(source.opened[place]) for place in source.files.get(split, ())]
    return [table for table in opened if isinstance(table, MaxComputeTable)]
