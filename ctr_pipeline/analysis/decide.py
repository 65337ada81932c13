"""`features: auto`: which columns are used and what becomes of each, from the statistics alone.

Reasons are sentences for a person. They tell counts, shares and ratios, never values of the data,
since a column may be sensitive.
"""

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from ctr_pipeline.analysis.leaks import describe_leak
from ctr_pipeline.analysis.whole_numbers import FEW_VALUES, Nature, WholeNumbers
from ctr_pipeline.dataset.inference import time_patterns
from ctr_pipeline.datetime_formats import EPOCH_DIVISORS, ISO
from ctr_pipeline.features import FeatureSpec, ListSpec, SequenceSpec, VectorSpec
from ctr_pipeline.kernels.text_buffers import text_buffers
from ctr_pipeline.kernels.time_parsing import NO_TIME, parse_seconds
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.statistics import ColumnStatistics, Moments, Statistics
from ctr_pipeline.transforms import AnyTransform
from ctr_pipeline.transforms.bucketize import Bucketize
from ctr_pipeline.transforms.datetime import Datetime, DatetimePart
from ctr_pipeline.transforms.log import Log
from ctr_pipeline.transforms.standardize import Standardize
from ctr_pipeline.transforms.target_encode import TargetEncode
from ctr_pipeline.transforms.vocabulary import Vocabulary

NUM_QUANTILES = 30
MOST_ROWS_FOR_RATES = 50_000
"""Beyond, embeddings learn what click rates tell: of 88,000 rows of Criteo they made AUC worse."""
NUM_FINE_QUANTILES = 300
"""Quantiles of numbers whose single values tell something as well."""
NUM_FINEST_QUANTILES = 10_000
"""Quantiles of numbers that are not sure to be ids: frequent ones get intervals of their own."""
_SECONDS_OF_A_DAY = 86_400
_WHOLE = re.compile(r"[+-]?(0|[1-9]\d{0,40})", re.ASCII)
_NO_LISTS: Mapping[str, ListSpec] = MappingProxyType({})
_NO_TIMES: Mapping[str, str] = MappingProxyType({})
_NO_WHOLE_NUMBERS: Mapping[str, WholeNumbers] = MappingProxyType({})
MIN_COUNT = 2
MAX_VOCABULARY = 2_000_000

HEAVY_SKEW = 2.0
"""An exponential distribution has this skew."""
HEAVY_RATIO = 20.0
"""Largest value over median, from which a tail is heavy whatever the skew."""
SMALLEST_LOG_MAXIMUM = 3.0
"""Below this, log(1 + x) is nearly a straight line and changes nothing."""
NEGATIVE_SHARE = 0.01
"""log takes numbers below 0 as 0; they may lie this far below it, in parts of the 95 % quantile."""


@dataclass(frozen=True)
class ColumnDecision:
    """Whether a column is used.

    Attributes:
        column: The column's name.
        used: Whether it became a feature.
        reason: Why, one sentence without a full stop.
    """

    column: str
    used: bool
    reason: str


def decide_features(
    columns: Mapping[str, ColumnType],
    statistics: Statistics,
    *,
    label: str,
    lists: Mapping[str, ListSpec] = _NO_LISTS,
    times: Mapping[str, str] = _NO_TIMES,
    whole_numbers: Mapping[str, WholeNumbers] = _NO_WHOLE_NUMBERS,
    counters: Collection[str] = (),
    growth: float = 1.0,
) -> tuple[tuple[FeatureSpec, ...], tuple[ColumnDecision, ...]]:
    """Decides each column's transforms.

    Args:
        columns: How each column is read, in the order of the data.
        statistics: Statistics of the training rows, with the profile of every column.
        label: Name of the label column, about which there is nothing to decide.
        lists: Text columns whose values are lists, and how they are cut.
        times: Columns whose first values are points in time, and their format.
        whole_numbers: What the whole numbers of columns say about the click; ids among them are
            read as text.
        counters: Columns of whole numbers that ascend from row to row in the first rows.
        growth: Training rows there are for each of the statistics', if these are of the first ones.

    Returns:
        The features, and a decision for every column except the label.

    Raises:
        ValueError: A column has no statistics, or they are not those of its type.
    """
    features: list[FeatureSpec] = []
    decisions: list[ColumnDecision] = []
    for column, column_type in columns.items():
        if column == label:
            continue
        feature, reason = _decide_column(
            column,
            column_type,
            statistics,
            cut=lists.get(column),
            format=times.get(column),
            judged=whole_numbers.get(column),
            is_counter=column in counters,
            growth=growth,
        )
        if feature is not None:
            features.append(feature)
        decisions.append(ColumnDecision(column, feature is not None, reason))
    return tuple(features), tuple(decisions)


