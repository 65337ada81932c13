"""Charts of a search: the metric by trial and by each key."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from ctr_pipeline.reporting.axes import Frame, Scale, nice_ticks, padded_range, tick_texts
from ctr_pipeline.reporting.charts import path_of, svg
from ctr_pipeline.reporting.findings import Finding
from ctr_pipeline.reporting.formats import (
    count_text,
    duration_text,
    metric_text,
    short_count,
    shorten,
)
from ctr_pipeline.reporting.headline import Card
from ctr_pipeline.reporting.search_data import SearchData, SearchedKey, SearchTrial
from ctr_pipeline.reporting.table_pages import moment_text

_WIDTH, _HEIGHT = 460, 280
_FRAME = Frame(left=58, top=16, right=442, bottom=236)
_LABEL_CHARACTERS = 56
"""Characters of all choices of a key together, below its axis."""

_TRIALS_SHOWN = 500
_TITLES = {"auc": "AUC", "logloss": "Logloss"}


@dataclass(frozen=True)
class KeyChart:
    """The chart of one key."""

    name: str
    chart: Markup


def search_page(data: SearchData) -> dict[str, Any]:
    """Variables of the template of a search."""
    title = _TITLES[data.metric]
    best = next((trial for trial in data.trials if trial.is_best), None)
    shown = [trial for trial in data.trials if trial.value is not None]
    sign = -1.0 if data.metric == "auc" else 1.0
    ranked = sorted(
        data.trials,
        key=lambda one: (
            one.state != "complete",
            math.inf if one.value is None else sign * one.value,
            one.number,
        ),
    )
    return {
        "data": data,
        "title": data.name,
        "page_kind": "search",
        "kicker": moment_text(data.created),
        "summary": f"{count_text(len(data.trials))} of {count_text(data.num_planned)} trials, "
        f"judged by {title} on the validation rows; the test rows were not looked at.",
        "cards": _cards(data, best),
        "findings": _findings(data, best),
        "metric_title": title,
        "best": best,
        "by_trial": trials_chart(data, shown) if shown else None,
        "by_key": [
            KeyChart(key.name, key_chart(data, shown, index)) for index, key in enumerate(data.keys)
        ]
        if shown
        else [],
        "ranked": ranked[:_TRIALS_SHOWN],
    }


def trials_chart(data: SearchData, shown: Sequence[SearchTrial]) -> Markup:
    """The metric of each trial, and the best of those up to it.

    Args:
        data: The search.
        shown: Its trials that have a value, at least one.
    """
    x_at = _FRAME.x_scale(-0.5, max(data.trials[-1].number, 1) + 0.5)
    y_at = _metric_scale(shown, data.metric)
    ticks = [tick for tick in nice_ticks(0, max(data.trials[-1].number, 1), 6) if tick % 1 == 0]
    parts = [
        _metric_axis(y_at),
        _FRAME.x_axis(x_at, ticks, [short_count(tick) for tick in ticks], "trial"),
        _best_line(data, shown, x_at, y_at),
        *(_dot(one, x_at(one.number), y_at, data) for one in shown),
    ]
    title = _TITLES[data.metric]
    return svg(_WIDTH, _HEIGHT, Markup("").join(parts), label=f"{title} of each trial")


def key_chart(data: SearchData, shown: Sequence[SearchTrial], index: int) -> Markup:
    """The metric of each trial over its value of one key.

    Args:
        data: The search.
        shown: Its trials that have a value, at least one.
    """
    key = data.keys[index]
    at = [_axis_value(key, one.values[index]) for one in shown]
    y_at = _metric_scale(shown, data.metric)
    if key.is_range:
        x_at = _FRAME.x_scale(*padded_range(at))
        ticks = nice_ticks(x_at.low, x_at.high, 4)
        texts = [f"{10**tick:.2g}" for tick in ticks] if key.is_log else tick_texts(ticks)
    else:
        x_at = _FRAME.x_scale(-0.5, len(key.choices) - 0.5)
        ticks = [float(place) for place in range(len(key.choices))]
        length = max(3, _LABEL_CHARACTERS // len(key.choices))
        texts = [shorten(text, length) for text in key.choices]
    parts = [
        _metric_axis(y_at),
        _FRAME.x_axis(x_at, ticks, texts, shorten(key.name, 60)),
        *(_dot(one, x_at(x), y_at, data) for one, x in zip(shown, at, strict=True)),
    ]
    label = f"{_TITLES[data.metric]} over {shorten(key.name, 60)}"
    return svg(_WIDTH, _HEIGHT, Markup("").join(parts), label=label)


def _axis_value(key: SearchedKey, value: float) -> float:
    return math.log10(value) if key.is_log else value


def _metric_scale(shown: Sequence[SearchTrial], metric: str) -> Scale:
    """The scale from values to heights; values far worse than the others stand at the edge."""
    values = np.array([one.value for one in shown], dtype=np.float64)
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
    reach = 1.5 * (high - low) or abs(middle) * 0.01
    ends = [float(values.min()), float(values.max())]
    if metric == "auc":
        ends[0] = max(ends[0], float(low - reach))
    else:
        ends[1] = min(ends[1], float(high + reach))
    return _FRAME.y_scale(*padded_range(ends))


def _metric_axis(y_at: Scale) -> Markup:
    ticks = nice_ticks(y_at.low, y_at.high, 6)
    return _FRAME.y_axis(y_at, ticks, tick_texts(ticks))


def _height(y_at: Scale, value: float) -> float:
    return y_at(min(max(value, y_at.low), y_at.high))


def _best_line(data: SearchData, shown: Sequence[SearchTrial], x_at: Scale, y_at: Scale) -> Markup:
    complete = [one for one in shown if one.state == "complete"]
    better = max if data.metric == "auc" else min
    points: list[tuple[float, float]] = []
    best: float | None = None
    for one in complete:
        value = 0.0 if one.value is None else one.value
        before, best = best, value if best is None else better(best, value)
        if before is not None and best != before:
            points.append((x_at(one.number), _height(y_at, before)))
        points.append((x_at(one.number), _height(y_at, best)))
    if not points:
        return Markup("")
    return Markup('<path class="line baseline" d="{}"/>').format(path_of(points))


def _dot(one: SearchTrial, x: float, y_at: Scale, data: SearchData) -> Markup:
    y = _height(y_at, one.value or 0.0)
    css = "model" if one.state == "complete" else "second"
    values = ", ".join(f"{key.name} {text}" for key, text in zip(data.keys, one.texts, strict=True))
    told = f"Trial {one.number}, {one.state}: {metric_text(one.value, 5)}; {values}"
    ring = Markup('<circle class="ring" cx="{}" cy="{}" r="7"/>').format(x, y)
    return (ring if one.is_best else Markup("")) + Markup(
        '<g class="dot {}"><circle class="reach" cx="{}" cy="{}" r="8"/>'
        '<circle cx="{}" cy="{}" r="3.6"/><title>{}</title></g>'
    ).format(css, x, y, x, y, shorten(told, 400))


def _cards(data: SearchData, best: SearchTrial | None) -> tuple[Card, ...]:
    states = [one.state for one in data.trials]
    cards = []
    if best is not None:
        detail = f"trial {best.number}, epoch {best.best_epoch}"
        cards.append(Card(f"Best {_TITLES[data.metric]}", metric_text(best.value), detail, "good"))
        first = data.trials[0]
        if first.value is not None and best.value is not None and first.number != best.number:
            gain = abs(best.value - first.value)
            cards.append(Card("Better than the first", metric_text(gain), "trial 0"))
    cards.append(
        Card(
            "Trials",
            count_text(len(states)),
            f"{states.count('pruned')} stopped early, {states.count('failed')} failed",
            "look" if "failed" in states else "neutral",
        )
    )
    seconds = sum(one.seconds for one in data.trials)
    cards.append(Card("Time", duration_text(seconds), "for all trials"))
    return tuple(cards)


def _findings(data: SearchData, best: SearchTrial | None) -> tuple[Finding, ...]:
    found = []
    if best is None:
        found.append(Finding("look", "No trial has been trained to its end yet."))
    else:
        for index, key in enumerate(data.keys):
            if edge := _edge(data, key, index, best):
                found.append(Finding("note", edge))
    reasons = dict.fromkeys(one.reason for one in data.trials if one.state == "failed")
    found += [Finding("look", f"Failed: {reason}") for reason in list(reasons)[:5]]
    return tuple(found)


def _edge(data: SearchData, key: SearchedKey, index: int, best: SearchTrial) -> str | None:
    """Says that the best value is the last one tried on a side, where better ones may follow."""
    tried = {one.values[index] for one in data.trials if one.state != "failed"}
    if not key.is_range or len(tried) < 4:
        return None
    value = best.values[index]
    if value not in {min(tried), max(tried)}:
        return None
    side = "smallest" if value == min(tried) else "largest"
    return (
        f"The best value of {key.name}, {best.texts[index]}, is the {side} that was tried; "
        "a wider range may hold a better one."
    )
