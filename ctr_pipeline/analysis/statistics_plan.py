"""Which statistics the features of a plan need; a pure function of the features.

Everything is derived from the *value counts* of a column, that is from one
`GROUP BY value` over what the parts of the training rows say of it. What is planned here is what
to derive from them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict

from ctr_pipeline.features import FeatureSpec, SequenceSpec, VectorSpec, features_by_table
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.transforms import AnyTransform
from ctr_pipeline.transforms.base import Needs, TextTransform, VocabularyNeed

Chain = tuple[AnyTransform, ...]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class BoundaryPlan(_Frozen):
    """The ends of n equally full intervals of a column after a chain of transforms.

    Attributes:
        chain: Transforms before `bucketize`.
        num_quantiles: n. A value of half the rows has an interval for itself, and the quantiles are
            those of the other rows.
    """

    chain: Chain
    num_quantiles: int


class NumbersPlan(_Frozen):
    """What is derived from the counts of numbers.

    Attributes:
        column: Name of the column that they come from.
        moments: Chains after which the moments are needed, shorter ones first: a chain that itself
            standardizes or normalizes needs the moments of the chain before that step.
        boundaries: Quantiles after a chain.
    """

    column: str
    moments: tuple[Chain, ...] = ()
    boundaries: tuple[BoundaryPlan, ...] = ()


class ColumnPlan(NumbersPlan):
    """What is derived from the value counts of one column.

    Attributes:
        column_type: How it is read.
        profile: Whether the report's statistics are wanted: quantiles, top values, histogram.
        vocabulary: The vocabulary wanted, or None.
        table_min_count: If counts or click rates of values are wanted, those of values that occur
            so often.
        sequence: How texts are cut into the elements that values are, or None.
        vector: How texts are cut into the numbers that values are, or None.
        table: The embedding table whose columns have one vocabulary together, that which is wanted;
            None if the vocabulary is of this column alone.
        is_sensitive: Its frequent values are counted, but not kept.
    """

    column_type: ColumnType
    profile: bool
    vocabulary: VocabularyNeed | None = None
    table_min_count: int | None = None
    sequence: SequenceSpec | None = None
    vector: VectorSpec | None = None
    table: str | None = None
    is_sensitive: bool = False

    @property
    def value_type(self) -> ColumnType:
        """What values are: of a vector its numbers, and else what the column is read as."""
        return self.column_type if self.vector is None else ColumnType.NUMBER


class TextNumbersPlan(NumbersPlan):
    """What is derived from the numbers that a kernel makes of the texts of a column.

    Attributes:
        transform: Makes the numbers; it begins every chain.
    """

    transform: AnyTransform


class StatisticsPlan(_Frozen):
    """All statistics wanted of one set of training rows.

    Attributes:
        label: Name of the label column.
        columns: One entry for each column, in order of first mention.
        weight: The column that weighs rows in means, deviations and skews; None: all alike.
        text_numbers: What no engine computes, but `analysis.text_numbers`.
    """

    label: str
    columns: tuple[ColumnPlan, ...]
    weight: str | None = None
    text_numbers: tuple[TextNumbersPlan, ...] = ()


def plan_statistics(
    features: Sequence[FeatureSpec],
    label: str,
    *,
    profile: bool = True,
    weight: str | None = None,
) -> StatisticsPlan:
    """Plans what `features` need; several features of the same column share one entry.

    Args:
        features: What becomes of each column.
        label: Name of the label column.
        profile: Whether every column also gets the statistics that the report shows.
        weight: The column that weighs rows; None: all alike.

    Raises:
        ValueError: A chain does not fit its column, or two features want different
            vocabularies or types of one column.
    """
    by_column: dict[str, list[FeatureSpec]] = {}
    sensitive: set[str] = set()
    for feature in features:
        for part in feature.parts:
            by_column.setdefault(part.column, []).append(part)
            if feature.sensitive or part.sensitive:
                sensitive.add(part.column)
    tables = _shared_vocabularies(features)
    columns: list[ColumnPlan] = []
    text_numbers: list[TextNumbersPlan] = []
    for column, specs in by_column.items():
        plan, numbers = _plan_column(
            column,
            specs,
            profile=profile,
            table=tables.get(column),
            is_sensitive=column in sensitive,
        )
        columns.append(plan)
        text_numbers += numbers
    return StatisticsPlan(
        label=label, columns=tuple(columns), weight=weight, text_numbers=tuple(text_numbers)
    )


@dataclass
class _Wanted:
    """What chains need of the same values; dictionaries keep the order and drop what is twice."""

    moments: dict[Chain, None] = field(default_factory=dict)
    boundaries: dict[BoundaryPlan, None] = field(default_factory=dict)
    vocabularies: dict[VocabularyNeed, None] = field(default_factory=dict)
    table_min_counts: list[int] = field(default_factory=list)

    def add(self, before: Chain, needs: Needs) -> None:
        """Adds what a transform needs.

        Args:
            before: The transforms before it.
            needs: What it is fitted to.
        """
        if needs.moments:
            self.moments[before] = None
        if needs.quantiles is not None:
            self.boundaries[BoundaryPlan(chain=before, num_quantiles=needs.quantiles)] = None
        if needs.vocabulary is not None:
            self.vocabularies[needs.vocabulary] = None
        if needs.table_min_count is not None:
            self.table_min_counts.append(needs.table_min_count)

    @property
    def ordered_moments(self) -> tuple[Chain, ...]:
        """Shorter chains first."""
        return tuple(sorted(self.moments, key=len))


def _begins_with_kernel(chain: Chain) -> bool:
    """Whether a kernel alone makes numbers of the texts, which no query can."""
    return bool(chain) and isinstance(chain[0], TextTransform) and not chain[0].has_sql


def _shared_vocabularies(features: Sequence[FeatureSpec]) -> dict[str, str]:
    """The embedding table of each column whose vocabulary is that of other columns as well."""
    tables: dict[str, str] = {}
    for table, sharing in features_by_table(features).items():
        wanted = [spec for spec in sharing if spec.cross is None and _vocabularies_of(spec)]
        if len(wanted) > 1:
            if len({one for spec in wanted for one in _vocabularies_of(spec)}) > 1:
                raise ValueError(f"table '{table}': two different vocabularies are wanted")
            tables |= {spec.column: table for spec in wanted}
    return tables


def _vocabularies_of(spec: FeatureSpec) -> list[VocabularyNeed]:
    wanted = (step.needs.vocabulary for step in spec.id or ())
    return [one for one in wanted if one is not None]


def _plan_column(
    column: str,
    specs: Sequence[FeatureSpec],
    *,
    profile: bool,
    table: str | None,
    is_sensitive: bool,
) -> tuple[ColumnPlan, list[TextNumbersPlan]]:
    types = {spec.column_type for spec in specs}
    if len(types) > 1:
        raise ValueError(
            f"column '{column}' is read as a number by one feature, as text by another"
        )
    column_type = specs[0].column_type
    vector = next((spec.vector for spec in specs if spec.vector is not None), None)
    value_type = column_type if vector is None else ColumnType.NUMBER
    wanted = _Wanted()
    of_kernels: dict[AnyTransform, _Wanted] = {}
    if value_type is ColumnType.NUMBER and profile:
        wanted.moments[()] = None
    for spec in specs:
        for chain in (spec.number or (), spec.id or ()):
            for position, transform in enumerate(chain):
                before = chain[:position]
                _check_fit(column, value_type, before, transform)
                is_of_kernel = _begins_with_kernel(before)
                of = of_kernels.setdefault(chain[0], _Wanted()) if is_of_kernel else wanted
                of.add(before, transform.needs)
    if len(wanted.vocabularies) > 1:
        raise ValueError(f"column '{column}': two different vocabularies are wanted")
    plan = ColumnPlan(
        column=column,
        column_type=column_type,
        profile=profile,
        moments=wanted.ordered_moments,
        boundaries=tuple(wanted.boundaries),
        vocabulary=next(iter(wanted.vocabularies), None),
        # One table serves all: those that want less of it leave rarer values out.
        table_min_count=min(wanted.table_min_counts, default=None),
        sequence=next((spec.sequence for spec in specs if spec.sequence is not None), None),
        vector=vector,
        table=table,
        is_sensitive=is_sensitive,
    )
    numbers = [
        TextNumbersPlan(
            column=column,
            transform=transform,
            moments=of.ordered_moments,
            boundaries=tuple(of.boundaries),
        )
        for transform, of in of_kernels.items()
        if of.moments or of.boundaries
    ]
    return plan, numbers


def _check_fit(
    column: str, column_type: ColumnType, prefix: Chain, transform: AnyTransform
) -> None:
    # Users are told of it with the config's line; here it can only be a mistake of the program.
    if prefix and prefix[-1].kind.gives_id:
        raise ValueError(
            f"column '{column}': '{transform.name}' comes after '{prefix[-1].name}', "
            f"which ends a chain"
        )
    takes_text = transform.kind.takes_text
    if takes_text and prefix:
        raise ValueError(
            f"column '{column}': '{transform.name}' takes the column itself, "
            f"not a transformed number"
        )
    has_text = column_type is ColumnType.TEXT and not prefix
    if takes_text != has_text:
        raise ValueError(
            f"column '{column}': '{transform.name}' does not fit a {column_type.value} column"
        )
