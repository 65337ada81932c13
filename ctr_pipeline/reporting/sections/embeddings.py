"""Embedding tables of a job, by their bytes, and the load of the partitions that hold them."""

from collections.abc import Sequence
from dataclasses import dataclass

from ctr_pipeline.distributed.master.status import TableUse
from ctr_pipeline.reporting.bars import Bar
from ctr_pipeline.reporting.charts import Column, column_chart
from ctr_pipeline.reporting.data import ReportData
from ctr_pipeline.reporting.formats import (
    bytes_text,
    count_text,
    short_count,
    shorten,
)
from ctr_pipeline.reporting.section import PageSection

REPORT_POSITION = 114
LIVE_POSITION = 40

_TABLES_SHOWN = 15
"""Tables that are shown before one asks for more."""

_FEATURES_NAMED = 6


@dataclass(frozen=True)
class ServerLoad:
    """What one parameter server holds and serves.

    Attributes:
        pulled: Keys asked for so far.
        share: Its part of all of them.
    """

    name: str
    num_partitions: int
    rows: int
    row_bytes: int
    pulled: int
    share: float


def section(data: ReportData) -> PageSection | None:
    """None if no parameter server has told what it holds."""
    job = data.job
    if job is None:
        return None
    servers = [
        (one.name, one.stats.loads)
        for one in job.members
        if one.role == "ps" and one.stats is not None and one.stats.loads is not None
    ]
    if not servers:
        return None
    total = sum(sum(loads.pulled_keys) for _, loads in servers)
    loads_of = [
        ServerLoad(
            name=name,
            num_partitions=len(loads.partitions),
            rows=sum(loads.rows),
            row_bytes=sum(loads.row_bytes),
            pulled=sum(loads.pulled_keys),
            share=sum(loads.pulled_keys) / max(1, total),
        )
        for name, loads in servers
    ]
    columns = [
        Column(
            value=pulled,
            group=number % 2,
            text=f"partition {partition} on {name}: {count_text(pulled)} keys asked for, "
            f"{count_text(rows)} rows, {bytes_text(num_bytes)}",
        )
        for number, (name, loads) in enumerate(servers)
        for partition, rows, num_bytes, pulled in zip(
            loads.partitions, loads.rows, loads.row_bytes, loads.pulled_keys, strict=True
        )
    ]
    hottest = max((one.value for one in columns), default=0)
    values = {
        "tables": _table_bars(job.tables),
        "tables_shown": _TABLES_SHOWN,
        "servers": loads_of,
        "num_partitions": len(columns),
        "hottest": hottest * len(columns) / total if total else None,
        "chart": column_chart(columns, label="Keys asked for, by partition") if total else None,
    }
    return PageSection("embeddings", "Embeddings", "embeddings.html.j2", values)


def _table_bars(tables: Sequence[TableUse]) -> list[Bar]:
    """The largest tables first, each with its features."""
    largest = sorted(tables, key=lambda one: (-one.row_bytes, one.name))
    longest = max((one.row_bytes for one in largest), default=0) or 1
    return [
        Bar(
            name=_name(one),
            value=bytes_text(one.row_bytes),
            detail=short_count(one.rows),
            width=round(100 * one.row_bytes / longest, 2),
        )
        for one in largest
    ]


def _name(table: TableUse) -> str:
    features = [shorten(name, 40) for name in table.features[:_FEATURES_NAMED]]
    if len(table.features) > _FEATURES_NAMED:
        features.append(f"{len(table.features) - _FEATURES_NAMED} more")
    if len(features) == 1 and features[0] == table.name:
        return features[0]
    return f"{shorten(table.name, 40)}: {', '.join(features)}"
