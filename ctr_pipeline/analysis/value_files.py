"""Files of values with their counts: vocabularies, and what they are made from."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ctr_pipeline.analysis.statistics_plan import StatisticsPlan
from ctr_pipeline.durable import durable_write, os_errors_explained

VOCABULARY_FOLDER = "vocabularies"
_SCHEMA = pa.schema(
    [
        pa.field("value", pa.string(), nullable=False),
        pa.field("count", pa.int64(), nullable=False),
        pa.field("label_sum", pa.int64(), nullable=False),
    ]
)
_WEIGHED_SCHEMA = _SCHEMA.append(pa.field("weight", pa.float64(), nullable=False)).append(
    pa.field("click_weight", pa.float64(), nullable=False)
)
_COUNTS_SCHEMA = pa.schema(
    [("value", pa.string()), ("num_rows", pa.int64()), ("num_clicks", pa.int64())]
)


def vocabulary_files(plan: StatisticsPlan) -> dict[str, str]:
    """The file of each column that has a vocabulary of its own, below the run folder."""
    columns = [column.column for column in plan.columns if column.vocabulary is not None]
    return {
        column: f"{VOCABULARY_FOLDER}/{number:04d}.parquet" for number, column in enumerate(columns)
    }


def write_values(
    path: Path, batches: Iterable[pa.RecordBatch], *, weighted: bool = False
) -> tuple[int, int]:
    """Writes values with their rows and clicks, durably: the file is whole or absent.

    Arguments, result and errors are those of `write_new_values`.
    """
    with durable_write(path) as target:
        return _write(target, batches, weighted=weighted)


def write_new_values(
    path: Path, batches: Iterable[pa.RecordBatch], *, weighted: bool = False
) -> tuple[int, int]:
    """Writes values with their rows and clicks into a folder that is unfinished anyway.

    What may not be lost is put on disk by `durable.FileSyncs`.

    Args:
        path: The Parquet file.
        batches: Value, rows, clicks, in the order of the file; a value occurs once.
        weighted: Whether they also say what the rows weigh, and those of label 1.

    Returns:
        Values and rows written.

    Raises:
        RunFolderError: The disk is full or the folder cannot be written.
    """
    with os_errors_explained(path), path.open("wb") as target:
        return _write(target, batches, weighted=weighted)


def _write(
    target: IO[bytes], batches: Iterable[pa.RecordBatch], *, weighted: bool
) -> tuple[int, int]:
    schema = _WEIGHED_SCHEMA if weighted else _SCHEMA
    size = num_rows = 0
    # Values occur once, so a dictionary of them would only cost.
    with pq.ParquetWriter(target, schema, compression="lz4", use_dictionary=False) as writer:
        for batch in batches:
            values, counts, *others = batch.columns
            columns = [values.cast(pa.string()), counts, *others]
            writer.write_batch(pa.record_batch(columns, schema=schema))
            size += batch.num_rows
            num_rows += pc.sum(counts).as_py()
    return size, num_rows


def read_counts(paths: Iterable[Path]) -> pa.RecordBatchReader:
    """The values of some files, one file after another, as queries on `part_counts` take them."""

    def batches() -> Iterator[pa.RecordBatch]:
        for path in paths:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches():
                    yield pa.record_batch(batch.columns, schema=_COUNTS_SCHEMA)

    return pa.RecordBatchReader.from_batches(_COUNTS_SCHEMA, batches())
