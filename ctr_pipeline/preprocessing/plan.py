"""Feature specifications and statistics to a preprocessing plan."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ctr_pipeline.datetime_formats import iso_seconds
from ctr_pipeline.errors import PreprocessingError
from ctr_pipeline.features import (
    Age,
    AnyTransform,
    Bucketize,
    Clip,
    CountEncode,
    Datetime,
    FeatureSpec,
    Fill,
    Hash,
    Log,
    LogRound,
    Normalize,
    RoundIdentity,
    Standardize,
    TargetEncode,
    TransformKind,
    Vocabulary,
    expression_key,
)
from ctr_pipeline.preprocessing.arrow_values import usable_divisor
from ctr_pipeline.preprocessing.chains import MAX_IDS, check_chain
from ctr_pipeline.preprocessing.datetime_kernels import PART_SIZES
from ctr_pipeline.preprocessing.faces import NUMBER_FACES
from ctr_pipeline.preprocessing.fitted import (
    FieldPlan,
    FittedAge,
    FittedClip,
    FittedCountEncode,
    FittedCross,
    FittedCrossPart,
    FittedDatetimePart,
    FittedFill,
    FittedHash,
    FittedIntervals,
    FittedLog,
    FittedNormalize,
    FittedRoundIdentity,
    FittedStandardize,
    FittedTargetEncode,
    FittedVocabulary,
    FittedWeights,
    IdStep,
    NumberPlan,
    NumberStep,
    PreprocessingPlan,
    TextStep,
)
from ctr_pipeline.preprocessing.intervals import (
    LN2_SMALL_IDS,
    LN2_TOP,
    NumberFunction,
    StepFunction,
    bisect_steps,
    boundary_level,
    boundary_steps,
    in_range_ids,
    ln2_level,
    log_round_level,
    round_level,
)
from ctr_pipeline.preprocessing.sharing import share_problems
from ctr_pipeline.statistics import Moments, Statistics, VocabularyStatistics

SAYS_NOTHING = 16384.0
"""Rows of the overall click rate for a column whose values foretell nothing with 4096 of them."""
DEFAULT_FOLDS = 5
"""Of `target_encode`: four fifths of the rows encode each row."""


def plan_preprocessing(
    features: Sequence[FeatureSpec], statistics: Statistics, folder: Path
) -> PreprocessingPlan:
    """Fits every chain.

    Args:
        features: In the order of the fields and numbers to be.
        statistics: Statistics of the training rows.
        folder: The run folder, which vocabulary files are below.

    Raises:
        PreprocessingError: A chain asks for more than ids or numbers hold.
        ValueError: A chain makes no sense, a feature is named twice, or the statistics are not
            those of these features.
    """
    problems = [problem for spec in features for problem in check_chain(spec)]
    problems += [
        f"feature '{problem.feature}': {problem.message}" for problem in share_problems(features)
    ]
    names = [spec.column for spec in features]
    problems += [
        f"feature '{name}': named more than once. Keep one entry for the column"
        for name in sorted({name for name in names if names.count(name) > 1})
    ]
    if problems:
        raise ValueError("\n".join(problems))
    fields = []
    numbers = []
    for spec in features:
        for part in spec.parts:
            if statistics.column(part.column).column_type is not part.column_type:
                raise ValueError(
                    f"feature '{part.column}' is {part.column_type} in the config and another type "
                    f"in the statistics"
                )
        fit = _Fit(spec.column, statistics, folder)
        if spec.number is not None:
            steps = fit.number_steps(spec.number)
            one = NumberPlan(
                name=spec.column,
                column=spec.column,
                steps=steps,
                first=fit.text_step(spec.number),
                vector=spec.vector,
            )
            numbers += [one] if spec.vector is None else _places(one, spec.vector.length)
        if spec.id is not None:
            if spec.cross is not None:
                made = [_cross(spec, spec.cross, spec.id, statistics, folder)]
            else:
                made = fit.fields(spec, spec.id)
            fields += [_with_table(spec, field) for field in made]
    names = [field.name for field in fields]
    for name in sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"two fields are called '{name}'. Rename the column of one of them")
    _require_apart(features, fields)
    # Sequences last, so that the slots of ordinary fields are the first ones.
    fields.sort(key=lambda field: field.sequence is not None)
    return PreprocessingPlan(fields=tuple(fields), numbers=tuple(numbers))


def _with_table(spec: FeatureSpec, field: FieldPlan) -> FieldPlan:
    """The field with the table that its feature shares: of several, each one of its own."""
    if spec.table is None or spec.table == spec.column:
        return field
    return field.model_copy(update={"table": spec.table + field.name.removeprefix(spec.column)})


def _require_apart(features: Sequence[FeatureSpec], fields: Sequence[FieldPlan]) -> None:
    """Raises PreprocessingError if a shared table has the name of another feature's field."""
    tables = {spec.column: spec.table or spec.column for spec in features}
    found: dict[str, str] = {}
    for field in fields:
        wanted = tables[field.column]
        if found.setdefault(field.table_name, wanted) != wanted:
            raise PreprocessingError(
                f"its table '{field.table_name}' would also be that of another feature",
                place=f"feature '{field.column}'",
                remedy="Give embedding.share another name",
            )