def _decide_column(
    column: str,
    column_type: ColumnType,
    statistics: Statistics,
    *,
    cut: ListSpec | None,
    format: str | None,
    judged: WholeNumbers | None,
    is_counter: bool,
    growth: float,
) -> tuple[FeatureSpec | None, str]:
    known = statistics.column(column)
    if known.column_type is not column_type:
        raise ValueError(
            f"column '{column}': the statistics are those of a {known.column_type.value} column, "
            f"and it is read as {column_type.value}"
        )
    formats = () if format is not None or cut is not None else _patterns_of(known)
    format = formats[0] if len(formats) == 1 else format
    # None of these has to repeat as a whole to tell something.
    problem = _unusable(known) if format is None and cut is None else _all_missing(known)
    if is_counter and format is None and known.num_distinct == known.count:
        problem = (
            f"it counts the rows: whole numbers that ascend from row to row, each of its "
            f"{known.count:,} values once"
        )
    problem = problem or describe_leak(known, statistics.label_rate)
    if problem is not None:
        return None, problem
    if format is not None:
        return _decide_time(known, format)
    if isinstance(cut, SequenceSpec):
        return _decide_sequence(known, cut)
    if cut is not None:
        return _decide_vector(known, cut)
    if column_type is ColumnType.TEXT:
        feature, reason = _decide_text(known, judged, growth)
        if formats:
            reason += (
                f"; its dates are {' or '.join(formats)}, and no value tells which: with "
                "`id: datetime` and the right `format` they tell the hour and the weekday"
            )
            feature = feature.model_copy(update={"reason": reason})
        return feature, reason
    return _decide_number(known, judged)


def _unusable(column: ColumnStatistics) -> str | None:
    num_present = column.count - column.num_missing
    if num_present == 0:
        return _all_missing(column)
    if column.num_distinct == 1 and column.num_missing == 0:
        return f"it has the same value in all {_rows(column.count)}"
    if column.column_type is ColumnType.TEXT and column.num_distinct == num_present > 1:
        return (
            f"each of its {num_present:,} values occurs once, "
            f"so nothing can be learned about any of them"
        )
    return None


def _all_missing(column: ColumnStatistics) -> str | None:
    return f"all its {_rows(column.count)} are missing" if column.is_missing else None


def _patterns_of(column: ColumnStatistics) -> tuple[str, ...]:
    """Formats by which the column's most frequent values are points in time."""
    num_rows = np.array([top.count for top in column.top_values], np.int64)
    return time_patterns(_top_texts(column), num_rows)


def _top_texts(column: ColumnStatistics) -> pa.Array:
    return pa.array([top.value for top in column.top_values], pa.string())


def _parts_of_time(column: ColumnStatistics, format: str) -> tuple[DatetimePart, ...]:
    """The parts that tell something, by the column's most frequent values."""
    seconds = parse_seconds(text_buffers(_top_texts(column)), format)
    times = np.unique(seconds[seconds != NO_TIME] % _SECONDS_OF_A_DAY)
    return ("weekday",) if len(times) == 1 else ("hour", "weekday")


