"""`render_report`: facts in, one HTML text out."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from ctr_pipeline.features import ColumnType
from ctr_pipeline.reporting.charts import calibration_chart, roc_chart
from ctr_pipeline.reporting.config_view import config_lines
from ctr_pipeline.reporting.data import BadRowExample, HistoryRow, ReportData
from ctr_pipeline.reporting.feature_view import MAX_DETAILED_FEATURES, feature_views
from ctr_pipeline.reporting.findings import decide_findings
from ctr_pipeline.reporting.formats import (
    bytes_text,
    count_text,
    duration_text,
    metric_text,
    percent_text,
    short_count,
    shorten,
    value_text,
    visible_text,
)
from ctr_pipeline.reporting.headline import (
    MODEL_TITLES,
    headline_cards,
    held_out,
    metric_rows,
    summary_sentence,
)
from ctr_pipeline.reporting.learning_view import auc_chart, loss_chart

_TEMPLATES = Path(__file__).parent / "templates"
_IMPORTANCE_SHOWN = 25
_LEFT_OUT_SHOWN = 200
_HISTORY_SHOWN = 400


@dataclass(frozen=True)
class Bar:
    """One bar of a list of bars; `width` is in percent of the longest."""

    name: str
    value: str
    detail: str
    width: float


@dataclass(frozen=True)
class BadExample:
    """One bad row as shown; `text` is None where it must stay hidden."""

    place: str
    column: str | None
    text: str | None


def render_report(data: ReportData) -> str:
    """One self-contained HTML page: no script, no request to anywhere, light and dark.

    Every text of the data is escaped, shortened and freed of control characters; values of
    sensitive columns are left out.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_clean,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        count=count_text,
        short_count=short_count,
        percent=percent_text,
        bytes=bytes_text,
        duration=duration_text,
        metric=metric_text,
        value=value_text,
        short=shorten,
    )
    style = Markup((_TEMPLATES / "report.css").read_text(encoding="utf-8"))  # noqa: S704 - our own file
    return environment.get_template("report.html.j2").render(style=style, **_page(data))


def _clean(value: object) -> object:
    """Control characters and lone surrogates must not reach the page from any expression."""
    return visible_text(value) if type(value) is str else value


def _page(data: ReportData) -> dict[str, Any]:
    """Everything that the template names."""
    held_out_name, held_out_result = held_out(data)
    features = feature_views(data)
    return {
        "data": data,
        "model_title": MODEL_TITLES.get(data.model, data.model),
        "created": _moment_text(data.created),
        "summary": summary_sentence(data),
        "cards": headline_cards(data),
        "findings": decide_findings(data),
        "metric_rows": metric_rows(data),
        "splits": _split_bars(data),
        "loss_chart": loss_chart(data),
        "auc_chart": auc_chart(data),
        "history": _history_shown(data.history),
        "held_out_name": held_out_name,
        "result": held_out_result,
        "roc": _roc(data),
        "calibration": None
        if held_out_result is None
        else calibration_chart(
            held_out_result.calibration_bins,
            label="Observed click rate against predicted probability",
        ),
        "importance": _importance_bars(data),
        "importance_shown": _IMPORTANCE_SHOWN,
        "feature_groups": [
            (title, group)
            for title, kind in (("Numbers", ColumnType.NUMBER), ("Texts", ColumnType.TEXT))
            if (group := [view for view in features if view.kind == kind])
        ],
        "max_detailed": MAX_DETAILED_FEATURES,
        "left_out": data.left_out[:_LEFT_OUT_SHOWN],
        "bad_rows": [
            (rows, [_bad_example(example, data.sensitive_columns) for example in rows.examples[:5]])
            for rows in data.bad_rows
        ],
        "num_bad_rows": sum(rows.count for rows in data.bad_rows),
        "timings": _timing_bars(data),
        "total_seconds": sum(timing.seconds for timing in data.timings),
        "config": config_lines(data.config_yaml),
    }


def _moment_text(moment: datetime) -> str:
    zone = moment.strftime("%Z")
    return f"{moment.day} {moment.strftime('%B %Y, %H:%M')} {zone}".rstrip()


def _split_bars(data: ReportData) -> list[tuple[str, int, float | None, float]]:
    """Name, rows, click rate and share of all rows."""
    total = sum(split.num_rows for split in data.splits) or 1
    return [
        (split.name, split.num_rows, split.label_rate, split.num_rows / total)
        for split in data.splits
    ]


def _history_shown(history: tuple[HistoryRow, ...]) -> list[HistoryRow]:
    """Rows with a validation, or all if there are few; never more than fit a page."""
    rows = list(history)
    if len(rows) > 60:
        rows = [row for row in rows if row.valid_logloss is not None] or rows
    return rows[-_HISTORY_SHOWN:]


def _roc(data: ReportData) -> Markup | None:
    curves = []
    if data.test is not None and data.valid is not None:
        curves.append(("second", data.valid.roc))
    _, result = held_out(data)
    if result is None:
        return None
    curves.append(("model", result.roc))
    return roc_chart(curves, label="True positive rate against false positive rate")


def _importance_bars(data: ReportData) -> list[Bar]:
    rows = sorted(data.importance, key=lambda row: (-row.auc_drop, row.feature))
    longest = max([row.auc_drop for row in rows], default=0.0) or 1.0
    return [
        Bar(
            name=shorten(row.feature, 60),
            value=f"{row.auc_drop:+.4f}".replace("-", "−"),
            detail=f"{row.logloss_rise:+.4f}".replace("-", "−"),
            width=round(max(0.0, 100 * row.auc_drop / longest), 1),
        )
        for row in rows
    ]


def _timing_bars(data: ReportData) -> list[Bar]:
    total = sum(timing.seconds for timing in data.timings) or 1.0
    return [
        Bar(
            name=shorten(timing.stage, 40),
            value=duration_text(timing.seconds),
            detail=percent_text(timing.seconds / total, 0),
            width=round(100 * timing.seconds / total, 2),
        )
        for timing in data.timings
    ]


def _bad_example(example: BadRowExample, sensitive: frozenset[str]) -> BadExample:
    """The example without its text, where that may hold a sensitive value."""
    hidden = bool(sensitive) if example.column is None else example.column in sensitive
    return BadExample(
        place=shorten(example.place, 120),
        column=None if example.column is None else shorten(example.column, 60),
        text=None if hidden else shorten(example.text, 160),
    )