class _Fit:
    """Fits the chains of one column."""

    def __init__(self, column: str, statistics: Statistics, folder: Path) -> None:
        self._column = column
        self._statistics = statistics
        self._folder = folder

    def number_steps(self, chain: tuple[AnyTransform, ...]) -> tuple[NumberStep, ...]:
        return tuple(
            NUMBER_FITS[type(transform)](self, transform, chain[:position])
            for position, transform in enumerate(chain)
            if not transform.kind.takes_text
        )

    def text_step(self, chain: tuple[AnyTransform, ...]) -> TextStep | None:
        """What makes a number of the text, if that is how the chain begins."""
        if not chain or chain[0].kind is not TransformKind.TEXT_TO_NUMBER:
            return None
        step: TextStep = TEXT_FITS[type(chain[0])](self, chain[0])
        return step

    def fields(self, spec: FeatureSpec, chain: tuple[AnyTransform, ...]) -> list[FieldPlan]:
        """The field of a chain, or one for each part of a time or each hash function."""
        last = chain[-1]
        if isinstance(last, Datetime) and len(last.parts) > 1:
            alone = [last.model_copy(update={"parts": (part,)}) for part in last.parts]
            return [
                self._field(spec, (*chain[:-1], one), f"{spec.column}.{one.parts[0]}")
                for one in alone
            ]
        if isinstance(last, Hash) and last.functions > 1:
            field = self._field(spec, chain, spec.column)
            return [
                field.model_copy(
                    update={
                        "name": f"{spec.column}.{function + 1}",
                        "step": field.step.model_copy(update={"function": function}),
                    }
                )
                for function in range(last.functions)
            ]
        return [self._field(spec, chain, spec.column)]

    def _field(self, spec: FeatureSpec, chain: tuple[AnyTransform, ...], name: str) -> FieldPlan:
        step, num_ids = ID_FITS[type(chain[-1])](self, chain[-1], chain[:-1])
        # One more for the slots that no element of a sequence is in.
        num_ids += spec.sequence is not None
        if num_ids > MAX_IDS:
            raise self._error(
                f"would have {num_ids:,} ids, and ids are 32-bit integers",
                "Lower oov_buckets or max_size",
            )
        return FieldPlan(
            name=name,
            column=spec.column,
            column_type=spec.column_type,
            transforms=tuple(transform.name for transform in chain),
            num_ids=num_ids,
            step=step,
            first=self.text_step(chain),
            sequence=spec.sequence,
            prior_precision=self._prior_precision(spec, chain),
        )

    def _prior_precision(self, spec: FeatureSpec, chain: tuple[AnyTransform, ...]) -> float | None:
        """What the column says about the click, where the ids are of what it was judged by."""
        information = self._statistics.column(self._column).label_information
        first = chain[0]
        is_judged = spec.sequence is None and (
            not first.kind.takes_text or isinstance(first, Vocabulary | Hash)
        )
        if information is None or not is_judged:
            return None
        rate = self._statistics.label_rate
        smoothing = information.smoothing
        return (SAYS_NOTHING if smoothing is None else smoothing) * rate * (1.0 - rate)

    def standardize(
        self, transform: Standardize, before: tuple[AnyTransform, ...]
    ) -> FittedStandardize:
        moments = self._moments(before)
        mean, deviation = moments.mean, moments.standard_deviation
        if mean is None or deviation is None:
            # Nothing but missing values: any finite parameters do.
            mean, deviation = 0.0, 0.0
        self._check_finite(mean, deviation)
        return FittedStandardize(
            mean=mean, standard_deviation=usable_divisor(deviation), clip=transform.clip
        )

    def normalize(self, _: Normalize, before: tuple[AnyTransform, ...]) -> FittedNormalize:
        moments = self._moments(before)
        minimum, maximum = moments.minimum, moments.maximum
        if minimum is None or maximum is None:
            minimum, maximum = 0.0, 0.0
        self._check_finite(minimum, maximum - minimum)
        return FittedNormalize(subtractor=minimum, divisor=usable_divisor(maximum - minimum))

    def bucketize(
        self, transform: Bucketize, before: tuple[AnyTransform, ...]
    ) -> tuple[IdStep, int]:
        if transform.ln2:
            return self._intervals(before, ln2_level, ln2_level, LN2_SMALL_IDS + LN2_TOP + 1)
        if transform.boundaries is not None:
            boundaries = transform.boundaries
        elif transform.equal_width is not None:
            boundaries = self._equal_widths(transform.equal_width, before)
        else:
            boundaries = self._quantiles(transform.quantiles, before)
        cuts = np.array(boundaries, np.float64)
        if not before:
            # Bisection would find the same, in two milliseconds a feature.
            step = _as_intervals(boundary_steps(cuts), missing_id=len(cuts) + 1)
            return step, len(cuts) + 2
        level = boundary_level(cuts)
        return self._intervals(before, level, level, len(cuts) + 1)

    def log_round(
        self, transform: LogRound, before: tuple[AnyTransform, ...]
    ) -> tuple[IdStep, int]:
        level = log_round_level(transform.num_bins, transform.base)
        id_of = in_range_ids(level, transform.num_bins, transform.default_value)
        return self._intervals(before, level, id_of, transform.num_bins)

    def round_identity(
        self, transform: RoundIdentity, before: tuple[AnyTransform, ...]
    ) -> tuple[IdStep, int]:
        size = transform.num_buckets
        if before:
            level = round_level(size)
            id_of = in_range_ids(level, size, transform.default_value)
            return self._intervals(before, level, id_of, size)
        # Rounding is exact in both faces, so that millions of buckets need no thresholds.
        step = FittedRoundIdentity(
            num_buckets=size, default_value=transform.default_value, missing_id=size
        )
        return step, size + 1

    def vocabulary(self, transform: Vocabulary, _: tuple[AnyTransform, ...]) -> tuple[IdStep, int]:
        known = self._statistics.vocabularies.get(self._column)
        if known is None:
            raise self._stale("no vocabulary")
        if (known.min_count, known.max_size) != (transform.min_count, transform.max_size):
            raise self._stale("a vocabulary of another min_count or max_size")
        if not (self._folder / known.file).is_file():
            raise ValueError(f"there is no vocabulary file {self._folder / known.file}")
        missing_id = known.size + transform.oov_buckets
        step = FittedVocabulary(
            file=known.file,
            size=known.size,
            oov_buckets=transform.oov_buckets,
            missing_id=missing_id,
        )
        return step, missing_id + 1

    def count_encode(self, transform: CountEncode) -> FittedCountEncode:
        table = self._value_table(transform.min_count)
        return FittedCountEncode(file=table.file, size=table.size, min_count=transform.min_count)

    def target_encode(self, transform: TargetEncode) -> FittedTargetEncode:
        table = self._value_table(transform.min_count)
        known = self._statistics.column(self._column)
        missing_rate = known.missing_label_rate or 0.0
        weights, base = None, self._statistics.label_rate
        if self._statistics.value_weights is not None:
            found = self._statistics.value_weights[self._column]
            base = found.click_units / found.total_units
            weights = FittedWeights(
                column=found.weight,
                exponent=found.exponent,
                units_a_row=found.total_units / self._statistics.num_rows,
                missing_units=found.missing_units,
                missing_click_units=found.missing_click_units,
            )
        return FittedTargetEncode(
            file=table.file,
            size=table.size,
            min_count=transform.min_count,
            smoothing=transform.smoothing,
            base=base,
            missing_rows=known.num_missing,
            missing_clicks=round(missing_rate * known.num_missing),
            folds=None if transform.order == "time" else transform.folds or DEFAULT_FOLDS,
            weights=weights,
        )

    def age(self, transform: Age) -> FittedAge:
        if transform.at is None:
            raise ValueError(f"feature '{self._column}': no point in time that ages are counted to")
        return FittedAge(format=transform.format, at_seconds=iso_seconds(transform.at))

    def datetime(self, transform: Datetime, _: tuple[AnyTransform, ...]) -> tuple[IdStep, int]:
        (part,) = transform.parts
        size = PART_SIZES[part]
        step = FittedDatetimePart(
            part=part,
            format=transform.format,
            utc_offset_minutes=transform.utc_offset_minutes,
            missing_id=size,
        )
        return step, size + 1

    def _value_table(self, min_count: int) -> VocabularyStatistics:
        known = self._statistics.value_tables.get(self._column)
        if known is None:
            raise self._stale("no table of counts")
        if known.min_count > min_count:
            raise self._stale("a table of counts of a larger min_count")
        return known

    def _intervals(
        self,
        before: tuple[AnyTransform, ...],
        level: NumberFunction,
        id_of: NumberFunction,
        num_ids: int,
    ) -> tuple[IdStep, int]:
        """The whole chain as thresholds on the raw value; `num_ids` without the missing id."""
        steps = self.number_steps(before)

        def chain(values: np.ndarray) -> np.ndarray:
            for step in steps:
                values = NUMBER_FACES[step.kind].kernel(step, values)
            return values

        try:
            fitted = bisect_steps(lambda x: level(chain(x)), lambda x: id_of(chain(x)))
        except PreprocessingError as error:
            raise self._error(error.message, error.remedy) from error
        filled = chain(np.array([np.nan]))
        missing_id = num_ids if np.isnan(filled[0]) else int(id_of(filled)[0])
        return _as_intervals(fitted, missing_id=missing_id), num_ids + 1

    def _moments(self, before: tuple[AnyTransform, ...]) -> Moments:
        if not before:
            moments = self._statistics.column(self._column).moments
        else:
            key = expression_key(self._column, before)
            moments = self._statistics.derived_moments.get(key)
        if moments is None:
            raise self._stale(f"no moments after {_names(before)}")
        return moments

    def _quantiles(self, count: int | None, before: tuple[AnyTransform, ...]) -> tuple[float, ...]:
        key = expression_key(self._column, before)
        boundaries = self._statistics.boundaries.get(key, {}).get(str(count))
        if boundaries is None:
            raise self._stale(f"no {count}-quantiles after {_names(before)}")
        return boundaries

    def _equal_widths(self, count: int, before: tuple[AnyTransform, ...]) -> tuple[float, ...]:
        moments = self._moments(before)
        if moments.minimum is None or moments.maximum is None:
            return ()
        shares = np.arange(1, count) / count
        # Not by the width of an interval, which may overflow.
        cuts = np.unique(moments.minimum * (1 - shares) + moments.maximum * shares)
        # Of a range too narrow for so many intervals, a cut at its end would make an empty one.
        return tuple(cuts[cuts > moments.minimum].tolist())

    def _check_finite(self, *values: float) -> None:
        if not all(math.isfinite(value) for value in values):
            raise self._error(
                "has values so large that their moments overflow",
                "Put clip or log first in its chain",
            )

    def _stale(self, what: str) -> ValueError:
        # The statistics are computed for these very features: only a mistake of the program.
        return ValueError(f"feature '{self._column}' has {what} in the statistics")

    def _error(self, message: str, remedy: str | None) -> PreprocessingError:
        return PreprocessingError(message, place=f"feature '{self._column}'", remedy=remedy)


