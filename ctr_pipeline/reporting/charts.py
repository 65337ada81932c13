"""Charts as inline SVG text: pure functions, coloured by the page's CSS classes.

Text inside is escaped by `Markup.format`; tooltips are `<title>` elements, so nothing runs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ctr_pipeline.evaluation.auc import RocPoint
from ctr_pipeline.evaluation.calibration import CalibrationBin
from ctr_pipeline.reporting.axes import Frame, Scale, nice_ticks, padded_range, tick_texts
from ctr_pipeline.reporting.formats import count_text, percent_text, short_count

_WIDTH, _HEIGHT = 460, 280
_FRAME = Frame(left=52, top=10, right=436, bottom=236)
_MAX_POINTS = 300
_MAX_MARKERS = 40


def svg(width: float, height: float, body: Markup, *, label: str, css: str = "chart") -> Markup:
    """The outer element: scales with the page, described for those who hear it."""
    return Markup('<svg class="{}" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        css, width, height, label, body
    )


def path_of(points: Sequence[tuple[float, float]]) -> str:
    """The `d` of a line through `points`."""
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points)


def thin(rows: Sequence[tuple[float, float, str]]) -> list[tuple[float, float, str]]:
    """At most `_MAX_POINTS` of the rows, evenly, first and last included."""
    if len(rows) <= _MAX_POINTS:
        return list(rows)
    last = len(rows) - 1
    return [rows[index * last // (_MAX_POINTS - 1)] for index in range(_MAX_POINTS)]


@dataclass(frozen=True)
class Series:
    """A line of a chart.

    Attributes:
        css: `model`, `second` or `baseline`: which colour.
        points: x, y and the tooltip of each point, ascending by x.
        markers: Whether the points themselves are drawn.
    """

    css: str
    points: Sequence[tuple[float, float, str]]
    markers: bool = False


@dataclass(frozen=True)
class Mark:
    """One emphasised point; its text stands above it, or below."""

    x: float
    y: float
    text: str
    below: bool = False


def line_chart(
    series: Sequence[Series],
    *,
    x_name: str,
    label: str,
    mark: Mark | None = None,
    reference: float | None = None,
    lowest: float | None = None,
) -> Markup:
    """Lines over a shared x axis.

    Args:
        series: At least one point in all.
        x_name: Name of the x axis.
        label: What the chart shows, in words.
        mark: Ringed, with its text beside it.
        reference: A dashed horizontal line, drawn if it is near the lines.
        lowest: Where the y axis begins; None: near the lowest point.
    """
    shown = [(one, thin(one.points)) for one in series if one.points]
    xs = [x for _, points in shown for x, _, _ in points]
    ys = [y for _, points in shown for _, y, _ in points]
    x_low, x_high = (min(xs), max(xs)) if max(xs) > min(xs) else (min(xs) - 1, max(xs) + 1)
    y_low, y_high = padded_range(ys, padding=0.06 if mark is None else 0.14)
    if lowest is not None:
        y_low = lowest
    x_at, y_at = _FRAME.x_scale(x_low, x_high), _FRAME.y_scale(y_low, y_high)
    x_ticks, y_ticks = nice_ticks(x_low, x_high, 5), nice_ticks(y_low, y_high, 6)
    x_ticks = [tick for tick in x_ticks if tick == int(tick)]
    if lowest is not None:
        y_ticks = [tick for tick in y_ticks if tick == int(tick)]
    parts = [
        _FRAME.y_axis(y_at, y_ticks, tick_texts(y_ticks)),
        _FRAME.x_axis(x_at, x_ticks, [short_count(tick) for tick in x_ticks], x_name),
    ]
    if reference is not None and y_low <= reference <= y_high:
        parts.append(
            Markup('<path class="line baseline" d="M{} {}H{}"/>').format(
                _FRAME.left, y_at(reference), _FRAME.right
            )
        )
    for one, points in shown:
        parts.append(_line(one, points, x_at, y_at))
    if mark is not None:
        parts.append(_ring(mark, x_at, y_at))
    return svg(_WIDTH, _HEIGHT, Markup("").join(parts), label=label)


def _line(
    one: Series, points: Sequence[tuple[float, float, str]], x_at: Scale, y_at: Scale
) -> Markup:
    at = [(x_at(x), y_at(y)) for x, y, _ in points]
    line = Markup('<path class="line {}" d="{}"/>').format(one.css, path_of(at))
    radius = 3 if (one.markers and len(points) <= _MAX_MARKERS) or len(points) == 1 else 0
    dots = Markup("").join(
        Markup(
            '<g class="dot {}"><circle class="reach" cx="{}" cy="{}" r="7"/>{}<title>{}</title></g>'
        ).format(
            one.css,
            x,
            y,
            Markup('<circle cx="{}" cy="{}" r="{}"/>').format(x, y, radius) if radius else "",
            text,
        )
        for (x, y), (_, _, text) in zip(at, points, strict=True)
    )
    return line + dots


def _ring(mark: Mark, x_at: Scale, y_at: Scale) -> Markup:
    x, y = x_at(mark.x), y_at(mark.y)
    return Markup(
        '<circle class="ring" cx="{}" cy="{}" r="6"/><text class="note {}" x="{}" y="{}">{}</text>'
    ).format(
        x,
        y,
        "middle",
        min(max(x, _FRAME.left + 40), _FRAME.right - 30),
        round(y + 22 if mark.below else y - 13, 1),
        mark.text,
    )


@dataclass(frozen=True)
class Column:
    """An upright bar.

    Attributes:
        value: Its height, not negative.
        group: Which of two colours, 0 or 1.
        text: The tooltip.
    """

    value: float
    group: int
    text: str


def column_chart(columns: Sequence[Column], *, label: str) -> Markup:
    """Upright bars side by side, at least one of them above 0, over a width of its own."""
    frame = Frame(left=52, top=8, right=956, bottom=150)
    y_at = frame.y_scale(0.0, 1.05 * max(one.value for one in columns))
    ticks = nice_ticks(0.0, y_at.high, 4)
    width = (frame.right - frame.left) / len(columns)
    bars = Markup("").join(
        Markup(
            '<rect class="column group{}" x="{}" y="{}" width="{}" height="{}">'
            "<title>{}</title></rect>"
        ).format(
            one.group,
            round(frame.left + place * width, 2),
            y_at(one.value),
            round(max(0.5, width * 0.86), 2),
            round(frame.bottom - y_at(one.value), 1),
            one.text,
        )
        for place, one in enumerate(columns)
    )
    axis = Markup('<path class="axis" d="M{} {}H{}"/>').format(
        frame.left, frame.bottom, frame.right
    )
    return svg(
        960,
        158,
        frame.y_axis(y_at, ticks, [short_count(one) for one in ticks]) + bars + axis,
        label=label,
    )


def roc_chart(curves: Sequence[tuple[str, Sequence[RocPoint]]], *, label: str) -> Markup:
    """ROC curves (CSS class and points) over the diagonal of chance."""
    x_at, y_at = _FRAME.x_scale(0, 1), _FRAME.y_scale(0, 1)
    ticks = [0.0, 0.25, 0.5, 0.75, 1.0]
    texts = ["0", "25 %", "50 %", "75 %", "100 %"]
    parts = [
        _FRAME.y_axis(y_at, ticks, texts),
        _FRAME.x_axis(x_at, ticks, texts, "false positive rate"),
        Markup('<path class="line baseline" d="{}"/>').format(
            path_of([(x_at(0), y_at(0)), (x_at(1), y_at(1))])
        ),
    ]
    for css, points in curves:
        at = [(x_at(x), y_at(y)) for x, y in points]
        if css == "model":
            area = path_of([*at, (x_at(1), y_at(0)), (x_at(0), y_at(0))])
            parts.append(Markup('<path class="area" d="{}Z"/>').format(area))
        parts.append(Markup('<path class="line {}" d="{}"/>').format(css, path_of(at)))
        step = max(1, len(points) // 24)
        parts.extend(
            Markup('<circle class="reach" cx="{}" cy="{}" r="8"><title>{}</title></circle>').format(
                x_at(x),
                y_at(y),
                f"{percent_text(y)} of clicks found at {percent_text(x)} of non-clicks",
            )
            for x, y in points[::step]
        )
    return svg(_WIDTH, _HEIGHT, Markup("").join(parts), label=label)


def calibration_chart(bins: Sequence[CalibrationBin], *, label: str) -> Markup:
    """Observed against predicted rate per bin, with a band of 95 % intervals, and the diagonal.

    Axes are square rooted, so that the many small rates of click data have room.
    """
    return calibration_overlay([("model", "", bins)], label=label)


def calibration_overlay(
    series: Sequence[tuple[str, str, Sequence[CalibrationBin]]], *, label: str
) -> Markup:
    """The same of several models on one pair of axes; the points of each are then joined.

    Args:
        series: CSS class, name and bins of each; at least one bin in all.
        label: What the chart shows, in words.
    """
    everything = [one for _, _, bins in series for one in bins]
    highest = min(1.0, max(max(b.mean_predicted, b.interval.high) for b in everything) * 1.05)

    def root(rate: float) -> float:
        return math.sqrt(max(rate, 0.0))

    x_at, y_at = _FRAME.x_scale(0, root(highest)), _FRAME.y_scale(0, root(highest))
    candidates = [0, 0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0]
    ticks: list[float] = []
    for tick in candidates:
        spaced = not ticks or root(tick) - root(ticks[-1]) >= 0.12 * root(highest)
        if tick <= highest and spaced:
            ticks.append(tick)
    texts = [f"{tick * 100:g} %" for tick in ticks]
    places = [root(tick) for tick in ticks]
    parts = [
        _FRAME.y_axis(y_at, places, texts),
        _FRAME.x_axis(x_at, places, texts, "mean predicted probability"),
        Markup('<path class="line baseline" d="{}"/>').format(
            path_of([(x_at(0), y_at(0)), (x_at(root(highest)), y_at(root(highest)))])
        ),
    ]
    for css, name, bins in series:
        if len(series) == 1:
            # The intervals joined: pointwise, so one bin in twenty lies outside by chance.
            low = [(x_at(root(b.mean_predicted)), y_at(root(b.interval.low))) for b in bins]
            high = [(x_at(root(b.mean_predicted)), y_at(root(b.interval.high))) for b in bins]
            band = path_of([*low, *reversed(high)])
            parts.append(Markup('<path class="area" d="{}Z"/>').format(band))
        elif bins:
            joined = [(x_at(root(b.mean_predicted)), y_at(root(b.observed_rate))) for b in bins]
            parts.append(Markup('<path class="line thin {}" d="{}"/>').format(css, path_of(joined)))
        for one in bins:
            x = x_at(root(one.mean_predicted))
            parts.append(
                Markup(
                    '<g class="dot {}"><path class="whisker" d="M{} {}V{}"/>'
                    '<circle cx="{}" cy="{}" r="3.6"/><title>{}</title></g>'
                ).format(
                    css,
                    x,
                    y_at(root(one.interval.low)),
                    y_at(root(one.interval.high)),
                    x,
                    y_at(root(one.observed_rate)),
                    f"{name}: " * bool(name) + f"{count_text(one.num_rows)} rows: "
                    f"predicted {percent_text(one.mean_predicted, 2)}, "
                    f"observed {percent_text(one.observed_rate, 2)} "
                    f"({percent_text(one.interval.low, 2)} to "
                    f"{percent_text(one.interval.high, 2)})",
                )
            )
    return svg(_WIDTH, _HEIGHT, Markup("").join(parts), label=label)


def improvement_bar(share: float, *, label: str) -> Markup:
    """A thin gauge filled to `share` of its length."""
    filled = round(min(max(share, 0.0), 1.0) * 100, 1)
    return Markup(
        '<svg class="gauge" viewBox="0 0 100 4" preserveAspectRatio="none" role="img" '
        'aria-label="{}"><rect class="rail" width="100" height="4"/>'
        '<rect class="fill" width="{}" height="4"/></svg>'
    ).format(label, filled)


def interval_gauge(low: float, value: float, high: float, *, label: str) -> Markup:
    """An interval around its value on a line whose middle is 1."""
    reach = max(0.05, 1.25 * max(abs(low - 1), abs(high - 1), abs(value - 1)))
    at = Scale(1 - reach, 1 + reach, 0, 100)
    return Markup(
        '<svg class="gauge" viewBox="0 0 100 4" preserveAspectRatio="none" role="img" '
        'aria-label="{}"><rect class="rail" width="100" height="4"/>'
        '<rect class="fill" x="{}" width="{}" height="4"/>'
        '<rect class="middle-mark" x="49.6" width="0.8" height="4"/></svg>'
    ).format(label, at(low), max(round(at(high) - at(low), 1), 0.8))
