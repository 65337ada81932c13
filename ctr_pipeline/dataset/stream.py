"""New rows as record batches, for prediction and evaluation, without writing them anywhere."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from ctr_pipeline.config.models import DataConfig
from ctr_pipeline.dataset.bad_rows import BadRowLedger
from ctr_pipeline.dataset.columns import ReadingPlan, plan_columns
from ctr_pipeline.dataset.inspection import inspect_paths
from ctr_pipeline.dataset.rows import read_good_rows
from ctr_pipeline.dataset.source import Source
from ctr_pipeline.features import ListSpec
from ctr_pipeline.specs.columns import ColumnType


def inspect_new(data: DataConfig, paths: str | Sequence[str]) -> Source:
    """Files that a command names; they may be of another format than `data` says.

    Raises:
        DataError: As `inspect_source`.
    """
    return inspect_paths(data, {"new": paths}, {"new": "--data"}, are_new=True)


def stream_rows(
    data: DataConfig,
    paths: str | Sequence[str],
    column_types: Mapping[str, ColumnType],
    *,
    label_required: bool,
    extra_columns: Sequence[str] = (),
    kept_columns: Sequence[str] = (),
    kept_by: str = "--keep",
    sensitive: Collection[str] = (),
    lists: Mapping[str, ListSpec] | None = None,
    ledger: BadRowLedger | None = None,
    threads: int = 2,
    source: Source | None = None,
) -> Iterator[pa.RecordBatch]:
    """The good rows of new files, in order, read by the rules of `data` as ingestion reads them.

    A batch has the label (int8) and the weight (float64) if the label is required, the columns of
    `column_types` (float64 or string) and the extra columns as text.

    Args:
        data: How the files are read.
        paths: A file, a list or a glob.
        column_types: The columns to give.
        label_required: Whether the label is read; a row without it is bad then.
        extra_columns: Carried along as text unless typed already.
        kept_columns: As `extra_columns`, but asked for by the user.
        kept_by: The option or key that names those.
        sensitive: Columns whose values are kept out of messages.
        lists: Text columns that are lists, and how they are cut.
        ledger: Counts bad rows, for the caller to look at after the last batch.
        threads: Threads that parse.
        source: What `inspect_new` found; None: the files are looked at.

    Raises:
        DataError: As `inspect_source` and `ingest` do.
    """
    source = source or inspect_new(data, paths)
    ledger = ledger or BadRowLedger(data.bad_rows, data.max_bad_fraction)
    plan = plan_columns(
        data,
        column_types,
        label_required=label_required,
        carried=[*extra_columns, *kept_columns],
        sensitive=sensitive,
        lists=lists,
    )
    if plan.weight is not None:
        source.require([plan.weight], "data.weight")
    source.require(kept_columns, kept_by)
    source.require(_needed(source, plan), "the model")
    with ThreadPoolExecutor(threads, thread_name_prefix="stream") as pool:
        tables = read_good_rows(source, source.units("new"), plan, ledger, pool, max_ahead=threads)
        for table in tables:
            yield from table.combine_chunks().to_batches()
    ledger.close()


def _needed(source: Source, plan: ReadingPlan) -> list[str]:
    """The columns that must be in the files.

    Where files may lack columns, a few rows may lack all but one; but files that have none of the
    columns are other files.
    """
    if source.may_lack_columns and any(name in source.column_names for name in plan.types):
        return [plan.label] if plan.label is not None else []
    return plan.names