def _places(vector: NumberPlan, length: int) -> list[NumberPlan]:
    """A dense input for each number of a vector."""
    return [
        vector.model_copy(update={"name": f"{vector.name}[{place}]", "place": place})
        for place in range(length)
    ]


def _cross(
    spec: FeatureSpec,
    crossed: Sequence[FeatureSpec],
    chain: tuple[AnyTransform, ...],
    statistics: Statistics,
    folder: Path,
) -> FieldPlan:
    (transform,) = chain
    if not isinstance(transform, Hash):
        raise ValueError(f"feature '{spec.column}': a cross is hashed, not '{transform.name}'")
    parts = []
    for part in crossed:
        step = None
        if part.id is not None:
            fit = _Fit(part.column, statistics, folder)
            step, _ = ID_FITS[type(part.id[-1])](fit, part.id[-1], part.id[:-1])
        parts.append(FittedCrossPart(column=part.column, column_type=part.column_type, step=step))
    return FieldPlan(
        name=spec.column,
        column=spec.column,
        column_type=spec.column_type,
        transforms=("cross", transform.name),
        num_ids=transform.buckets + 1,
        step=FittedCross(
            parts=tuple(parts), num_bins=transform.buckets, missing_id=transform.buckets
        ),
    )


def _names(chain: tuple[AnyTransform, ...]) -> str:
    return " | ".join(transform.name for transform in chain) or "no transform"