def _decide_time(column: ColumnStatistics, format: str) -> tuple[FeatureSpec, str]:
    parts = _parts_of_time(column, format)
    name = format.replace("_", " ") if format in EPOCH_DIVISORS else format
    written = "" if format == ISO else f", written as {name},"
    reason = (
        f"points in time{written} with {_values(column.num_distinct)}{_missing(column)}: "
        f"{' and '.join(parts)}, as which they come again"
    )
    feature = FeatureSpec(
        column=column.column,
        column_type=ColumnType.TEXT,
        id=(Datetime(parts=parts, format=format),),
        reason=reason,
    )
    return feature, reason


def _decide_sequence(column: ColumnStatistics, sequence: SequenceSpec) -> tuple[FeatureSpec, str]:
    weights = ", each with a weight" if sequence.weights else ""
    reason = (
        f"lists of elements between '{sequence.delimiter}'{weights}, "
        f"{_values(column.num_distinct)}{_missing(column)}: a vocabulary of the elements seen at "
        f"least {MIN_COUNT} times, the mean of the last {sequence.max_length}"
    )
    feature = FeatureSpec(
        column=column.column,
        column_type=ColumnType.TEXT,
        id=(Vocabulary(min_count=MIN_COUNT),),
        sequence=sequence,
        reason=reason,
    )
    return feature, reason


def _decide_vector(column: ColumnStatistics, vector: VectorSpec) -> tuple[FeatureSpec, str]:
    reason = (
        f"lists of {vector.length} numbers each{_missing(column)}: a vector, its numbers "
        f"standardized together"
    )
    feature = FeatureSpec(
        column=column.column,
        column_type=ColumnType.TEXT,
        number=(Standardize(),),
        vector=vector,
        reason=reason,
    )
    return feature, reason


def _decide_text(
    column: ColumnStatistics, judged: WholeNumbers | None, growth: float
) -> tuple[FeatureSpec, str]:
    if judged is not None:
        kind = "whole numbers"
    else:
        kind = "whole numbers beyond 2^53, read as text," if _are_beyond_floats(column) else "text"
    reason = (
        f"{kind} with {_values(column.num_distinct)}{_missing(column)}{_known_from(judged)}: "
        f"a vocabulary of those seen at least {MIN_COUNT} times"
    )
    max_size = None
    if column.num_distinct > MAX_VOCABULARY:
        max_size = MAX_VOCABULARY
        reason += f", the {MAX_VOCABULARY:,} most frequent"
    rate = _rate_of_value(column, growth)
    if rate is not None:
        reason += (
            f"; and as a number each value's click rate, that of a training row by other rows, "
            f"with {_rows(round(rate.smoothing))} of the overall rate, as foretells clicks best"
        )
    feature = FeatureSpec(
        column=column.column,
        column_type=ColumnType.TEXT,
        number=None if rate is None else (rate, Standardize()),
        id=(Vocabulary(min_count=MIN_COUNT, max_size=max_size),),
        reason=reason,
    )
    return feature, reason


def _rate_of_value(column: ColumnStatistics, growth: float) -> TargetEncode | None:
    """The click rate as a number, for a text of many values that foretell the click by it."""
    information = column.label_information
    if information is None or information.smoothing is None or column.num_distinct <= FEW_VALUES:
        return None
    if column.count * growth > MOST_ROWS_FOR_RATES:
        return None
    return TargetEncode(smoothing=information.smoothing)


def _known_from(judged: WholeNumbers | None) -> str:
    """Why whole numbers are ids or measures."""
    if judged is None:
        return ""
    start = f"; in the first {judged.num_rows:,} rows with a value,"
    of_values, of_intervals, of_others = (
        f"{share:.2%}" for share in (judged.by_value, judged.by_interval, judged.by_others)
    )
    explains = (
        f"{start} each value by itself explains {of_values} of the log loss, intervals of "
        f"neighbouring ones {of_intervals}"
    )
    match judged.nature:
        case Nature.ID:
            return f"{explains}, and other values nearby {of_others}, so they are ids"
        case Nature.MEASURE:
            return f"{explains}, so they are a measure"
        case Nature.BOTH if judged.could_be_ids:
            return (
                f"{explains}, but neighbouring ones occur unlike often, as ids do, so they are "
                "taken as both ids and a measure"
            )
        case Nature.BOTH if judged.by_value > 0.0:
            return f"{explains}, so they are taken as both ids and a measure"
        case _:
            return f"{start} no value tells more of the click than others do"


