"""Whether features may share an embedding table, told without any statistics.

An id of a table must mean the same whichever feature has it: the features of a table have equal
chains, and no step of them is fitted to a column of its own. A vocabulary is fitted to all columns
of the table together.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from ctr_pipeline.features import FeatureSpec, features_by_table
from ctr_pipeline.transforms import AnyTransform


@dataclass(frozen=True)
class ShareProblem:
    """Why a feature cannot have the table that it names.

    Attributes:
        feature: The feature.
        message: What is wrong and what to do.
        is_unknown: Nobody else has a table of that name.
    """

    feature: str
    message: str
    is_unknown: bool = False


def share_problems(
    features: Sequence[FeatureSpec], automatic: Collection[str] = ()
) -> list[ShareProblem]:
    """Everything wrong with the tables that features share, one problem a feature at most.

    Args:
        features: With their chains.
        automatic: Features whose chains are not known yet.
    """
    by_name = {spec.column: spec for spec in features}
    problems = []
    for table, sharing in features_by_table(features).items():
        # The feature whose table it is comes first, as it is the one that others name.
        first = min(sharing, key=lambda spec: spec.column != table)
        for spec in sharing:
            if spec.table is None:
                continue
            problem = _owner_problem(table, by_name.get(table), table in automatic)
            if problem is None and len(sharing) == 1:
                message = f"no other feature has a table '{table}'"
                problems.append(ShareProblem(spec.column, message, is_unknown=True))
                continue
            problem = problem or next(_differences(spec, first), None)
            if problem is not None:
                problems.append(ShareProblem(spec.column, problem))
    return problems


def _owner_problem(table: str, owner: FeatureSpec | None, is_automatic: bool) -> str | None:
    """Why there is no table of the feature that is named."""
    if is_automatic:
        return (
            f"the transforms of '{table}' are chosen by the statistics; give it the same `id` as "
            "here"
        )
    if owner is None:
        return None
    if owner.id is None:
        return f"'{table}' has no `id`, and so no embedding table"
    if owner.table is not None and owner.table != table:
        return f"'{table}' has the table '{owner.table}' itself; name that"
    return None


def _differences(spec: FeatureSpec, first: FeatureSpec) -> Iterator[str]:
    """What keeps a feature's ids from being those of the first feature of the table."""
    for transform in _steps_of(spec):
        if transform.needs.is_of_one_column:
            yield (
                f"'{transform.name}' is fitted to each column, so that an id would mean one thing "
                f"of '{spec.column}' and another of '{first.column}'; {transform.sharing_remedy}"
            )
    if spec is first:
        return
    if (spec.cross is None) != (first.cross is None):
        cross, plain = (spec, first) if spec.cross is not None else (first, spec)
        yield f"'{cross.column}' is a cross and '{plain.column}' is not; their ids mean two things"
    elif spec.cross is not None and first.cross is not None:
        if [_meaning(part) for part in spec.cross] != [_meaning(part) for part in first.cross]:
            yield (
                f"the columns of '{spec.column}' and those of '{first.column}' are not of the same "
                "number and types"
            )
    elif spec.column_type is not first.column_type:
        yield (
            f"'{spec.column}' is read as a {spec.column_type.value} and '{first.column}' as a "
            f"{first.column_type.value}"
        )
    if spec.id != first.id:
        yield (
            f"its `id` is not that of '{first.column}', so that an id would mean two things; give "
            "both the same transforms with the same options"
        )


def _steps_of(spec: FeatureSpec) -> list[AnyTransform]:
    crossed = [step for part in spec.cross or () for step in part.id or ()]
    return [*crossed, *(spec.id or ())]


def _meaning(part: FeatureSpec) -> tuple[object, ...]:
    return part.column_type, part.id
