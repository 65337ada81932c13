"""Feature specifications and statistics to a preprocessing plan."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ctr_pipeline.errors import PreprocessingError
from ctr_pipeline.features import FeatureSpec, expression_key
from ctr_pipeline.kernels.float64 import fill
from ctr_pipeline.preprocessing.chains import check_chain
from ctr_pipeline.preprocessing.plan import FieldPlan, NumberPlan, PreprocessingPlan
from ctr_pipeline.preprocessing.sharing import share_problems
from ctr_pipeline.statistics import Moments, Statistics, VocabularyStatistics
from ctr_pipeline.transforms import AnyTransform
from ctr_pipeline.transforms.base import (
    MAX_IDS,
    IdStep,
    IdTransform,
    NumberFunction,
    NumberStep,
    NumberTransform,
    TextStep,
    TextTransform,
)
from ctr_pipeline.transforms.clip import Clip
from ctr_pipeline.transforms.cross import CrossPart
from ctr_pipeline.transforms.fill import Fill
from ctr_pipeline.transforms.shared.intervals import IntervalsStep, bisect_steps

SAYS_NOTHING = 16384.0
"""Rows of the overall click rate for a column whose values foretell nothing with 4096 of them."""


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
        fit = _Column(spec.column, statistics, folder)
        if spec.number is not None:
            one = NumberPlan(
                name=spec.column,
                column=spec.column,
                steps=fit.input_steps(spec.number),
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
    # Sequences last, so that the positions of ordinary fields are the first ones.
    fields.sort(key=lambda field: field.sequence is not None)
    return PreprocessingPlan(fields=tuple(fields), numbers=tuple(numbers))


def ends_of_inputs(
    features: Sequence[FeatureSpec], statistics: Statistics
) -> dict[str, tuple[float, float]]:
    """The smallest and the largest dense input of all training rows by column, where known."""
    numbers = {spec.column: spec.number for spec in features if spec.number is not None}
    found = {
        column: _Column(column, statistics, Path()).ends(chain) for column, chain in numbers.items()
    }
    return {column: ends for column, ends in found.items() if ends is not None}


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


class _Column:
    """One column of the training rows after some steps, as transforms are fitted to it."""

    def __init__(
        self,
        column: str,
        statistics: Statistics,
        folder: Path,
        before: tuple[AnyTransform, ...] = (),
    ) -> None:
        self.column = column
        self.statistics = statistics
        self.folder = folder
        self._before = before

    @property
    def has_steps_before(self) -> bool:
        return bool(self._before)

    def after(self, before: tuple[AnyTransform, ...]) -> "_Column":
        return _Column(self.column, self.statistics, self.folder, before)

    def number_steps(self, chain: tuple[AnyTransform, ...]) -> tuple[NumberStep, ...]:
        return tuple(
            self._number_step(transform, chain[:position])
            for position, transform in enumerate(chain)
            if isinstance(transform, NumberTransform)
        )

    def input_steps(self, chain: tuple[AnyTransform, ...]) -> tuple[NumberStep, ...]:
        """The steps of a dense input; one that no training row tells from others stays as it is.

        No weight was trained with it, so what later rows hold there would count at random.
        """
        steps, ends = self.number_steps(chain), self.ends(chain)
        if ends is None or ends[0] != ends[1]:
            return steps
        value, _ = ends
        return (*steps, Fill(value=value), Clip(minimum=value, maximum=value))

    def ends(self, chain: tuple[AnyTransform, ...]) -> tuple[float, float] | None:
        """The smallest and the largest dense input of all training rows; None: not known."""
        steps = self.number_steps(chain)
        known = self.statistics.column(self.column)
        count = known.count * (known.vector_length or 1)
        first = len(chain) - len(steps)
        for position in range(first, len(chain) + 1):
            key = expression_key(self.column, chain[:position])
            moments = self.statistics.derived_moments.get(key) if position else known.moments
            if moments is None or known.num_infinite:
                continue
            met = [] if moments.minimum is None else [moments.minimum, moments.maximum]
            values = np.array(met if moments.count == count else [*met, np.nan], np.float64)
            # No step makes a larger value the smaller one.
            for step in steps[position - first :]:
                values = step.kernel(values)
            values = fill(values, 0.0)
            return float(values.min()), float(values.max())
        return None

    def _number_step(
        self, transform: NumberTransform, before: tuple[AnyTransform, ...]
    ) -> NumberStep:
        moments = self.after(before).moments() if transform.needs.moments else None
        try:
            return transform.fit(moments)
        except PreprocessingError as error:
            raise self._error(error.message, error.remedy) from error

    def text_step(self, chain: tuple[AnyTransform, ...]) -> TextStep | None:
        """What makes a number of the text, if that is how the chain begins."""
        first = chain[0] if chain else None
        return first.fit(self) if isinstance(first, TextTransform) else None

    def id_step(self, chain: tuple[AnyTransform, ...]) -> tuple[IdStep, int]:
        """The only field of a chain that ends in an id: its step and its number of ids."""
        ((_, step, num_ids),) = self._id_fields(chain)
        return step, num_ids

    def fields(self, spec: FeatureSpec, chain: tuple[AnyTransform, ...]) -> list[FieldPlan]:
        """The field of a chain, or one for each part of a time or each hash function."""
        return [
            self._field(spec, chain, f"{spec.column}{ending}", step, num_ids)
            for ending, step, num_ids in self._id_fields(chain)
        ]

    def _id_fields(self, chain: tuple[AnyTransform, ...]) -> list[tuple[str, IdStep, int]]:
        last = chain[-1]
        if not isinstance(last, IdTransform):
            raise ValueError(f"feature '{self.column}': '{last.name}' gives no id")
        try:
            return last.fit_fields(self.after(chain[:-1]))
        except PreprocessingError as error:
            raise self._error(error.message, error.remedy) from error

    def _field(
        self,
        spec: FeatureSpec,
        chain: tuple[AnyTransform, ...],
        name: str,
        step: IdStep,
        num_ids: int,
    ) -> FieldPlan:
        # One more for the positions that no element of a sequence is in.
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
        information = self.statistics.column(self.column).label_information
        first = chain[0]
        is_judged = spec.sequence is None and first.is_of_value
        if information is None or not is_judged:
            return None
        rate = self.statistics.label_rate
        smoothing = information.smoothing
        return (SAYS_NOTHING if smoothing is None else smoothing) * rate * (1.0 - rate)

    def value_table(self, min_count: int) -> VocabularyStatistics:
        known = self.statistics.value_tables.get(self.column)
        if known is None:
            raise self.stale("no table of counts")
        if known.min_count > min_count:
            raise self.stale("a table of counts of a larger min_count")
        return known

    def intervals(
        self, level: NumberFunction, id_of: NumberFunction, num_ids: int
    ) -> tuple[IdStep, int]:
        steps = self.number_steps(self._before)

        def chain(values: np.ndarray) -> np.ndarray:
            for step in steps:
                values = step.kernel(values)
            return values

        fitted = bisect_steps(lambda x: level(chain(x)), lambda x: id_of(chain(x)))
        filled = chain(np.array([np.nan]))
        missing_id = num_ids if np.isnan(filled[0]) else int(id_of(filled)[0])
        return IntervalsStep.of(fitted, missing_id=missing_id), num_ids + 1

    def moments(self) -> Moments:
        if not self._before:
            moments = self.statistics.column(self.column).moments
        else:
            key = expression_key(self.column, self._before)
            moments = self.statistics.derived_moments.get(key)
        if moments is None:
            raise self.stale(f"no moments after {_names(self._before)}")
        return moments

    def quantiles(self, count: int) -> tuple[float, ...]:
        key = expression_key(self.column, self._before)
        boundaries = self.statistics.boundaries.get(key, {}).get(str(count))
        if boundaries is None:
            raise self.stale(f"no {count}-quantiles after {_names(self._before)}")
        return boundaries

    def stale(self, what: str) -> ValueError:
        # The statistics are computed for these very features: only a mistake of the program.
        return ValueError(f"feature '{self.column}' has {what} in the statistics")

    def _error(self, message: str, remedy: str | None) -> PreprocessingError:
        return PreprocessingError(message, place=f"feature '{self.column}'", remedy=remedy)


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
    if not isinstance(transform, IdTransform):
        raise ValueError(f"feature '{spec.column}': '{transform.name}' gives no id")
    parts = []
    for part in crossed:
        step = None
        if part.id is not None:
            fit = _Column(part.column, statistics, folder)
            step, _ = fit.id_step(part.id)
        parts.append(CrossPart(column=part.column, column_type=part.column_type, step=step))
    step, num_ids = transform.fit_cross(tuple(parts))
    return FieldPlan(
        name=spec.column,
        column=spec.column,
        column_type=spec.column_type,
        transforms=("cross", transform.name),
        num_ids=num_ids,
        step=step,
    )


def _names(chain: tuple[AnyTransform, ...]) -> str:
    return " | ".join(transform.name for transform in chain) or "no transform"