def _are_beyond_floats(column: ColumnStatistics) -> bool:
    """Whether the most frequent values are whole numbers, some of them too large for float64."""
    texts = [top.value for top in column.top_values]
    return all(_WHOLE.fullmatch(text) for text in texts) and any(
        abs(int(text)) > 2**53 for text in texts
    )


def _decide_number(
    column: ColumnStatistics, judged: WholeNumbers | None
) -> tuple[FeatureSpec, str]:
    num_quantiles = _num_quantiles(judged)
    ids: AnyTransform = Bucketize(quantiles=num_quantiles)
    id_reason = f"an id for each of up to {num_quantiles:,} equally full intervals"
    between = _between_categories(column)
    if between:
        ids = Bucketize(boundaries=between)
        id_reason = "an id for each of its values, as they are few and whole"
    told = "" if between else _known_from(judged)
    kind = f"number with {_values(column.num_distinct)}{_missing(column)}{told}"
    moments = column.moments
    if moments is None:
        raise ValueError(f"column '{column.column}': the statistics have no profile of it")
    number: tuple[AnyTransform, ...] | None
    if not moments.standard_deviation:
        number = None
        reason = f"{kind}, the finite ones all equal: only whether and where it is there can tell"
    else:
        tail = _describe_tail(column, moments)
        number = (Standardize(),) if tail is None else (Log(), Standardize())
        skew = column.summary.get("skew")
        shape = "no skew" if skew is None else f"skew {skew:.1f}"
        chain = "standardized" if tail is None else "log, then standardized"
        mark = "; " if told else ", "
        reason = f"{kind}{mark}{shape}{f', {tail}' if tail else ''}: {chain}, and {id_reason}"
    feature = FeatureSpec(
        column=column.column,
        column_type=ColumnType.NUMBER,
        number=number,
        id=(ids,),
        reason=reason,
    )
    return feature, reason


def _num_quantiles(judged: WholeNumbers | None) -> int:
    """How fine the intervals are that have an id each."""
    if judged is None or judged.nature is Nature.MEASURE:
        return NUM_QUANTILES
    if judged.could_be_ids:
        return NUM_FINEST_QUANTILES
    return NUM_FINE_QUANTILES if judged.need_fine_intervals else NUM_QUANTILES


def _between_categories(column: ColumnStatistics) -> tuple[float, ...]:
    """What divides the values of a column that has few, all whole; empty for another one.

    A value that is new later has the id of the nearest known one.
    """
    if not column.top_values or len(column.top_values) != column.num_distinct:
        return ()
    values = sorted(float(top.value) for top in column.top_values)
    if not all(value.is_integer() for value in values):
        return ()
    # Between neighbouring floats there is none.
    return tuple(
        max((low + high) / 2, math.nextafter(low, math.inf)) for low, high in pairwise(values)
    )


def _describe_tail(column: ColumnStatistics, moments: Moments) -> str | None:
    """What makes the logarithm better than the number itself, or None if it is not."""
    minimum, maximum, skew = moments.minimum, moments.maximum, column.summary.get("skew")
    if minimum is None or maximum is None or skew is None:
        return None
    if maximum < SMALLEST_LOG_MAXIMUM or minimum < -NEGATIVE_SHARE * column.quantiles["0.95"]:
        return None
    median = column.quantiles["0.5"]
    if median > 0 and maximum > HEAVY_RATIO * median:
        return f"the largest {maximum / median:,.0f} times the median"
    return "a heavy tail" if skew > HEAVY_SKEW else None


def _missing(column: ColumnStatistics) -> str:
    if column.num_missing == 0:
        return ""
    share = column.num_missing / column.count
    return f" and {share:.1%} missing" if share >= 0.001 else " and under 0.1% missing"


def _values(count: int) -> str:
    return "1 value" if count == 1 else f"{count:,} different values"


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"
