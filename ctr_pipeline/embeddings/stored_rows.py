"""Rows of a checkpoint that are read where they lie: to be exported and to score with.

No more than a fixed number of them is in memory at once.
"""

from collections.abc import Iterator
from pathlib import Path

from ctr_pipeline.embeddings.arrays import Float32Array, IdArray
from ctr_pipeline.embeddings.cut_storage import CutStorage
from ctr_pipeline.embeddings.log_chain import ParameterFiles
from ctr_pipeline.embeddings.row_log import read_log
from ctr_pipeline.embeddings.row_sorting import RowSorter, SortedRows
from ctr_pipeline.embeddings.store import EmbeddingStore, RowBlock
from ctr_pipeline.embeddings.unique import PreparedBatch
from ctr_pipeline.embeddings.update_kernels import HEADER_WORDS
from ctr_pipeline.errors import CheckpointError

_MOST_HELD = 1 << 18


class StoredRows:
    """Trained rows on disk, sorted by key; makes none and changes none.

    Rows that a batch asks for are kept in a store until that is full, then it is emptied: ids that
    many batches have are read seldom, and values reach a batch by the same kernels as in training.

    Args:
        store: Empty, of the tables and segments of the rows.
        rows: All of them.
        trained_by: Processes that each held a share of the rows while they were trained.
        most_held: Rows in memory at once; those of one batch in any case.
    """

    def __init__(
        self,
        store: EmbeddingStore,
        rows: SortedRows,
        *,
        trained_by: int = 1,
        most_held: int = _MOST_HELD,
    ) -> None:
        self._store = store
        self._trained_by = trained_by
        self._sorted = rows
        self._most_held = most_held

    @property
    def width(self) -> int:
        """Values in a row."""
        return self._store.width

    @property
    def num_rows(self) -> int:
        """How many there are."""
        return self._sorted.num_rows

    def memory_bytes(self) -> int:
        """Bytes of their records, keys and marks in memory, where they were trained."""
        return self.num_rows * self._store.rows.bytes_a_row - self.spilled_bytes()

    def spilled_bytes(self) -> int:
        """Bytes of records that lay in files there, beyond a memory limit; shares are even."""
        share = self.num_rows // self._trained_by
        return self._trained_by * self._store.rows.spilled_bytes_of(share)

    def iterate_rows(self, block_rows: int) -> Iterator[RowBlock]:
        """All rows by ascending key, in blocks of at most `block_rows`."""
        return self._sorted.iterate_rows(block_rows)

    def release(self) -> None:
        """Forgets all rows; their memory and their room on the disk are free again."""
        self._store.release()
        self._sorted.close()

    def prepare(self, ids_BF: IdArray, num_valid: int) -> PreparedBatch:
        """As `EmbeddingStore.prepare`."""
        return self._store.prepare(ids_BF, num_valid)

    def locate(self, prepared: PreparedBatch, *, create: bool) -> None:
        """Brings the rows of a batch into memory."""
        if create:
            raise AssertionError("training is over; no rows are made")
        self._store.locate(prepared, create=False)
        if prepared.rows_U is None or (prepared.rows_U >= 0).all():
            return
        wanted = prepared.keys_U[prepared.rows_U < 0]
        if self._store.num_rows + len(wanted) > self._most_held:
            self._store.rows.clear()
            wanted = prepared.keys_U
        self._hold(self._sorted.find(wanted))
        self._store.locate(prepared, create=False)

    def _hold(self, block: RowBlock) -> None:
        rows = self._store.rows
        first = rows.append(block.keys)
        last = first + len(block.keys)
        # Nothing but values is asked of them.
        rows.records_NR[first:last] = 0
        rows.records_NR[first:last, HEADER_WORDS : HEADER_WORDS + self._store.width] = block.values

    def gather_parts(
        self, prepared: PreparedBatch, num_leading: int
    ) -> tuple[Float32Array, Float32Array]:
        """As `EmbeddingStore.gather_parts`."""
        return self._store.gather_parts(prepared, num_leading)


def open_stored_rows(
    store: EmbeddingStore,
    storage: CutStorage,
    files: ParameterFiles,
    workspace: Path,
    *,
    most_held: int = _MOST_HELD,
) -> StoredRows:
    """The rows of a checkpoint.

    Args:
        store: Empty; any that could restore them.
        storage: Where the files are.
        files: The checkpoint's.
        workspace: Folder on whose disk they are sorted.
        most_held: Rows in memory at once; those of one batch in any case.

    Raises:
        CheckpointError: A file is missing or damaged, or of another make.
        RunFolderError: The disk is full or the folder cannot be written.
    """
    with RowSorter(workspace, store.width) as sorter:
        chains, num_partitions = files.chains, files.num_partitions
        for rows in read_log(store, storage, chains, num_partitions=num_partitions):
            sorter.add(rows.keys, rows.values_NW, age=rows.age, deleted_N=rows.deleted_N)
        found = _finished(sorter, storage.address)
        return StoredRows(store, found, trained_by=files.trained_by, most_held=most_held)


def _finished(sorter: RowSorter, place: str) -> SortedRows:
    try:
        return sorter.finish()
    except ValueError as error:
        raise CheckpointError(
            f"the embedding rows are damaged: {error}",
            place=place,
            remedy="Use an earlier checkpoint",
        ) from error
