"""What the page about several runs shows: figures beside each other, curves over each other."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from ctr_pipeline.evaluation.bootstrap import PairedDifference
from ctr_pipeline.reporting.charts import Series, calibration_overlay, line_chart, roc_chart
from ctr_pipeline.reporting.data import (
    ComparedRun,
    ComparisonData,
)
from ctr_pipeline.reporting.findings import Finding
from ctr_pipeline.reporting.formats import (
    count_text,
    duration_text,
    metric_text,
    short_count,
    shorten,
)
from ctr_pipeline.reporting.headline import Card
from ctr_pipeline.reporting.table_pages import moment_text
from ctr_pipeline.specs.model_kinds import title_of
from ctr_pipeline.training.history import EpochRecord

MAX_DRAWN = 8
"""Runs with a colour of their own; later ones stand in the tables alone."""

_KEYS_SHOWN = 200
_NAME_LENGTH = 40


@dataclass(frozen=True)
class RunView:
    """One run as the tables show it, every figure as text.

    Attributes:
        folder: Its path.
        css: Its colour; empty if it is not drawn.
        model: Title of the architecture.
        auc: AUC of the test rows, as the next four.
        auc_ahead: Difference to the first run with its interval, and its verdict for the colour.
        logloss: Nats a row.
        logloss_ahead: As `auc_ahead`.
        calibration: With its interval.
        facts: Names and texts of facts about training.
    """

    name: str
    folder: str
    css: str
    model: str
    auc: str
    auc_ahead: tuple[str, str]
    logloss: str
    logloss_ahead: tuple[str, str]
    calibration: str
    facts: tuple[tuple[str, str], ...]


def comparison_page(data: ComparisonData) -> dict[str, Any]:
    """Everything that the template of a comparison names."""
    first = data.runs[0]
    drawn = [(f"of-run run{place}", run) for place, run in enumerate(data.runs[:MAX_DRAWN])]
    return {
        "data": data,
        "title": "Comparison",
        "page_kind": "comparison",
        "kicker": moment_text(data.created),
        "summary": f"{len(data.runs)} runs; the others are held against "
        f"{shorten(first.name, _NAME_LENGTH)}.",
        "cards": _cards(data),
        "findings": tuple(_findings(data)),
        "runs": run_views(data),
        "legend": [(css, shorten(run.name, _NAME_LENGTH)) for css, run in drawn],
        "measured": [
            (css, shorten(run.name, _NAME_LENGTH)) for css, run in drawn if len(run.roc) > 0
        ],
        "roc": _roc(drawn),
        "calibration": _calibration(drawn),
        "loss_chart": _learning_chart(drawn, "logloss", lambda row: row.valid_logloss),
        "auc_chart": _learning_chart(drawn, "AUC", lambda row: row.valid_auc),
        "config_rows": [
            (shorten(one.key, 80), [setting_text(value) for value in one.values])
            for one in data.config_differences[:_KEYS_SHOWN]
        ],
        "num_keys": len(data.config_differences),
    }


def run_views(data: ComparisonData) -> tuple[RunView, ...]:
    """The runs as the tables show them."""
    return tuple(_run_view(run, place) for place, run in enumerate(data.runs))


def _run_view(run: ComparedRun, place: int) -> RunView:
    test, valid = run.test, run.valid
    calibration = "–"
    if test is not None:
        interval = test.calibration_interval
        calibration = (
            f"{metric_text(test.calibration, 3)} "
            f"[{metric_text(interval.low, 3)}, {metric_text(interval.high, 3)}]"
        )
    kept = "–" if run.best_epoch is None else count_text(run.best_epoch)
    if run.num_epochs is not None:
        kept += f" of {count_text(run.num_epochs)}"
    return RunView(
        name=shorten(run.name, _NAME_LENGTH),
        folder=shorten(run.folder, 300),
        css=f"of-run run{place}" if place < MAX_DRAWN else "",
        model=shorten(title_of(run.model), _NAME_LENGTH),
        auc=metric_text(None if test is None else test.auc),
        auc_ahead=_ahead(run, run.auc_difference, place),
        logloss=metric_text(None if test is None else test.logloss),
        logloss_ahead=_ahead(run, run.logloss_difference, place),
        calibration=calibration,
        facts=(
            ("Valid AUC", metric_text(None if valid is None else valid.auc)),
            ("Valid logloss", metric_text(None if valid is None else valid.logloss)),
            ("Kept epoch", kept),
            ("Training", duration_text(run.training_seconds)),
            ("Training rows", _counted(run.num_training_rows)),
            ("Dense parameters", _counted(run.num_dense_parameters)),
            ("Embedding rows", _counted(run.num_embedding_rows)),
        ),
    )


def _counted(count: int | None) -> str:
    return "–" if count is None else count_text(count)


def _ahead(run: ComparedRun, difference: PairedDifference | None, place: int) -> tuple[str, str]:
    """The cell of a difference: its text and its tone."""
    if difference is not None:
        return difference_text(difference), difference.verdict
    return ("" if place == 0 else "not compared" if run.not_compared else "–"), "open"


def difference_text(difference: PairedDifference) -> str:
    """A text such as `+0.0021 [+0.0010, +0.0032]`."""
    interval = difference.interval
    return (
        f"{signed_text(difference.difference)} "
        f"[{signed_text(interval.low)}, {signed_text(interval.high)}]"
    )


def signed_text(value: float) -> str:
    """Four digits and always a sign; what rounds to nothing has none."""
    text = f"{value:+.4f}"
    return "0.0000" if float(text) == 0 else text.replace("-", "−")


def setting_text(value: Any) -> str:
    """A value of a config on one line; None, which is also an absent key, as a dash."""
    if value is None:
        return "–"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return shorten(text, 160)


def _cards(data: ComparisonData) -> tuple[Card, ...]:
    measured = [(run.test, run) for run in data.runs if run.test is not None and run.roc]
    cards = []
    if measured:
        test, run = max(measured, key=lambda pair: pair[0].auc)
        cards.append(Card("Best test AUC", metric_text(test.auc), shorten(run.name, _NAME_LENGTH)))
        test, run = min(measured, key=lambda pair: pair[0].logloss)
        cards.append(
            Card("Best test logloss", metric_text(test.logloss), shorten(run.name, _NAME_LENGTH))
        )
    timed = [run for run in data.runs if run.training_seconds is not None]
    if timed:
        quickest = min(timed, key=lambda run: run.training_seconds or 0.0)
        cards.append(
            Card(
                "Shortest training",
                duration_text(quickest.training_seconds),
                shorten(quickest.name, _NAME_LENGTH),
            )
        )
    if measured:
        rows = short_count(measured[0][0].num_rows)
        alike = f"scored by {len(measured)} of {len(data.runs)} runs"
        cards.append(Card("Test rows", rows, alike))
    return tuple(cards)


def _findings(data: ComparisonData) -> list[Finding]:
    """What became of each comparison, those that could not be made first."""
    first = shorten(data.runs[0].name, _NAME_LENGTH)
    found = [
        Finding("look", f"{shorten(run.name, _NAME_LENGTH)} {run.not_compared}.")
        for run in data.runs
        if run.not_compared
    ]
    for run in data.runs[1:]:
        auc, logloss = run.auc_difference, run.logloss_difference
        if auc is None or logloss is None:
            continue
        name = shorten(run.name, _NAME_LENGTH)
        figures = f"AUC {difference_text(auc)}, logloss {difference_text(logloss)}"
        verdicts = {auc.verdict, logloss.verdict}
        if verdicts == {"open"}:
            text = f"{name} is not told from {first} by these rows: {figures}."
            found.append(Finding("note", text))
        elif "behind" not in verdicts:
            found.append(Finding("good", f"{name} is ahead of {first}: {figures}."))
        elif "ahead" not in verdicts:
            found.append(Finding("look", f"{name} is behind {first}: {figures}."))
        else:
            text = f"{name} is ahead of {first} in one metric and behind in the other: {figures}."
            found.append(Finding("note", text))
    if len(data.runs) > MAX_DRAWN:
        left = len(data.runs) - MAX_DRAWN
        found.append(
            Finding("note", f"Charts show the first {MAX_DRAWN} runs; {left} more are in tables.")
        )
    found += [Finding("note", note) for note in data.notes]
    return found


def _roc(drawn: Sequence[tuple[str, ComparedRun]]) -> Markup | None:
    curves = [(css, run.roc) for css, run in drawn if run.roc]
    if not curves:
        return None
    return roc_chart(curves, label="True positive rate against false positive rate of each run")


def _calibration(drawn: Sequence[tuple[str, ComparedRun]]) -> Markup | None:
    series = [
        (css, shorten(run.name, _NAME_LENGTH), run.calibration_bins)
        for css, run in drawn
        if run.calibration_bins
    ]
    if not series:
        return None
    return calibration_overlay(
        series, label="Observed click rate against predicted probability of each run"
    )


def _learning_chart(
    drawn: Sequence[tuple[str, ComparedRun]],
    metric: str,
    value_of: Callable[[EpochRecord], float],
) -> Markup | None:
    """A metric of the validation rows by epoch; None if no run was validated."""
    series = []
    for css, run in drawn:
        name = shorten(run.name, _NAME_LENGTH)
        points = [
            (row.epoch + 1.0, value_of(row), f"{name}, epoch {row.epoch + 1}: {value_of(row):.4f}")
            for row in run.history
        ]
        if points:
            series.append(Series(css, points, markers=True))
    if not series:
        return None
    return line_chart(series, x_name="epoch", label=f"Validation {metric} by epoch of each run")
