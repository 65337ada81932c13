"""What each partition and table of one server holds and serves, so that a hot one is seen."""

import threading

import numpy as np

from ctr_pipeline.distributed.coordination.messages import PartitionLoads
from ctr_pipeline.embeddings.arrays import Int32Array, Int64Array
from ctr_pipeline.embeddings.partition import partitions_of
from ctr_pipeline.embeddings.rows import RowStorage
from ctr_pipeline.specs.table import ID_BITS

_ROWS_AT_A_TIME = 1 << 18


class PartitionCounts:
    """Counters by partition, of rows also by table; safe to use from several threads.

    Rows are counted when they are asked for, and only those made since: rows keep their places
    until `rows_moved`.
    """

    def __init__(self, num_partitions: int, num_tables: int) -> None:
        self._num_partitions = num_partitions
        self._lock = threading.Lock()
        # Of its own: pulls do not wait until all rows are counted.
        self._counting = threading.Lock()
        self._pulled_keys = np.zeros(num_partitions, np.int64)
        self._pushed_keys = np.zeros(num_partitions, np.int64)
        self._rows = np.zeros(num_partitions, np.int64)
        self._table_rows = np.zeros(num_tables, np.int64)
        self._num_counted = 0

    def count_pull(self, partitions_U: Int32Array) -> None:
        """Keys of these partitions were asked for."""
        self._add(self._pulled_keys, partitions_U)

    def count_push(self, partitions_U: Int32Array) -> None:
        """Keys of these partitions came with gradients."""
        self._add(self._pushed_keys, partitions_U)

    def rows_moved(self) -> None:
        """Rows were removed or replaced: all are counted anew."""
        with self._counting:
            self._forget_rows()

    def loads(self, rows: RowStorage | None, partitions: tuple[int, ...]) -> PartitionLoads:
        """The counters of some partitions.

        Args:
            rows: The server's rows; None: it holds none.
            partitions: Partitions that the server owns.
        """
        chosen = list(partitions)
        with self._counting:
            if rows is not None:
                self._count_rows(rows)
            num_rows, table_rows = self._rows[chosen], self._table_rows.tolist()
        with self._lock:
            pulled, pushed = self._pulled_keys[chosen], self._pushed_keys[chosen]
        bytes_a_row = 0 if rows is None else rows.bytes_a_row
        return PartitionLoads(
            partitions=partitions,
            rows=tuple(num_rows.tolist()),
            row_bytes=tuple((num_rows * bytes_a_row).tolist()),
            pulled_keys=tuple(pulled.tolist()),
            pushed_keys=tuple(pushed.tolist()),
            table_rows=tuple(table_rows),
            bytes_a_row=bytes_a_row,
        )

    def _add(self, counts: Int64Array, partitions_U: Int32Array) -> None:
        found = np.bincount(partitions_U, minlength=self._num_partitions)
        with self._lock:
            counts += found

    def _count_rows(self, rows: RowStorage) -> None:
        last = rows.num_rows
        if last < self._num_counted:
            self._forget_rows()
        for begin in range(self._num_counted, last, _ROWS_AT_A_TIME):
            keys = rows.keys_N[begin : min(begin + _ROWS_AT_A_TIME, last)]
            self._rows += np.bincount(
                partitions_of(keys, self._num_partitions), minlength=self._num_partitions
            )
            self._table_rows += np.bincount(keys >> ID_BITS, minlength=len(self._table_rows))
        self._num_counted = last

    def _forget_rows(self) -> None:
        self._rows[:] = 0
        self._table_rows[:] = 0
        self._num_counted = 0
