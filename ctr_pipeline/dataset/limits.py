"""How much of a data file may be in memory at once: the same bounds for every format.

A file may come from a stranger. A few bytes can stand for gigabytes wherever a format repeats,
compresses or computes values, so that the size of a file bounds nothing. Every reader but that of
Parquet, which is Arrow's, holds these limits before memory is asked for, and refuses what does not
fit with a `DataError`.
"""

import pyarrow as pa
import pyarrow.compute as pc

from ctr_pipeline.errors import DataError

MOST_COLUMNS = 20_000
"""What is done for each column, inference above all, takes milliseconds a column."""

LONGEST_VALUE_BYTES = 64 << 20
"""A row of text, a record or a value of a table; a longer one is no feature of a click."""

BATCH_BYTES = 128 << 20
"""Rows that a reader gives out at once; several batches are on their way at any time."""

UNFOLDED_BYTES = 1 << 30
"""What a format makes a reader hold as a whole: a chunk of RecordIO."""


def check_num_columns(num_columns: int, file: object) -> None:
    """Raises DataError if a file has too many columns."""
    if num_columns > MOST_COLUMNS:
        raise DataError(
            f"has {num_columns:,} columns, and at most {MOST_COLUMNS:,} are read",
            place=str(file),
            remedy="Write the file with the columns that the model needs",
        )


def value_too_long(
    file: object, name: str, num_bytes: int | None = None, *, most: int = LONGEST_VALUE_BYTES
) -> DataError:
    """A value of a column has more than `most` bytes; `num_bytes` if its length is known."""
    has = f"{num_bytes:,} bytes" if num_bytes is not None else "more"
    return DataError(
        f"a value has {has}, and at most {most:,} bytes are read",
        place=f"{file}, column '{name}'",
        remedy="Shorten its values, or write the rows without the column",
    )


def check_values(batch: pa.RecordBatch, file: object) -> None:
    """Raises DataError if a text of these rows is too long."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        # A column with fewer bytes has no such value; nearly all have.
        if column.nbytes > LONGEST_VALUE_BYTES and (
            pa.types.is_string(column.type)
            or pa.types.is_binary(column.type)
            or pa.types.is_large_string(column.type)
            or pa.types.is_large_binary(column.type)
        ):
            longest = pc.max(pc.binary_length(column)).as_py() or 0
            if longest > LONGEST_VALUE_BYTES:
                raise value_too_long(file, name, longest)
