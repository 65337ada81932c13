"""The top of the report: one sentence and a few cards."""

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from ctr_pipeline.evaluation.metrics import EvaluationResult
from ctr_pipeline.reporting.charts import improvement_bar, interval_gauge
from ctr_pipeline.reporting.data import ReportData
from ctr_pipeline.reporting.formats import (
    count_text,
    duration_text,
    metric_text,
    percent_text,
    short_count,
    shorten,
)
from ctr_pipeline.specs.model_kinds import title_of


@dataclass(frozen=True)
class Card:
    """One headline number.

    Attributes:
        value: The number.
        detail: What to compare it with.
        tone: Colour of the card.
        gauge: A thin picture of the number, if it has one.
    """

    title: str
    value: str
    detail: str
    tone: Literal["neutral", "good", "look"] = "neutral"
    gauge: Markup | None = None


def held_out(data: ReportData) -> tuple[str, EvaluationResult | None]:
    """The rows that headline numbers speak of: test, else validation."""
    return ("Validation", data.valid) if data.test is None else ("Test", data.test)


def model_title(data: ReportData) -> str:
    """What the model is called, such as `DeepFM`, or `Ensemble of 2 × DeepFM, DCN v2`."""
    if not data.ensemble:
        return shorten(title_of(data.model), 40)
    counted = Counter(one.model for one in data.ensemble)
    kinds = [
        f"{count} × " * (count > 1) + shorten(title_of(kind), 40) for kind, count in counted.items()
    ]
    return f"Ensemble of {', '.join(kinds)}"


def summary_sentence(data: ReportData) -> str:
    """What the run achieved, in words."""
    name, result = held_out(data)
    title = model_title(data)
    train = data.splits.get("train")
    num_rows = data.num_refit_rows or (train.num_rows if train is not None else None)
    learned = f"{title} learned from {count_text(num_rows)} rows" if num_rows else title
    if result is None and not data.is_finished:
        return f"{title}, which is not finished: nothing has measured it yet."
    if result is None:
        return f"{learned}. No rows were held out to measure it."
    gain = 1 - result.logloss / result.baseline_logloss
    against = f"{percent_text(gain)} below" if gain > 0 else f"{percent_text(-gain)} above"
    return (
        f"{learned}. On {count_text(result.num_rows)} {name.lower()} rows it ranks a click above a "
        f"non-click {percent_text(result.auc)} of the time, with a logloss {against} always "
        "predicting the click rate."
    )


def headline_cards(data: ReportData) -> tuple[Card, ...]:
    """The cards, most telling first."""
    return (*_metric_cards(data), *_size_cards(data))


def _metric_cards(data: ReportData) -> list[Card]:
    name, result = held_out(data)
    if result is None:
        return []
    gain = 1 - result.logloss / result.baseline_logloss
    beside = (
        f"validation {metric_text(data.valid.auc)}"
        if data.test is not None and data.valid is not None
        else "0.5 is chance"
    )
    interval = result.calibration_interval
    calibrated = interval.contains(1.0)
    cards = [
        Card(
            f"{name} AUC",
            metric_text(result.auc),
            beside,
            "good" if result.auc > 0.5 else "look",
            improvement_bar(2 * result.auc - 1, label="from chance, 0.5, to perfect, 1"),
        ),
        Card(
            f"{name} logloss",
            metric_text(result.logloss),
            f"{percent_text(abs(gain))} {'below' if gain > 0 else 'above'} constant "
            f"{metric_text(result.baseline_logloss)}",
            "good" if gain > 0 else "look",
            improvement_bar(
                result.logloss / result.baseline_logloss, label="share of the constant's logloss"
            ),
        ),
        Card(
            "Calibration",
            metric_text(result.calibration, 3),
            f"95 %: {metric_text(interval.low, 3)} to {metric_text(interval.high, 3)}",
            "good" if calibrated else "look",
            interval_gauge(
                interval.low, result.calibration, interval.high, label="interval around 1"
            ),
        ),
    ]
    if result.gauc is not None:
        cards.append(
            Card(
                "GAUC",
                metric_text(result.gauc),
                f"{short_count(result.gauc_num_groups or 0)} groups with both classes",
                "neutral",
                improvement_bar(2 * result.gauc - 1, label="from chance, 0.5, to perfect, 1"),
            )
        )
    return cards


def _size_cards(data: ReportData) -> list[Card]:
    cards = []
    if data.splits:
        total = sum(split.num_rows for split in data.splits.values())
        cards.append(Card("Rows", short_count(total), f"{len(data.plan)} features"))
    if data.timings:
        longest, most = max(data.timings.items(), key=lambda one: one[1])
        cards.append(
            Card(
                "Time",
                duration_text(sum(data.timings.values())),
                f"{shorten(longest, 24)} {duration_text(most)}",
            )
        )
    return cards
