"""The plan of each feature in words and numbers, for the terminal and the report."""

from collections import Counter
from collections.abc import Sequence

from ctr_pipeline.analysis.leaks import describe_suspicion
from ctr_pipeline.config.models import Config
from ctr_pipeline.embeddings.layout import plan_layout
from ctr_pipeline.features import FeatureSpec, SequenceSpec
from ctr_pipeline.pipeline.model.embedding_rows import field_dims, row_layout, segment_specs
from ctr_pipeline.preprocessing.plan import PreprocessingPlan
from ctr_pipeline.reporting.data import PlanRow
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.statistics import Statistics
from ctr_pipeline.transforms.base import IdTransform, TextTransform, Transform


def describe_plan(
    config: Config,
    features: Sequence[FeatureSpec],
    plan: PreprocessingPlan | None,
    statistics: Statistics | None = None,
    *,
    num_rows: int | None = None,
) -> tuple[PlanRow, ...]:
    """Describes what becomes of each feature.

    Args:
        config: The config.
        features: One row each, in this order.
        plan: Fitted transforms, which know the number of ids; None before the analysis.
        statistics: Statistics of the training rows; None before the analysis.
        num_rows: Training rows, which bound the ids that occur; None: as many as `statistics` says.
    """
    if num_rows is None and statistics is not None:
        num_rows = statistics.num_rows
    if plan is None:
        layout = plan_layout(segment_specs(config.model, config.train))
        dims = {}
    else:
        layout = row_layout(config, plan)
        dims = _longest_vectors(config, plan)
    row_bytes = layout.record_bytes
    fitted = Counter[str]()
    tables: dict[str, set[str]] = {}
    for field in plan.fields if plan is not None else ():
        fitted[field.column] += field.num_ids
        tables.setdefault(field.column, set()).add(field.table_name)
    rows_of_tables = {} if plan is None else most_embedding_rows(plan, num_rows)
    rows = []
    for feature in features:
        num_ids = None
        if feature.id is not None:
            num_ids = fitted[feature.column] or ids_before_fit(feature)
        has_field = feature.id is not None
        max_rows = num_ids
        if feature.column in tables:
            # The first feature of a table has the bytes of its rows.
            max_rows = sum(rows_of_tables.pop(table, 0) for table in tables[feature.column])
        rows.append(
            PlanRow(
                feature=feature.column,
                column_type=feature.column_type,
                number=_number_text(feature) or None,
                id=_id_text(feature) or None,
                statistics=tuple(statistics_used(feature)),
                vocabulary_size=None if plan is None else _vocabulary_size(plan, feature.column),
                num_ids=num_ids,
                dimension=dims.get(feature.column, config.model.embedding_dim)
                if has_field
                else None,
                max_bytes=None if max_rows is None else max_rows * row_bytes,
                reason=feature.reason,
                suspicion=_suspicion(statistics, feature.column),
                sensitive=feature.sensitive,
            )
        )
    return tuple(rows)


def most_embedding_rows(plan: PreprocessingPlan, num_rows: int | None) -> dict[str, int]:
    """The most rows that each embedding table can have: one for each id that may occur.

    Args:
        plan: Fitted transforms.
        num_rows: Training rows; None: any number.
    """
    positions = Counter(plan.position_tables)
    return {
        table.name: table.num_ids
        if num_rows is None
        else min(table.num_ids, num_rows * positions[place])
        for place, table in enumerate(plan.tables)
    }


def _suspicion(statistics: Statistics | None, feature: str) -> str | None:
    column = None if statistics is None else statistics.columns.get(feature)
    if statistics is None or column is None:
        return None
    return describe_suspicion(column, statistics.label_rate)


def _vocabulary_size(plan: PreprocessingPlan, feature: str) -> int | None:
    ids = (field.step.unknown_ids for field in plan.fields if field.column == feature)
    # Those of values that are known come first.
    return next((unknown.start for unknown in ids if unknown is not None), None)


def _longest_vectors(config: Config, plan: PreprocessingPlan) -> dict[str, int]:
    """The length of each feature's vectors; the greatest one where a feature has several fields."""
    longest: dict[str, int] = {}
    for field, dim in zip(plan.fields, field_dims(config, plan), strict=True):
        longest[field.column] = max(dim, longest.get(field.column, 0))
    return longest


def chain_text(chain: Sequence[Transform] | None) -> str:
    """A chain as one would write it: `log → standardize(clip 5)`."""
    return " → ".join(_step_text(step) for step in chain or ())


def _number_text(feature: FeatureSpec) -> str:
    if feature.vector is None:
        return chain_text(feature.number)
    steps = (f"vector({feature.vector.length})", chain_text(feature.number))
    return " → ".join(step for step in steps if step)


def _id_text(feature: FeatureSpec) -> str:
    text = _ids_made_text(feature)
    return text if feature.table is None else f"{text} → table '{feature.table}'"


def _ids_made_text(feature: FeatureSpec) -> str:
    if feature.sequence is not None:
        return f"{_sequence_text(feature.sequence)} → {chain_text(feature.id)}"
    if feature.cross is None:
        return chain_text(feature.id)
    return " → ".join(
        [f"cross({', '.join(part.column for part in feature.cross)})", chain_text(feature.id)]
    )


def _sequence_text(sequence: SequenceSpec) -> str:
    weighted = "weighted " if sequence.weights else ""
    return (
        f"sequence('{sequence.delimiter}', {sequence.keep} {sequence.max_length}, "
        f"{weighted}{sequence.pooling})"
    )


def _step_text(step: Transform) -> str:
    defaults = {name: field.default for name, field in type(step).model_fields.items()}
    options = [
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in step.model_dump().items()
        if name != "name" and value != defaults[name]
    ]
    return f"{step.name}({', '.join(options)})" if options else step.name


def describe_decisions(features: Sequence[FeatureSpec]) -> str:
    """Counts the features that the data decided by kind, in a line for the log."""
    counted = [_count(number, kind) for kind, number in Counter(map(_kind, features)).items()]
    firsts = [feature.number[0] for feature in features if feature.number]
    rates = sum(isinstance(first, TextTransform) and first.reads_labels for first in firsts)
    told = f"; {_count(rates, 'text')} with click rates as numbers" if rates else ""
    return f"Decided by the data: {', '.join(counted)}{told}"


def _kind(feature: FeatureSpec) -> str:
    if feature.sequence is not None:
        return "list"
    if feature.vector is not None:
        return "vector"
    if feature.column_type is ColumnType.NUMBER:
        return "number"
    read = feature.id[0].time_read if feature.id else None
    return "time" if read is not None and read.parts else "text"


def _count(number: int, kind: str) -> str:
    return f"{number:,} {kind}" if number == 1 else f"{number:,} {kind}s"


def statistics_used(feature: FeatureSpec) -> list[str]:
    """Names of the statistics that a feature's chains need."""
    steps = (*(feature.number or ()), *(feature.id or ()))
    return list(dict.fromkeys(word for step in steps for word in step.needs.words))


def ids_before_fit(feature: FeatureSpec) -> int | None:
    """Ids of a feature before the statistics, or an upper bound; None if unknown until then."""
    last = feature.id[-1] if feature.id else None
    return last.ids_before_fit() if isinstance(last, IdTransform) else None
