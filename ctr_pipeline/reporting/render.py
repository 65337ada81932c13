"""`render_report`: facts in, one HTML text out."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from ctr_pipeline.evaluation.importance import ImportanceRow
from ctr_pipeline.features import ColumnType
from ctr_pipeline.models.registry import title_of
from ctr_pipeline.reporting.axes import Scale
from ctr_pipeline.reporting.bars import Bar
from ctr_pipeline.reporting.charts import calibration_chart, roc_chart
from ctr_pipeline.reporting.comparison_view import comparison_page
from ctr_pipeline.reporting.config_view import config_lines
from ctr_pipeline.reporting.data import (
    BadRowExample,
    BadRows,
    ComparisonData,
    DriftData,
    HistoryRow,
    LeftOutColumn,
    PlanRow,
    ProfileData,
    ReportData,
)
from ctr_pipeline.reporting.drift_view import drift_view
from ctr_pipeline.reporting.feature_view import MAX_DETAILED_FEATURES, feature_views
from ctr_pipeline.reporting.findings import SPLIT_TITLES, decide_findings
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
from ctr_pipeline.reporting.group_view import group_tables
from ctr_pipeline.reporting.headline import (
    headline_cards,
    held_out,
    metric_rows,
    model_title,
    summary_sentence,
)
from ctr_pipeline.reporting.information_view import information_bars
from ctr_pipeline.reporting.learning_view import auc_chart, loss_chart
from ctr_pipeline.reporting.search_data import SearchData
from ctr_pipeline.reporting.search_page import search_page
from ctr_pipeline.reporting.table_pages import (
    DRIFT_SHOWN,
    drift_page,
    moment_text,
    profile_page,
)
from ctr_pipeline.reporting.training_time_view import training_threads
from ctr_pipeline.statistics import Statistics

_TEMPLATES = Path(__file__).parent / "templates"
_IMPORTANCE_SHOWN = 25
_LEFT_OUT_SHOWN = 200
_HISTORY_SHOWN = 400
_NOTES_SHOWN = 20


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
    return _render("report.html.j2", _page(data))


def render_profile(data: ProfileData) -> str:
    """One page about a table, made as `render_report` makes its."""
    bad_rows = _bad_rows(data.bad_rows, frozenset())
    shown = _features(data.plan, data.statistics, has_label=data.label is not None)
    return _render(
        "profile.html.j2", profile_page(data) | shown | bad_rows | _left_out(data.left_out)
    )


def render_drift(data: DriftData) -> str:
    """One page about how far rows are from others, made as `render_report` makes its."""
    return _render("drift_page.html.j2", drift_page(data))


def render_comparison(data: ComparisonData) -> str:
    """One page about several runs, made as `render_report` makes its."""
    return _render("comparison.html.j2", comparison_page(data))


def render_search(data: SearchData) -> str:
    """One page about a search, made as `render_report` makes its."""
    return _render("search.html.j2", search_page(data))


def _render(template: str, values: dict[str, Any]) -> str:
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
    return environment.get_template(template).render(style=style, **values)


def _clean(value: object) -> object:
    """Control characters and lone surrogates must not reach the page from any expression."""
    return visible_text(value) if type(value) is str else value


def _page(data: ReportData) -> dict[str, Any]:
    """Everything that the template names."""
    held_out_name, held_out_result = held_out(data)
    drift = {} if data.statistics is None else data.statistics.drift
    titles = {SPLIT_TITLES.get(name, name): rows for name, rows in drift.items()}
    title = model_title(data)
    return {
        "data": data,
        "title": data.name,
        "page_kind": "report",
        "kicker": f"{shorten(title, 60)} · {moment_text(data.created)}",
        "model_title": title,
        "title_of": title_of,
        "rows_named": "The training rows",
        **_features(data.plan, data.statistics),
        **_left_out(data.left_out),
        **_bad_rows(data.bad_rows, data.sensitive_columns),
        "drift": drift_view(titles, data.sensitive_columns),
        "drift_shown": DRIFT_SHOWN,
        "old_rows_named": "the training rows",
        "summary": summary_sentence(data),
        "cards": headline_cards(data),
        "findings": decide_findings(data),
        "metric_rows": metric_rows(data),
        "group_tables": group_tables(held_out_result),
        "splits": _split_bars(data),
        "times": _times_of_splits(data),
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
        "calibration_held": 0
        if held_out_result is None
        else sum(
            one.interval.contains(one.mean_predicted) for one in held_out_result.calibration_bins
        ),
        "importance": _importance_bars(data),
        "importance_repeats": max([row.repeats for row in data.importance], default=1),
        "importance_shown": _IMPORTANCE_SHOWN,
        "timings": _timing_bars(data),
        "total_seconds": sum(timing.seconds for timing in data.timings),
        "training_threads": training_threads(data.training_time),
        "config": config_lines(data.config_yaml),
    }


def _features(
    plan: Sequence[PlanRow], statistics: Statistics | None, *, has_label: bool = True
) -> dict[str, Any]:
    """What the sections about columns name."""
    views = feature_views(plan, statistics, has_label=has_label)
    return {
        "has_label": has_label,
        "feature_groups": [
            (title, group)
            for title, kind in (("Numbers", ColumnType.NUMBER), ("Texts", ColumnType.TEXT))
            if (group := [view for view in views if view.kind == kind])
        ],
        "num_features": len(plan),
        "max_detailed": MAX_DETAILED_FEATURES,
        "feature_notes": () if statistics is None else statistics.notes[:_NOTES_SHOWN],
        "information": information_bars(statistics, [row.feature for row in plan]),
        "information_shown": _IMPORTANCE_SHOWN,
    }


def _left_out(columns: Sequence[LeftOutColumn]) -> dict[str, Any]:
    return {"left_out": columns[:_LEFT_OUT_SHOWN], "num_left_out": len(columns)}


def _bad_rows(bad_rows: Sequence[BadRows], sensitive: frozenset[str]) -> dict[str, Any]:
    return {
        "bad_rows": [
            (rows, [_bad_example(example, sensitive) for example in rows.examples[:5]])
            for rows in bad_rows
        ],
        "num_bad_rows": sum(rows.count for rows in bad_rows),
    }


def _split_bars(data: ReportData) -> list[tuple[str, int, float | None, float]]:
    """Name, rows, click rate and share of all rows."""
    total = sum(split.num_rows for split in data.splits) or 1
    return [
        (split.name, split.num_rows, split.label_rate, split.num_rows / total)
        for split in data.splits
    ]


def _times_of_splits(data: ReportData) -> dict[str, tuple[str, str]]:
    """First and last time by split; empty unless rows are divided by time."""
    if not any(split.first_time for split in data.splits):
        return {}
    return {split.name: (split.first_time or "", split.last_time or "") for split in data.splits}


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
