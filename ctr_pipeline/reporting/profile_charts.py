"""Small charts of one column: how its values are spread and what they say about clicks."""

from collections.abc import Sequence

from markupsafe import Markup

from ctr_pipeline.reporting.axes import Frame, Scale, nice_ticks
from ctr_pipeline.reporting.charts import svg
from ctr_pipeline.reporting.formats import count_text, percent_text, short_count, value_text
from ctr_pipeline.statistics import HistogramBin

_SPARK_WIDTH, _SPARK_HEIGHT = 132, 26
_MIN_RATE_ROWS = 30
"""A click rate of fewer rows is noise and is drawn faint or not at all."""


def histogram_spark(bins: Sequence[HistogramBin], num_missing: int) -> Markup:
    """Bars of a histogram without axes; missing rows are a pale bar at the left."""
    counts = [num_missing, *(one.count for one in bins)]
    tallest = max(counts) or 1
    width = _SPARK_WIDTH / len(counts)
    bars = _bars(counts, tallest, width)
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" aria-hidden="true"><path class="none" d="{}"/>'
        '<path class="bars" d="{}"/></svg>'
    ).format(_SPARK_WIDTH, _SPARK_HEIGHT, bars[0], "".join(bars[1:]))


def _bars(counts: Sequence[int], tallest: int, width: float) -> list[str]:
    """One closed path per count; a count that is not 0 is at least a unit high."""
    gap = 1.0 if width > 3 else 0.3
    paths = []
    for index, count in enumerate(counts):
        height = max(1.0, count / tallest * _SPARK_HEIGHT) if count else 0.0
        x, w = round(index * width, 1), round(width - gap, 1)
        paths.append(f"M{x:g} {_SPARK_HEIGHT}v{-height:.1f}h{w:g}v{height:.1f}z" if count else "")
    return paths


def share_strip(counts: Sequence[int], num_missing: int, num_rows: int) -> Markup:
    """All rows as one strip: the most frequent values, then all others, then missing rows."""
    scale = _SPARK_WIDTH / max(num_rows, 1)
    segments = []
    x = 0.0
    for index, count in enumerate(counts[:8]):
        width = count * scale
        if width >= 0.8:
            segments.append(
                f'<rect class="share{index % 2}" x="{x:.1f}" y="7" '
                f'width="{max(width - 0.6, 0.6):.1f}" height="12"/>'
            )
        x += width
    others = max(_SPARK_WIDTH - num_missing * scale - x, 0.0)
    if others >= 0.8:
        segments.append(f'<rect class="other" x="{x:.1f}" y="7" width="{others:.1f}" height="12"/>')
    x += others
    if _SPARK_WIDTH - x >= 0.8:
        segments.append(
            f'<rect class="none" x="{x:.1f}" y="7" width="{_SPARK_WIDTH - x:.1f}" height="12"/>'
        )
    # Every piece above is a number of ours; no foreign text is in it.
    return Markup('<svg class="spark" viewBox="0 0 {} {}" aria-hidden="true">{}</svg>').format(
        _SPARK_WIDTH,
        _SPARK_HEIGHT,
        Markup("").join(Markup(piece) for piece in segments),  # noqa: S704 - numbers only
    )


def rate_range(
    rates: Sequence[tuple[float, int]], *, base_rate: float, highest: float
) -> Markup | None:
    """The span of click rates over values with enough rows, the overall rate marked.

    Args:
        rates: Click rate and rows of each value or bin.
        highest: End of the scale, shared by all features of a report.
    """
    kept = [rate for rate, count in rates if count >= _MIN_RATE_ROWS]
    if not kept:
        return None
    at = Scale(0.0, highest, 1, 99)
    low, high, middle = at(min(kept)), at(max(kept)), at(base_rate)
    return Markup(
        '<svg class="range" viewBox="0 0 100 14" preserveAspectRatio="none" aria-hidden="true">'
        '<path class="rail" d="M0 7H100"/><path class="span" d="M{} 7H{}"/>'
        '<path class="base" d="M{} 1V13"/></svg>'
    ).format(low, max(high, low + 1), middle)


_BAR_FRAME = Frame(left=52, top=8, right=436, bottom=112)
_RATE_FRAME = Frame(left=52, top=132, right=436, bottom=206)


