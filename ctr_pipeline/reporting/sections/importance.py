"""The loss of held-out AUC when one column is shuffled."""

from typing import Any

from ctr_pipeline.evaluation.importance import ImportanceRow
from ctr_pipeline.reporting.axes import Scale
from ctr_pipeline.reporting.bars import Bar
from ctr_pipeline.reporting.data import ReportData
from ctr_pipeline.reporting.formats import shorten
from ctr_pipeline.reporting.headline import held_out
from ctr_pipeline.reporting.section import PageSection

REPORT_POSITION = 40

_SHOWN = 25
"""Columns that are shown before one asks for more."""


def section(data: ReportData) -> PageSection | None:
    """None if importance was not measured."""
    if not data.importance:
        return None
    values = {
        "held_out_name": held_out(data)[0],
        "importance": _importance_bars(data),
        "importance_repeats": max(row.repeats for row in data.importance),
        "importance_shown": _SHOWN,
    }
    return PageSection("importance", "Importance", "importance.html.j2", values)


def _importance_bars(data: ReportData) -> list[Bar]:
    rows = sorted(data.importance, key=lambda row: (-row.auc_drop, row.feature))
    longest = max([row.auc_drop + (row.auc_drop_std or 0.0) for row in rows], default=0.0)
    at = Scale(0.0, longest if longest > 0 else 1.0, 0.0, 100.0)
    return [
        Bar(
            name=shorten(row.feature, 60),
            value=f"{row.auc_drop:+.4f}".replace("-", "−"),
            detail=f"{row.logloss_rise:+.4f}".replace("-", "−"),
            width=max(0.0, at(row.auc_drop)),
            **_spread(row, at),
        )
        for row in rows
    ]


def _spread(row: ImportanceRow, at: Scale) -> dict[str, Any]:
    """One standard deviation to both sides of a bar's end, as far as it is on the rail."""
    if row.auc_drop_std is None:
        return {}
    ends = [max(0.0, at(row.auc_drop + sign * row.auc_drop_std)) for sign in (-1, 1)]
    return {
        "spread": (ends[0], round(ends[1] - ends[0], 1)),
        "spread_text": f"± {row.auc_drop_std:.4f} over {row.repeats} shuffles",
    }
