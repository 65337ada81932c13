"""All rows of a table as parts: neither divided into splits nor required to have a label."""

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from ctr_pipeline.config.models import DataConfig
from ctr_pipeline.dataset.bad_rows import BadRowLedger, BadRows
from ctr_pipeline.dataset.columns import plan_columns
from ctr_pipeline.dataset.parts import PartsWriter
from ctr_pipeline.dataset.rows import read_good_rows
from ctr_pipeline.dataset.source import Source
from ctr_pipeline.errors import DataError
from ctr_pipeline.features import ListSpec
from ctr_pipeline.progress import Progress
from ctr_pipeline.specs.columns import ColumnType


@dataclass(frozen=True)
class TableParts:
    """A table that was read.

    Attributes:
        files: Its parts in order.
        num_rows: Good rows.
        bad_rows: What was left out.
    """

    files: tuple[Path, ...]
    num_rows: int
    bad_rows: BadRows


def write_table(
    data: DataConfig,
    source: Source,
    column_types: Mapping[str, ColumnType],
    folder: Path,
    *,
    labelled: bool,
    threads: int,
    progress: Progress,
    sensitive: Collection[str] = (),
    lists: Mapping[str, ListSpec] | None = None,
) -> TableParts:
    """Reads all rows by the rules of `data` and writes `folder/part-00000.arrow` and so on.

    A part has the columns of `column_types` and the label, `data.label`; without one every row has
    the label 0. Rows that `data` calls bad are treated as it says.

    Args:
        data: How the files are read.
        source: The files, inspected.
        column_types: The columns to keep.
        folder: Is made.
        labelled: Whether the label is read; a row without one is bad then.
        threads: Threads that parse and write.
        progress: Counts the bytes read.
        sensitive: Columns whose values are kept out of messages and examples.
        lists: Text columns that are lists, and how they are cut.

    Raises:
        DataError: A file is damaged, too many rows are bad, or none is good.
        RunFolderError: `folder` cannot be written.
    """
    plan = plan_columns(
        data, column_types, label_required=labelled, carried=(), sensitive=sensitive, lists=lists
    )
    ledger = BadRowLedger(data.bad_rows, data.max_bad_fraction)
    units = [unit for split in source.files for unit in source.units(split)]
    with (
        progress.task("read data", total=source.size_bytes, unit="bytes") as task,
        ThreadPoolExecutor(threads, thread_name_prefix="table") as pool,
    ):
        writer = PartsWriter(folder, data.label, pool, threads + 1)
        try:
            for table in read_good_rows(
                source, units, plan, ledger, pool, max_ahead=threads + 1, on_bytes=task.advance
            ):
                writer.add(table if labelled else _with_label(table, data.label))
            parts = writer.finish()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    bad_rows = ledger.close()
    num_rows = sum(part.num_rows for part in parts)
    if not num_rows:
        raise DataError(
            f"holds no good row, but {bad_rows.total} bad ones ("
            f"{', '.join(reason.value for reason in bad_rows.by_reason)})",
            place=units[0].place,
            remedy="Check the delimiter, the column names and the label",
        )
    return TableParts(tuple(part.file for part in parts), num_rows, bad_rows)


def _with_label(table: pa.Table, label: str) -> pa.Table:
    return table.append_column(label, pa.array(np.zeros(table.num_rows, np.int8)))
