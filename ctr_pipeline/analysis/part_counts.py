"""What each part says of each column, on disk until the column's turn comes.

Parts are read once and hold all columns; statistics are derived a column at a time. In between lies
one file of record batches in any order, with their places in memory. They are read in the order of
the parts, so that sums do not depend on which thread was first.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa

from ctr_pipeline.dataset.parts import ColumnCounts
from ctr_pipeline.durable import os_errors_explained


class PartCounts:
    """The counts of all parts by column; a context manager. Safe for several threads.

    Args:
        file: Made here, of use only as long as this lives.

    Raises:
        RunFolderError: It cannot be written.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._places: dict[str, list[tuple[int, int, int]]] = {}
        self._schemas: dict[str, pa.Schema] = {}
        self._num_values: dict[str, int] = {}
        self._end = 0
        with os_errors_explained(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)

    def add(self, column: str, part: int, counts: ColumnCounts) -> None:
        """Keeps what one part says of a column.

        Args:
            part: Its place in the order of reading.

        Raises:
            RunFolderError: The disk is full.
        """
        columns = {
            "value": counts.values,
            "num_rows": counts.num_rows,
            "num_clicks": counts.num_clicks,
        }
        if counts.weights is not None:
            columns |= {"weight": counts.weights, "click_weight": counts.click_weights}
        batch = pa.record_batch(columns)
        content = batch.serialize()
        with self._lock:
            place = self._end
            self._end += content.size
            self._places.setdefault(column, []).append((part, place, content.size))
            self._schemas[column] = batch.schema
            self._num_values[column] = self.num_values(column) + batch.num_rows
        rest = memoryview(content)
        with os_errors_explained(self._file):
            while rest:
                num_bytes = os.pwrite(self._descriptor, rest, place)
                rest, place = rest[num_bytes:], place + num_bytes

    def num_values(self, column: str) -> int:
        """Values of a column, one that several parts have as often as that."""
        return self._num_values.get(column, 0)

    def read(self, column: str) -> pa.RecordBatchReader:
        """The counts of a column: value, num_rows, num_clicks, a value once for each part.

        With weights, `weight` and `click_weight` as well.
        """
        schema = self._schemas[column]

        def batches() -> Iterator[pa.RecordBatch]:
            for _, place, num_bytes in sorted(self._places[column]):
                content = os.pread(self._descriptor, num_bytes, place)
                yield pa.ipc.read_record_batch(pa.py_buffer(content), schema)

        return pa.RecordBatchReader.from_batches(schema, batches())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
        self._file.unlink(missing_ok=True)


def read_samples(samples: Sequence[PartCounts], column: str) -> pa.RecordBatchReader:
    """The counts of a column in several sets of rows, which their number tells apart: `sample`."""
    readers = [sample.read(column) for sample in samples]
    schema = readers[0].schema.append(pa.field("sample", pa.int32()))

    def batches() -> Iterator[pa.RecordBatch]:
        for number, reader in enumerate(readers):
            for batch in reader:
                numbers = pa.array(np.full(batch.num_rows, number, np.int32))
                yield pa.record_batch([*batch.columns, numbers], schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())
