"""Extends the vocabularies of an earlier run by new values.

New values come after the known ones, which keep their ids. The ids of values out of the vocabulary,
of missing ones and of padding are the last of a table, so they move up by the number of new values,
and their rows with them.
"""

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ctr_pipeline.analysis.value_files import write_values
from ctr_pipeline.embeddings.row_transfer import TableMove
from ctr_pipeline.errors import PreprocessingError
from ctr_pipeline.features import FeatureSpec
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.pipeline.stages.warm_start import WarmStart
from ctr_pipeline.preprocessing.plan import FieldPlan, PreprocessingPlan
from ctr_pipeline.statistics import Statistics
from ctr_pipeline.transforms.base import MAX_IDS
from ctr_pipeline.transforms.vocabulary import Vocabulary, VocabularyStep

_COLUMNS = ["value", "count", "label_sum"]


def grow_plan(warm_start: WarmStart, statistics: Statistics, run: RunFolder) -> PreprocessingPlan:
    """Extends the earlier run's transforms: new values that occur `min_count` times get ids.

    The most frequent ones come first, as many as `max_size` leaves room for.

    Args:
        warm_start: What the run takes over.
        statistics: Statistics of the new training rows.
        run: The run folder, below which the files of values lie.

    Raises:
        PreprocessingError: A table gets more ids than there can be.
    """
    specs = {spec.column: spec for spec in warm_start.features}
    grown: dict[str, VocabularyStep] = {}
    for field in warm_start.plan.fields:
        step = field.step
        if isinstance(step, VocabularyStep) and step.file not in grown:
            name = f"{run.warm_start.name}/{len(grown):04d}.parquet"
            grown[step.file] = _grow(step, specs[field.column], statistics, run.path, name)
    return warm_start.plan.model_copy(
        update={"fields": tuple(_with_growth(field, grown) for field in warm_start.plan.fields)}
    )


def num_new_values(earlier: PreprocessingPlan, grown: PreprocessingPlan) -> dict[str, int]:
    """The number of new values in the vocabulary of each field that has one."""
    return {
        after.name: after.step.size - before.step.size
        for before, after in zip(earlier.fields, grown.fields, strict=True)
        if isinstance(before.step, VocabularyStep) and isinstance(after.step, VocabularyStep)
    }


def table_moves(earlier: PreprocessingPlan, grown: PreprocessingPlan) -> list[TableMove]:
    """How the ids of the earlier run's tables move."""
    sizes = {
        field.table_name: field.step.size
        for field in earlier.fields
        if isinstance(field.step, VocabularyStep)
    }
    return [
        TableMove(place, sizes.get(before.name, before.num_ids), after.num_ids - before.num_ids)
        for place, (before, after) in enumerate(zip(earlier.tables, grown.tables, strict=True))
    ]


def _grow(
    step: VocabularyStep, spec: FeatureSpec, statistics: Statistics, folder: Path, name: str
) -> VocabularyStep:
    """Writes the vocabulary with its new values to a new file."""
    known = _read(folder / step.file)
    found = statistics.vocabularies.get(spec.column)
    fresh = known.slice(0, 0)
    if found is not None:
        values = _read(folder / found.file)
        is_known = pc.is_in(values.column("value"), value_set=known.column("value"))
        fresh = values.filter(pc.invert(is_known))
    transform = None if spec.id is None else spec.id[-1]
    if isinstance(transform, Vocabulary) and transform.max_size is not None:
        fresh = fresh.slice(0, max(transform.max_size - known.num_rows, 0))
    size, _ = write_values(
        folder / name, [batch for table in (known, fresh) for batch in table.to_batches()]
    )
    num_new = size - known.num_rows
    return step.model_copy(
        update={"file": name, "size": size, "missing_id": step.missing_id + num_new}
    )


def _with_growth(field: FieldPlan, grown: Mapping[str, VocabularyStep]) -> FieldPlan:
    if not isinstance(field.step, VocabularyStep):
        return field
    step = grown[field.step.file]
    num_ids = field.num_ids + step.size - field.step.size
    if num_ids > MAX_IDS:
        raise PreprocessingError(
            f"would have {num_ids:,} ids, and ids are 32-bit integers",
            place=f"feature '{field.column}'",
            remedy="Train anew on recent rows, or with a max_size",
        )
    return field.model_copy(update={"step": step, "num_ids": num_ids})


def _read(path: Path) -> pa.Table:
    try:
        return pq.read_table(path, columns=_COLUMNS).cast(
            pa.schema([("value", pa.string()), ("count", pa.int64()), ("label_sum", pa.int64())])
        )
    except (OSError, pa.ArrowException) as error:
        raise PreprocessingError(
            f"the vocabulary cannot be read ({error})",
            place=str(path),
            remedy="Give --overwrite to begin anew",
        ) from error
