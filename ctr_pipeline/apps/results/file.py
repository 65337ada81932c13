"""Rows of results in a file of this machine, and the formats of files."""

from collections.abc import Iterable
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from ctr_pipeline import durable
from ctr_pipeline.apps.outputs import require_output
from ctr_pipeline.apps.results.target import ResultPlan
from ctr_pipeline.errors import DataError


class FileTarget:
    """A Parquet or CSV file, by its ending."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        check_ending(path)

    def check(self, results: ResultPlan) -> None:
        """As `ResultTarget.check`."""
        require_output(
            self._path, overwrite=results.overwrite, reads=results.reads, spares=results.spares
        )

    def write(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """As `ResultTarget.write`."""
        with durable.durable_write(self._path) as file:
            write_rows(self._path.name, file, schema, batches)


def check_ending(name: str) -> None:
    """Raises DataError unless the name ends like that of a format."""
    if not name.endswith((".parquet", ".csv")):
        raise DataError(
            "results are written as Parquet or CSV",
            place=name,
            remedy="Give --output a name that ends in .parquet or .csv, or name a table",
        )


def write_rows(
    name: str, file: IO[bytes], schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> None:
    """Writes rows in the format of a name's ending.

    Args:
        name: Ends in `.parquet` or `.csv`.
        file: Open for writing; is left open.
        schema: The columns of every batch.
        batches: The rows.
    """
    is_parquet = name.endswith(".parquet")
    writer = pq.ParquetWriter(file, schema) if is_parquet else pa_csv.CSVWriter(file, schema)
    with writer:
        for batch in batches:
            writer.write_batch(batch)