def histogram_chart(bins: Sequence[HistogramBin], *, base_rate: float | None, label: str) -> Markup:
    """Rows per bin, and below them the click rate per bin beside the overall rate.

    Bins are drawn equally wide in their order, with their ends written below, so that a histogram
    with uneven bins reads as well as one with even bins. A last bin without width says that each
    bin is one value. Without a base rate there are no click rates.
    """
    if base_rate is None:
        return _histogram_alone(bins, label)
    tallest = max(1, *(one.count for one in bins))
    x_at = _BAR_FRAME.x_scale(0, len(bins))
    y_at = _BAR_FRAME.y_scale(0, tallest)
    rates = [one.label_rate for one in bins if one.label_rate is not None and one.count]
    rate_high = max([*rates, base_rate]) * 1.1 or 1.0
    rate_at = _RATE_FRAME.y_scale(0, rate_high)
    row_ticks = nice_ticks(0, tallest, 3)
    rate_ticks = nice_ticks(0, rate_high, 2)
    places, texts = _bin_labels(bins)
    parts = [
        _BAR_FRAME.y_axis(y_at, row_ticks, [short_count(tick) for tick in row_ticks]),
        _RATE_FRAME.y_axis(rate_at, rate_ticks, [f"{tick * 100:g} %" for tick in rate_ticks]),
        _RATE_FRAME.x_axis(x_at, places, texts, "value"),
        Markup('<text class="axis-name start" x="52" y="127">click rate</text>'),
        Markup('<path class="line baseline" d="M{} {}H{}"/>').format(
            _RATE_FRAME.left, rate_at(base_rate), _RATE_FRAME.right
        ),
    ]
    for index, one in enumerate(bins):
        span = Scale(0, 1, x_at(index) + 0.5, x_at(index + 1) - 0.5)
        parts.append(_bin(one, span, y_at, rate_at, single=_single_values(bins)))
    return svg(460, 240, Markup("").join(parts), label=label)


def _histogram_alone(bins: Sequence[HistogramBin], label: str) -> Markup:
    tallest = max(1, *(one.count for one in bins))
    x_at, y_at = _BAR_FRAME.x_scale(0, len(bins)), _BAR_FRAME.y_scale(0, tallest)
    ticks = nice_ticks(0, tallest, 3)
    places, texts = _bin_labels(bins)
    parts = [
        _BAR_FRAME.y_axis(y_at, ticks, [short_count(tick) for tick in ticks]),
        _BAR_FRAME.x_axis(x_at, places, texts, "value"),
    ]
    for index, one in enumerate(bins):
        span = Scale(0, 1, x_at(index) + 0.5, x_at(index + 1) - 0.5)
        plain = one.model_copy(update={"label_rate": None})
        parts.append(_bin(plain, span, y_at, y_at, single=_single_values(bins)))
    return svg(460, 150, Markup("").join(parts), label=label)


def _single_values(bins: Sequence[HistogramBin]) -> bool:
    return bins[-1].left == bins[-1].right


def _bin_labels(bins: Sequence[HistogramBin]) -> tuple[list[float], list[str]]:
    """Where labels stand, in bins from the left, and what they say; six or seven at most."""
    every = max(1, -(-len(bins) // 5))
    shown = list(range(0, len(bins), every))
    if _single_values(bins):
        return [i + 0.5 for i in shown], [value_text(bins[i].left, digits=3) for i in shown]
    if len(bins) - shown[-1] < every * 0.6 and len(shown) > 1:
        shown.pop()
    texts = [value_text(bins[i].left, digits=3) for i in shown]
    return [*map(float, shown), float(len(bins))], [*texts, value_text(bins[-1].right, digits=3)]


def _bin(one: HistogramBin, span: Scale, y_at: Scale, rate_at: Scale, *, single: bool) -> Markup:
    left, right = span.start, span.end
    top = min(y_at(one.count), y_at.start - 1.0) if one.count else y_at.start
    values = value_text(one.left) + ("" if single else f" to {value_text(one.right)}")
    text = f"{values}: {count_text(one.count)} rows"
    dot = Markup("")
    if one.label_rate is not None and one.count:
        text += f", click rate {percent_text(one.label_rate)}"
        dot = Markup('<circle class="{}" cx="{}" cy="{}" r="3"/>').format(
            "rate" if one.count >= _MIN_RATE_ROWS else "rate faint",
            round((left + right) / 2, 1),
            rate_at(one.label_rate),
        )
    return Markup(
        '<g class="bin"><rect class="reach" x="{0}" y="8" width="{2}" height="198"/>'
        '<rect class="bar" x="{0}" y="{1}" width="{2}" height="{3}"/>{4}<title>{5}</title></g>'
    ).format(
        round(left, 1),
        top,
        round(max(right - left, 0.5), 1),
        round(y_at.start - top, 1),
        dot,
        text,
    )
