"""The table of features; it leaves out the values of sensitive columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from markupsafe import Markup

from ctr_pipeline.reporting.data import PlanRow, ProfileData, ReportData
from ctr_pipeline.reporting.formats import (
    bytes_text,
    count_text,
    percent_text,
    short_count,
    shorten,
    value_text,
)
from ctr_pipeline.reporting.profile_charts import (
    histogram_chart,
    histogram_spark,
    rate_range,
    share_strip,
)
from ctr_pipeline.reporting.section import PageSection
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.statistics import (
    ColumnStatistics,
    LengthStatistics,
    Statistics,
    VocabularyStatistics,
)
from ctr_pipeline.summary_statistics.registry import LABELS

REPORT_POSITION = 60
PROFILE_POSITION = 20

MAX_DETAILED_FEATURES = 400
"""Features beyond this many have no chart when opened, so that the page stays a few megabytes."""

_TOP_VALUES = 10
_VALUE_LENGTH = 60


_LEFT_OUT_SHOWN = 200
_NOTES_SHOWN = 20


@dataclass(frozen=True)
class TopValue:
    """One frequent value: its text, rows, share of rows, bar length in percent, click rate."""

    text: str
    rows: str
    share: str
    bar: float
    rate: str
    lift: str
    lift_tone: str


@dataclass(frozen=True)
class FeatureView:
    """One feature, ready to be written.

    Attributes:
        name: Column name, shortened.
        kind: How the column is read.
        sensitive: Values are hidden.
        missing: Share of rows.
        distinct: Values present.
        spark: Small chart of the values.
        rates: Small chart of the span of click rates.
        chains: (`dense` or `id`, chain as text).
        ids: Number of ids and dimension.
        facts: Names and values that the opened row lists.
        reason: Reason of the chains, and who decided on them.
        chart: Histogram with click rates.
        top_values: The most frequent values.
        top_note: A note on the values that are not shown.
    """

    name: str
    kind: ColumnType
    sensitive: bool
    missing: str
    distinct: str
    spark: Markup | None
    rates: Markup | None
    chains: tuple[tuple[str, str], ...]
    ids: str
    facts: tuple[tuple[str, str], ...]
    reason: str
    chart: Markup | None = None
    top_values: tuple[TopValue, ...] = ()
    top_note: str = ""


def section(data: ReportData | ProfileData) -> PageSection | None:
    """Columns, those left out and notes of their statistics; None if there are no columns."""
    has_label = isinstance(data, ReportData) or data.label is not None
    views = feature_views(data.plan, data.statistics, has_label=has_label)
    if not views:
        return None
    values = {
        "rows_named": "The training rows" if isinstance(data, ReportData) else "All rows",
        "has_label": has_label,
        "feature_groups": [
            (title, group)
            for title, kind in (("Numbers", ColumnType.NUMBER), ("Texts", ColumnType.TEXT))
            if (group := [view for view in views if view.kind == kind])
        ],
        "num_features": len(data.plan),
        "max_detailed": MAX_DETAILED_FEATURES,
        "feature_notes": () if data.statistics is None else data.statistics.notes[:_NOTES_SHOWN],
        "left_out": dict(islice(data.left_out.items(), _LEFT_OUT_SHOWN)),
        "num_left_out": len(data.left_out),
    }
    return PageSection("features", "Features", "features.html.j2", values)


def feature_views(
    plan: Sequence[PlanRow], statistics: Statistics | None, *, has_label: bool = True
) -> tuple[FeatureView, ...]:
    """All features in the order of the plan.

    Args:
        plan: Rows of the plan.
        statistics: None if there are none.
        has_label: Whether the rows have one; else no click rate is shown.
    """
    highest = _highest_rate(plan, statistics)
    return tuple(
        _view(
            row,
            statistics,
            highest,
            detailed=index < MAX_DETAILED_FEATURES,
            has_label=has_label,
        )
        for index, row in enumerate(plan)
    )


def _highest_rate(plan: Sequence[PlanRow], statistics: Statistics | None) -> float:
    """End of the common scale of click rates."""
    if statistics is None:
        return 1.0
    shown = [
        rate
        for row in plan
        if not row.sensitive and row.feature in statistics.columns
        for rate, count in _rates(statistics.columns[row.feature])
        if count >= 30
    ]
    return min(1.0, max([*shown, statistics.label_rate])) or 1.0


def _rates(column: ColumnStatistics) -> list[tuple[float, int]]:
    """Click rate and rows of each bin or frequent value, and of missing rows."""
    parts = [
        (one.label_rate, one.count)
        for one in (column.histogram or column.top_values)
        if one.label_rate is not None
    ]
    if column.missing_label_rate is not None:
        parts.append((column.missing_label_rate, column.num_missing))
    return parts


def _view(
    row: PlanRow,
    statistics: Statistics | None,
    highest: float,
    *,
    detailed: bool,
    has_label: bool,
) -> FeatureView:
    column = None if statistics is None else statistics.columns.get(row.feature)
    chains = tuple(
        (kind, shorten(chain, 120))
        for kind, chain in (("dense", row.number), ("id", row.id))
        if chain is not None
    )
    shown = column is not None and not row.sensitive and statistics is not None
    base = statistics.label_rate if statistics is not None else 0.0
    return FeatureView(
        name=shorten(row.feature, 60),
        kind=row.column_type,
        sensitive=row.sensitive,
        missing="–" if column is None else percent_text(column.num_missing / max(column.count, 1)),
        distinct="–" if column is None else short_count(column.num_distinct),
        spark=_spark(column) if shown and column is not None else None,
        rates=rate_range(_rates(column), base_rate=base, highest=highest)
        if shown and has_label and column is not None
        else None,
        chains=chains,
        ids="–" if row.num_ids is None else _ids_text(row),
        facts=tuple(_facts(row, column, statistics, has_label=has_label)),
        reason=shorten(row.reason, 400),
        chart=_chart(column, base if has_label else None)
        if shown and detailed and column is not None
        else None,
        top_values=_top_values(column, base) if shown and detailed and column is not None else (),
        top_note=_top_note(column) if shown and detailed and column is not None else "",
    )


def _ids_text(row: PlanRow) -> str:
    ids = short_count(row.num_ids or 0)
    return ids if row.dimension is None else f"{ids} × {row.dimension}"


def _spark(column: ColumnStatistics) -> Markup | None:
    if column.histogram:
        # As many as the numbers that missing vectors would have.
        missing = column.num_missing * (column.vector_length or 1)
        return histogram_spark(column.histogram, missing)
    counts = [one.count for one in column.top_values]
    return share_strip(counts, column.num_missing, column.num_values + column.num_missing)


def _chart(column: ColumnStatistics, base_rate: float | None) -> Markup | None:
    if not column.histogram:
        return None
    return histogram_chart(
        column.histogram,
        base_rate=base_rate,
        label=f"Histogram{'' if base_rate is None else ' and click rate'} of "
        f"{shorten(column.column, 80)}",
    )


def _top_values(column: ColumnStatistics, base_rate: float) -> tuple[TopValue, ...]:
    if column.histogram:
        return ()
    lines = [
        (shorten(one.value, _VALUE_LENGTH), one.count, one.label_rate)
        for one in column.top_values[:_TOP_VALUES]
    ]
    if column.num_missing and column.missing_label_rate is not None:
        lines.append(("", column.num_missing, column.missing_label_rate))
    longest = max((count for _, count, _ in lines), default=1)
    return tuple(
        _top_value(
            text,
            rate,
            rows=count,
            of_rows=column.num_values + column.num_missing,
            longest=longest,
            base_rate=base_rate,
        )
        for text, count, rate in lines
    )


def _top_value(
    text: str, rate: float, *, rows: int, of_rows: int, longest: int, base_rate: float
) -> TopValue:
    lift = rate / base_rate if base_rate > 0 else 1.0
    return TopValue(
        text=text,
        rows=count_text(rows),
        share=percent_text(rows / max(of_rows, 1)),
        bar=round(100 * rows / longest, 1),
        rate=percent_text(rate),
        lift=f"×{lift:.2f}",
        lift_tone="up" if lift >= 1.1 else "down" if lift <= 0.9 else "same",
    )


def _top_note(column: ColumnStatistics) -> str:
    if column.histogram:
        return ""
    shown = sum(one.count for one in column.top_values[:_TOP_VALUES])
    rest = column.num_values - shown
    others = column.num_distinct - min(len(column.top_values), _TOP_VALUES)
    if others <= 0 or rest <= 0:
        return ""
    share = percent_text(rest / max(column.num_values + column.num_missing, 1))
    return f"{count_text(others)} other values share {count_text(rest)} rows ({share})."


def _facts(
    row: PlanRow,
    column: ColumnStatistics | None,
    statistics: Statistics | None,
    *,
    has_label: bool,
) -> list[tuple[str, str]]:
    facts: list[tuple[str, str]] = []
    if column is not None:
        facts += [
            ("Missing", f"{count_text(column.num_missing)} rows"),
            ("Distinct values", count_text(column.num_distinct)),
        ]
        if column.missing_label_rate is not None and has_label:
            facts.append(("Click rate where missing", percent_text(column.missing_label_rate)))
        if column.num_infinite:
            facts.append(("Infinite", f"{count_text(column.num_infinite)} rows"))
        if column.vector_length is not None:
            facts.append(("Numbers a row", f"{column.vector_length}, shown all together"))
        if column.lengths is not None:
            facts += _length_facts(column.lengths)
        if not row.sensitive:
            facts += _number_facts(column)
            facts += _summary_facts(column)
        facts += _information_facts(column)
    vocabulary = None if statistics is None else statistics.vocabularies.get(row.feature)
    facts += _plan_facts(row, vocabulary)
    return facts


def _information_facts(column: ColumnStatistics) -> list[tuple[str, str]]:
    found = column.label_information
    if found is None:
        return []
    return [
        ("Information value", value_text(found.information_value, digits=3)),
        ("Information about the click", f"{value_text(found.mutual_information)} nats a row"),
    ]


def _summary_facts(column: ColumnStatistics) -> list[tuple[str, str]]:
    return [
        (label, count_text(value) if isinstance(value, int) else value_text(value))
        for name, label in LABELS.items()
        if (value := column.summary.get(name)) is not None
    ]


def _length_facts(lengths: LengthStatistics) -> list[tuple[str, str]]:
    return [
        (
            "Elements a row",
            f"mean {value_text(lengths.mean)}, median {lengths.median}, 95 % have at most "
            f"{lengths.most_of_95_percent}, the longest {lengths.maximum}",
        ),
        ("Rows cut to the most elements that count", f"{count_text(lengths.num_truncated)} rows"),
    ]


def _number_facts(column: ColumnStatistics) -> list[tuple[str, str]]:
    facts: list[tuple[str, str]] = []
    moments = column.moments
    if moments is not None and moments.mean is not None:
        facts += [
            ("Range", f"{value_text(moments.minimum)} to {value_text(moments.maximum)}"),
            ("Mean", value_text(moments.mean)),
            ("Standard deviation", value_text(moments.standard_deviation)),
        ]
    if column.quantiles:
        ordered: Sequence[tuple[str, float]] = sorted(
            column.quantiles.items(), key=lambda pair: float(pair[0])
        )
        names = " / ".join(f"{float(name) * 100:g}" for name, _ in ordered)
        facts.append((f"{names} % quantile", " / ".join(value_text(v) for _, v in ordered)))
    return facts


def _plan_facts(row: PlanRow, vocabulary: VocabularyStatistics | None) -> list[tuple[str, str]]:
    facts: list[tuple[str, str]] = []
    if row.statistics:
        facts.append(("Statistics used", shorten(", ".join(row.statistics), 200)))
    if row.vocabulary_size is not None:
        facts.append(("Vocabulary", f"{count_text(row.vocabulary_size)} values"))
    if vocabulary is not None and vocabulary.num_excluded_values:
        facts.append(
            (
                "Too rare for it",
                f"{count_text(vocabulary.num_excluded_values)} values in "
                f"{count_text(vocabulary.num_excluded_rows)} rows",
            )
        )
    if row.num_ids is not None:
        facts.append(("Ids", count_text(row.num_ids)))
    if row.dimension is not None:
        facts.append(("Embedding length", str(row.dimension)))
    if row.max_bytes is not None:
        facts.append(("Embedding memory", bytes_text(row.max_bytes)))
    return facts
