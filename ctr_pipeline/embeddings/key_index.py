"""The index from key to row, which grows a part at a time."""

import numpy as np

from ctr_pipeline.embeddings import row_kernels
from ctr_pipeline.embeddings.arrays import Int32Array, Int64Array, UInt64Array
from ctr_pipeline.kernels.ranges import RangeRunner

_FIRST_SIZE = 1 << 10
# Work beside that of new rows: some milliseconds at a time.
CLEARED_AT_A_TIME = 1 << 17
MOVED_AT_A_TIME = 1 << 16
# For each new row, so that work ends before there is no room: see `make_room`.
_CLEARED_A_ROW = 24
_MOVED_A_ROW = 4


class KeyIndex:
    """Finds the row of a key; at most half full.

    Before it is half full a table of twice its size is made ready; once it is, new rows stand in
    the larger table, and the others follow. Until all have, a key is looked up in both.

    Args:
        keys_N: int64, the key of each row.
    """

    def __init__(self, keys_N: Int64Array) -> None:
        self._keys_N = keys_N
        self.clear()

    def clear(self) -> None:
        """Forgets all rows."""
        self._table: UInt64Array = np.zeros(_FIRST_SIZE, np.uint64)
        # The larger table, of which so many places are cleared.
        self._next: UInt64Array | None = None
        self._num_cleared = 0
        # The smaller table; the first rows of it, so many, stand in the larger one.
        self._old: UInt64Array | None = None
        self._num_moved = self._num_old = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of all tables."""
        tables = (self._table, self._next, self._old)
        return sum(table.nbytes for table in tables if table is not None)

    def find(self, keys_U: Int64Array, runner: RangeRunner) -> tuple[Int32Array, int]:
        """Rows of keys, int32 [U], -1 for none, and how many there are none of."""
        rows_U = np.empty(len(keys_U), np.int32)

        def work(first: int, last: int) -> int:
            return self._find_range(keys_U, rows_U, first, last)

        return rows_U, sum(runner.run(work, len(keys_U)))

    def _find_range(self, keys_U: Int64Array, rows_U: Int32Array, first: int, last: int) -> int:
        num_missing: int = row_kernels.find_rows(
            keys_U, self._table, self._keys_N, rows_U, first, last
        )
        if num_missing and self._old is not None:
            missing = first + np.flatnonzero(rows_U[first:last] < 0)
            found = np.empty(num_missing, np.int32)
            num_missing = row_kernels.find_rows(
                keys_U[missing], self._old, self._keys_N, found, 0, len(missing)
            )
            rows_U[missing] = found
        return num_missing

    def make_room(self, num_rows: int, num_new: int) -> None:
        """Makes sure that so many rows can be added.

        A larger table is cleared while the last quarter of the room is taken, and the rows follow
        while a quarter of the new room is, so that one call does little more than its share.

        Args:
            num_rows: There are.
            num_new: To be added.
        """
        needed = num_rows + num_new
        self._move(max(MOVED_AT_A_TIME, _MOVED_A_ROW * num_new))
        if 8 * needed > 3 * len(self._table):
            self._clear_next(needed, max(CLEARED_AT_A_TIME, _CLEARED_A_ROW * num_new))
        if 2 * needed > len(self._table):
            self._move(num_rows)
            following = self._clear_next(needed, 2 * len(self._table) + 4 * needed)
            self._old, self._num_moved, self._num_old = self._table, 0, num_rows
            self._table, self._next, self._num_cleared = following, None, 0
            self._move(MOVED_AT_A_TIME)

    def _clear_next(self, needed: int, most_places: int) -> UInt64Array:
        """Clears a part of the larger table, or of one large enough for the rows needed."""
        if self._next is None or 2 * needed > len(self._next):
            size = 2 * len(self._table)
            while size < 2 * needed:
                size *= 2
            self._next, self._num_cleared = np.empty(size, np.uint64), 0
        last = min(self._num_cleared + most_places, len(self._next))
        self._next[self._num_cleared : last] = 0
        self._num_cleared = last
        return self._next

    def _move(self, most_rows: int) -> None:
        """Lets rows of the smaller table follow into the larger one."""
        if self._old is None:
            return
        last = min(self._num_moved + most_rows, self._num_old)
        row_kernels.index_rows(self._table, self._keys_N, self._num_moved, last)
        self._num_moved = last
        if last == self._num_old:
            self._old = None

    def add_missing(self, keys_U: Int64Array, rows_U: Int32Array, num_rows: int) -> int:
        """Gives each key with row -1, which has none, the next row; how many rows there are then.

        A key that stands twice in `keys_U` gets one row.
        """
        num_then: int = row_kernels.add_missing(keys_U, self._table, self._keys_N, rows_U, num_rows)
        return num_then

    def whole_table(self) -> UInt64Array | None:
        """The table, once all rows stand in it; if they do not, some more follow, and None."""
        self._move(MOVED_AT_A_TIME)
        return self._table if self._old is None else None

    def rebuild(self, num_rows: int) -> None:
        """Indexes the first so many rows anew, at once; the table does not become smaller.

        Raises:
            ValueError: Two rows have the same key.
        """
        size = len(self._table)
        while size < 2 * num_rows:
            size *= 2
        # The old tables go first: keys alone are enough, and not all need stand side by side.
        self.clear()
        self._table = np.zeros(size, np.uint64)
        twice = row_kernels.index_rows(self._table, self._keys_N, 0, num_rows)
        if twice >= 0:
            raise ValueError(f"key {self._keys_N[twice]} stands twice")