# Each takes the fit, the transform and the transforms before it.
NUMBER_FITS: dict[type[AnyTransform], Callable[[_Fit, Any, tuple[AnyTransform, ...]], Any]] = {
    Log: lambda _fit, _transform, _before: FittedLog(),
    Standardize: _Fit.standardize,
    Normalize: _Fit.normalize,
    Clip: lambda _fit, transform, _before: FittedClip(
        minimum=transform.minimum, maximum=transform.maximum
    ),
    Fill: lambda _fit, transform, _before: FittedFill(value=transform.value),
}
TEXT_FITS: dict[type[AnyTransform], Callable[[_Fit, Any], TextStep]] = {
    CountEncode: _Fit.count_encode,
    TargetEncode: _Fit.target_encode,
    Age: _Fit.age,
}
ID_FITS: dict[type[AnyTransform], Callable[[_Fit, Any, tuple[AnyTransform, ...]], Any]] = {
    Bucketize: _Fit.bucketize,
    LogRound: _Fit.log_round,
    RoundIdentity: _Fit.round_identity,
    Hash: lambda _fit, transform, _before: (
        FittedHash(num_bins=transform.buckets, missing_id=transform.buckets),
        transform.buckets + 1,
    ),
    Vocabulary: _Fit.vocabulary,
    Datetime: _Fit.datetime,
}


def _as_intervals(steps: StepFunction, *, missing_id: int) -> FittedIntervals:
    return FittedIntervals(
        thresholds=tuple(steps.thresholds.tolist()),
        ids=tuple(steps.ids.tolist()),
        missing_id=missing_id,
    )
