"""The row log: rows of a cut in Arrow files, one for each partition, and how they are read back.

A `base` holds all rows of its partition, a `delta` those that changed since the cut before. In a
chain, a base and the deltas after it, the later row wins. Values and optimizer slots of a row stand
in one record, so that they can never be of different cuts.

Axes: P partitions that are written, B rows of a buffer, W values and S slots of a row.
"""

import json
import mmap
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np

from ctr_pipeline.durable import os_errors_explained
from ctr_pipeline.embeddings import log_kernels
from ctr_pipeline.embeddings.arrays import (
    BoolArray,
    Float32Array,
    Int32Array,
    Int64Array,
)
from ctr_pipeline.embeddings.cut_storage import CutStorage
from ctr_pipeline.embeddings.log_chain import CutFile, LogKind, rows_name
from ctr_pipeline.embeddings.partition import partitions_of
from ctr_pipeline.embeddings.row_file import (
    describe_rows,
    first_difference,
    load_rows,
    read_records,
    read_values,
)
from ctr_pipeline.embeddings.rows import RowStorage
from ctr_pipeline.embeddings.store import EmbeddingStore
from ctr_pipeline.embeddings.update_kernels import HEADER_COUNT, HEADER_LAST_SEEN, HEADER_WORDS
from ctr_pipeline.errors import CheckpointError, CtrPipelineError, TrainingError
from ctr_pipeline.kernels.ranges import RangeRunner
from ctr_pipeline.specs.table import ID_BITS

FORMAT_VERSION = 1
_METADATA_KEY = b"ctrpipe.row_log"
_BUFFER_BYTES = 32 << 20
_LEAST_BUFFER_ROWS = 64
_MOST_BUFFER_ROWS = 16_384
_BUFFERS_AT_A_TIME = 4
_CRC_THREADS = 2
_CLOSED_AT_A_TIME = 4
_ID_MASK = (1 << ID_BITS) - 1

KeyFilter = Callable[[Int64Array], BoolArray]
"""Says of each key, int64 [n], whether its row is wanted, bool [n]."""


def describe_log(store: EmbeddingStore, num_partitions: int) -> dict[str, Any]:
    """What a file of the log and a store must agree on, as JSON values."""
    description = describe_rows(store.layout, store.tables, store.seed)
    # Padding is not in the log, so that its format outlives a change of the record's layout.
    del description["record_floats"]
    return {"format": FORMAT_VERSION, **description, "num_partitions": num_partitions}


class RowLogWriter:
    """Writes the rows of one cut: collects them by partition, writes them in batches.

    Memory: the buffers, 32 MiB or 64 rows for each partition if that is more, and one batch.

    Args:
        storage: Where the files go.
        cut: Number of the cut.
        kind: The kind of all files: `base` or `delta`.
        partitions: Partitions to write.
        buffer_bytes: Memory of the buffers.
    """

    def __init__(
        self,
        storage: CutStorage,
        store: EmbeddingStore,
        *,
        cut: int,
        kind: LogKind,
        num_partitions: int,
        partitions: Sequence[int],
        buffer_bytes: int = _BUFFER_BYTES,
    ) -> None:
        self._storage = storage
        self._cut = cut
        self._kind: LogKind = kind
        self._partitions = tuple(partitions)
        self._description = describe_log(store, num_partitions)
        self._files: dict[int, _PartitionFile] = {}
        width, num_slots = store.layout.width, store.layout.num_slots
        row_bytes = 8 + 4 * HEADER_WORDS + 4 * (width + num_slots)
        fitting = buffer_bytes // (row_bytes * max(len(self._partitions), 1))
        size = min(max(fitting, _LEAST_BUFFER_ROWS), _MOST_BUFFER_ROWS)
        shape = (len(self._partitions), size)
        self._buffer_of_partition: Int32Array = np.full(num_partitions, -1, np.int32)
        self._buffer_of_partition[list(self._partitions)] = np.arange(shape[0], dtype=np.int32)
        self._sizes_P: Int64Array = np.zeros(shape[0], np.int64)
        self._keys_PB: Int64Array = np.empty(shape, np.int64)
        self._headers_2PB: Int32Array = np.empty((HEADER_WORDS, *shape), np.int32)
        self._values_PBW: Float32Array = np.empty((*shape, width), np.float32)
        self._slots_PBS: Float32Array = np.empty((*shape, num_slots), np.float32)

    @property
    def buffer_bytes(self) -> int:
        """Bytes of the buffers."""
        return sum(column.nbytes for column in self._columns())

    def _columns(self) -> tuple[Any, ...]:
        return (
            self._buffer_of_partition,
            self._sizes_P,
            self._keys_PB,
            self._headers_2PB,
            self._values_PBW,
            self._slots_PBS,
        )

    def put_records(self, records_SR: Float32Array, keys_S: Int64Array, begin: int) -> int:
        """Collects records from `begin` on; touches no file.

        Returns:
            Where to go on after `flush`; the number of records if all are collected.
        """
        num_records = len(keys_S)
        return self._collect(
            records_SR,
            records_SR.view(np.int32),
            keys_S,
            np.zeros(num_records, np.uint8),
            1,
            True,
            begin,
            num_records,
            num_records,
        )

    def put_rows(
        self, rows: RowStorage, *, full: bool, begin: int, end: int, most_rows: int
    ) -> int:
        """Collects rows of a store that carry a mark of the era before, or all; touches no file.

        Rows marked with this era are left out, marks of the one before are taken away.

        Returns:
            Where to go on after `flush`; `end` if all are collected.
        """
        return self._collect(
            rows.records_NR,
            rows.headers_NR,
            rows.keys_N,
            rows.marks_N,
            rows.era,
            full,
            begin,
            end,
            most_rows,
        )

    def _collect(self, *source: Any) -> int:
        place: int = log_kernels.collect_records(*source, *self._columns())
        if place < 0:
            raise ValueError(f"row {-1 - place} is of a partition that is not written here")
        return place

    def put_deleted(self, keys: Int64Array) -> None:
        """Writes tombstones: these keys have no row from this cut on."""
        partitions = partitions_of(keys, len(self._buffer_of_partition))
        order = np.argsort(partitions, kind="stable")
        ends = np.cumsum(np.bincount(partitions)).tolist()
        for partition, (first, end) in enumerate(pairwise([0, *ends])):
            if first == end:
                continue
            file = self._file(partition)
            for begin in range(first, end, _MOST_BUFFER_ROWS):
                chosen = keys[order[begin : min(begin + _MOST_BUFFER_ROWS, end)]]
                num_rows = len(chosen)
                file.write(
                    chosen,
                    np.zeros((HEADER_WORDS, num_rows), np.int32),
                    np.zeros((num_rows, self._values_PBW.shape[2]), np.float32),
                    np.zeros((num_rows, self._slots_PBS.shape[2]), np.float32),
                    deleted=True,
                )

    def flush(self) -> None:
        """Writes the fullest buffers; at most a few, so that this takes milliseconds."""
        least = self._keys_PB.shape[1] // 2
        for buffer in np.argsort(self._sizes_P)[-_BUFFERS_AT_A_TIME:].tolist():
            if self._sizes_P[buffer] > least:
                self._flush_buffer(buffer)

    def _flush_buffer(self, buffer: int) -> None:
        num_rows = int(self._sizes_P[buffer])
        require_finite(self._values_PBW[buffer, :num_rows], self._slots_PBS[buffer, :num_rows])
        self._file(self._partitions[buffer]).write(
            self._keys_PB[buffer, :num_rows],
            self._headers_2PB[:, buffer, :num_rows],
            self._values_PBW[buffer, :num_rows],
            self._slots_PBS[buffer, :num_rows],
            deleted=False,
        )
        self._sizes_P[buffer] = 0

    def _file(self, partition: int) -> "_PartitionFile":
        if partition not in self._files:
            if partition not in self._partitions:
                raise ValueError(f"partition {partition} is not written here")
            self._files[partition] = _PartitionFile(
                self._storage,
                self._storage.key_of(rows_name(partition, self._kind, self._cut)),
                {
                    **self._description,
                    "partition": partition,
                    "cut": self._cut,
                    "kind": self._kind,
                },
                width=self._values_PBW.shape[2],
                num_slots=self._slots_PBS.shape[2],
            )
        return self._files[partition]

    def finish(self) -> tuple[CutFile, ...]:
        """Writes what is left and puts the files in place, durably; none is left if one fails.

        Returns:
            The files by partition. A base is written of every partition, a delta only of those
            with rows.

        Raises:
            TrainingError: A row holds a value that is not finite.
            RunFolderError: The disk is full or the folder cannot be written.
        """
        try:
            for buffer in np.flatnonzero(self._sizes_P).tolist():
                self._flush_buffer(buffer)
            if self._kind == "base":
                for partition in self._partitions:
                    self._file(partition)
            files = [self._files[partition] for partition in sorted(self._files)]
            # A disk takes some milliseconds for a file however small it is.
            with ThreadPoolExecutor(_CLOSED_AT_A_TIME, thread_name_prefix="row-log") as pool:
                sizes = list(pool.map(_PartitionFile.close, files))
        except BaseException:
            self.abandon()
            raise
        return tuple(
            CutFile(
                name=file.name,
                num_bytes=num_bytes,
                crc32=crc,
                num_rows=num_rows,
                partition=partition,
                kind=self._kind,
                first=0,
            )
            for (partition, file), (num_bytes, crc, num_rows) in zip(
                sorted(self._files.items()), sizes, strict=True
            )
        )

    def abandon(self) -> None:
        """Removes what was written."""
        for file in self._files.values():
            file.remove()


def require_finite(*parts: Float32Array) -> None:
    """Refuses parameters that nobody can train or score with.

    Raises:
        TrainingError: A value, or the optimizer's state of one, is infinite or not a number.
    """
    if not all(np.isfinite(part).all() for part in parts):
        raise TrainingError(
            "the parameters hold a value that is not finite, so no checkpoint is written",
            remedy="Lower train.optimizer.learning_rate or those in train.embeddings, or look for "
            "values out of range",
        )


def prepare_writing(store: EmbeddingStore) -> None:
    """Loads PyArrow and compiles the kernels of a writer, so that no update waits for it later."""
    import pyarrow as pa

    del pa
    writer = RowLogWriter(
        CutStorage.at("."),
        store,
        cut=0,
        kind="delta",
        num_partitions=1,
        partitions=[0],
        buffer_bytes=0,
    )
    writer.put_rows(store.rows, full=False, begin=0, end=0, most_rows=0)
    writer.put_records(store.rows.records_NR[:0], store.rows.keys_N[:0], 0)


class _GivenUpError(Exception):
    """Ends the writing of a file that is not to be put."""


class _ChecksummedFile:
    """What PyArrow writes into: a file whose bytes are counted and summed up on the way."""

    closed = False

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.crc32 = 0
        self.num_bytes = 0

    def write(self, block: Any) -> int:
        view = memoryview(block)
        self.crc32 = zlib.crc32(view, self.crc32)
        self.num_bytes += view.nbytes
        self._file.write(view)
        return view.nbytes

    def tell(self) -> int:
        return self.num_bytes

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self.closed = True


class _PartitionFile:
    """Rows of one partition on their way into a file."""

    def __init__(
        self,
        storage: CutStorage,
        name: str,
        description: dict[str, Any],
        *,
        width: int,
        num_slots: int,
    ) -> None:
        import pyarrow as pa

        self.name = name
        self._storage = storage
        self._place = Path(storage.place_of(name))
        self._pa = pa
        self._schema = _rows_schema(pa, width, num_slots).with_metadata(
            {_METADATA_KEY: json.dumps(description, sort_keys=True).encode()}
        )
        self._num_rows = 0
        self._creating = storage.creating(name)
        self._sink = _ChecksummedFile(self._creating.__enter__())
        self._is_open = True
        with os_errors_explained(self._place):
            self._writer = pa.ipc.new_file(pa.PythonFile(self._sink, mode="w"), self._schema)

    def write(
        self,
        keys: Int64Array,
        headers_2N: Int32Array,
        values_NW: Float32Array,
        slots_NS: Float32Array,
        *,
        deleted: bool,
    ) -> None:
        pa = self._pa
        num_rows = len(keys)
        columns = [
            _column(pa, (keys >> ID_BITS).astype(np.int32)),
            _column(pa, keys & _ID_MASK),
            _vector_column(pa, values_NW),
            _vector_column(pa, slots_NS),
            _column(pa, headers_2N[HEADER_COUNT]),
            _column(pa, headers_2N[HEADER_LAST_SEEN]),
            _flag_column(pa, num_rows, value=deleted),
        ]
        with os_errors_explained(self._place):
            self._writer.write_batch(pa.record_batch(columns, schema=self._schema))
        self._num_rows += num_rows

    def close(self) -> tuple[int, int, int]:
        """Puts the file in place, durably; its size, CRC-32 and rows."""
        with os_errors_explained(self._place):
            self._writer.close()
        self._is_open = False
        self._creating.__exit__(None, None, None)
        return self._sink.num_bytes, self._sink.crc32, self._num_rows

    def remove(self) -> None:
        """Leaves nothing behind."""
        if self._is_open:
            self._is_open = False
            given_up = _GivenUpError()
            self._creating.__exit__(type(given_up), given_up, None)
        else:
            # Where the storage is away, retention deletes it: no manifest names it.
            with suppress(CtrPipelineError):
                self._storage.delete([self.name])


def _rows_schema(pa: Any, width: int, num_slots: int) -> Any:
    """Columns of every file of the log."""
    return pa.schema(
        [
            pa.field("table", pa.int32(), nullable=False),
            pa.field("id", pa.int64(), nullable=False),
            pa.field("values", _vectors(pa, width), nullable=False),
            pa.field("slots", _vectors(pa, num_slots), nullable=False),
            pa.field("count", pa.int32(), nullable=False),
            pa.field("last_seen", pa.int32(), nullable=False),
            pa.field("deleted", pa.bool_(), nullable=False),
        ]
    )


def _vectors(pa: Any, size: int) -> Any:
    return pa.list_(pa.field("item", pa.float32(), nullable=False), size)


def _column(pa: Any, numbers: Float32Array | Int32Array | Int64Array) -> Any:
    """A column of a contiguous array, without a copy; unlike `pa.array` it does not load pandas."""
    kind = pa.from_numpy_dtype(numbers.dtype)
    return pa.Array.from_buffers(kind, numbers.size, [None, pa.py_buffer(numbers)])


def _flag_column(pa: Any, size: int, *, value: bool) -> Any:
    """A column of equal bits."""
    packed = np.full(-(-size // 8), 255 if value else 0, np.uint8)
    return pa.Array.from_buffers(pa.bool_(), size, [None, pa.py_buffer(packed)])


def _vector_column(pa: Any, rows: Float32Array) -> Any:
    """A fixed-size list of each row, float32 [n, size], without a copy."""
    return pa.FixedSizeListArray.from_buffers(
        _vectors(pa, rows.shape[1]), len(rows), [None], 0, 0, [_column(pa, rows)]
    )


def verify_files(storage: CutStorage, files: Sequence[CutFile]) -> None:
    """Checks that files of a cut are all there and as they were written.

    Raises:
        CheckpointError: One is missing, too short or too long, or its checksum differs.
        StorageError: One cannot be read at this moment.
    """
    for file in files:
        num_bytes = storage.num_bytes(file.name, place=file.name)
        if num_bytes != file.num_bytes:
            raise _unusable(
                file.name, f"the file is damaged: {num_bytes} bytes, {file.num_bytes} were written"
            )
    with ThreadPoolExecutor(_CRC_THREADS, thread_name_prefix="row-log-crc") as pool:
        sums = list(pool.map(lambda file: storage.crc32_of(file.name, place=file.name), files))
    for file, crc in zip(files, sums, strict=True):
        if crc != file.crc32:
            raise _unusable(file.name, "the file is damaged: its checksum differs")


def _unusable(name: str, what: str) -> CheckpointError:
    return CheckpointError(what, place=name, remedy="Use an earlier checkpoint")


def restore_rows(
    store: EmbeddingStore,
    storage: CutStorage,
    chains: Sequence[Sequence[CutFile]],
    *,
    num_partitions: int,
    cut: int,
    only: KeyFilter | None = None,
) -> None:
    """Replaces all rows of a store by those of some partitions, or of all, at a cut.

    Args:
        store: Any that has the same tables, segments and seed.
        storage: Where the files are.
        chains: Files of each partition, base first.
        cut: The cut to restore; the next delta follows it.
        only: Which of some keys are wanted, bool [n]; None: all.

    Raises:
        CheckpointError: A file is missing or damaged, or of another make; the store is as it was,
            or empty if the files were found to contradict each other while they were read.
        StorageError: A file cannot be read at this moment.
        TrainingError: There is no room for so many rows.
    """
    _check_files(store, storage, chains, num_partitions)
    rows = store.rows
    with rows.lock:
        rows.clear()
        try:
            for name, partitions in _whole_files(chains).items():
                wanted = only
                if len(partitions) < num_partitions:
                    wanted = _of_partitions(partitions, num_partitions, only)
                _read_whole(store, storage, name, wanted)
            for chain in chains:
                if not _is_whole(chain):
                    _read_chain(store, storage, chain, num_partitions, only)
        except BaseException:
            rows.clear()
            raise
        rows.delta_after = cut


@dataclass(frozen=True)
class LoggedRows:
    """Some rows of a file.

    Attributes:
        keys: int64 [n].
        values_NW: float32.
        deleted_N: Which are tombstones.
        age: Age of the file, 0 for the newest of its partition.
    """

    keys: Int64Array
    values_NW: Float32Array
    deleted_N: BoolArray
    age: int


def read_log(
    store: EmbeddingStore,
    storage: CutStorage,
    chains: Sequence[Sequence[CutFile]],
    *,
    num_partitions: int,
) -> Iterator[LoggedRows]:
    """The rows of all files of a cut, in bounded memory; of each key the row of least age counts.

    Args:
        store: Any that has the same tables, segments and seed; it stays as it is.
        storage: Where the files are.
        chains: Files of each partition, base first.

    Raises:
        CheckpointError: A file is missing or damaged, or of another make.
        StorageError: A file cannot be read at this moment.
    """
    _check_files(store, storage, chains, num_partitions)
    for name in _whole_files(chains):
        with _whole_opened(storage, name) as opened, _whole_opened(storage, name) as keys_file:
            make = describe_rows(store.layout, store.tables, store.seed)
            for keys, values in read_values(opened, keys_file, store.layout, make, name):
                yield LoggedRows(keys, values, np.zeros(len(keys), np.bool_), 0)
    for chain in chains:
        if _is_whole(chain):
            continue
        for age, file in enumerate(reversed(_checked_chain(chain))):
            # Mapped pages would count as memory until the file is closed.
            for batch in _batches_of(store, storage, file, num_partitions, mapped=False):
                yield LoggedRows(batch.keys, batch.values_NW, batch.deleted, age)


def _check_files(
    store: EmbeddingStore,
    storage: CutStorage,
    chains: Sequence[Sequence[CutFile]],
    num_partitions: int,
) -> None:
    """Raises CheckpointError unless all files are as they were written, for such a store."""
    # A whole file is checked while it is read.
    newest_first = [file for chain in chains if not _is_whole(chain) for file in reversed(chain)]
    verify_files(storage, newest_first)
    expected = describe_log(store, num_partitions)
    for file in newest_first:
        _check_make(storage, file, expected)


@contextmanager
def _opened(storage: CutStorage, file: CutFile, *, mapped: bool = True) -> Iterator[Any]:
    """A reader of one file, from mapped memory; or of one batch after another."""
    import pyarrow as pa

    with storage.reading(file.name, place=file.name) as opened:
        try:
            yield pa.ipc.open_file(_mapped(pa, opened) if mapped else pa.PythonFile(opened))
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            # PyArrow has OSErrors of its own for contents that contradict themselves.
            raise _unusable(file.name, f"the file cannot be read ({error})") from error


def _mapped(pa: Any, opened: IO[bytes]) -> Any:
    """The memory of a file, where it has a descriptor and is not empty."""
    try:
        return pa.py_buffer(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
    except ValueError:
        return pa.PythonFile(opened)


def _check_make(storage: CutStorage, file: CutFile, expected: dict[str, Any]) -> None:
    """Raises CheckpointError unless a file's rows are of the expected make."""
    with _opened(storage, file) as reader:
        text = (reader.schema.metadata or {}).get(_METADATA_KEY)
    try:
        found = json.loads(text) if text is not None else None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise _unusable(file.name, "the file is none of the row log")
    expected = {**expected, "partition": file.partition, "kind": file.kind}
    for name, value in expected.items():
        if found.get(name) != value:
            raise CheckpointError(
                f"embedding rows of another make: {first_difference(name, found.get(name), value)}",
                place=file.name,
                remedy="Restore the configuration of the checkpoint, or start a new run",
            )


def _is_whole(chain: Sequence[CutFile]) -> bool:
    return len(chain) == 1 and chain[0].kind == "whole"


def _whole_files(chains: Sequence[Sequence[CutFile]]) -> dict[str, list[int]]:
    """Names of whole files, and the partitions that are wanted of each."""
    found: dict[str, list[int]] = {}
    for chain in chains:
        if _is_whole(chain):
            found.setdefault(chain[0].name, []).append(chain[0].partition)
    return found


def _whole_opened(storage: CutStorage, name: str) -> AbstractContextManager[IO[bytes]]:
    return storage.reading(name, place=name)


def _of_partitions(
    partitions: Sequence[int], num_partitions: int, only: KeyFilter | None
) -> KeyFilter:
    """Which of some keys are of some partitions, and wanted."""

    def wanted(keys: Int64Array) -> BoolArray:
        found: BoolArray = np.isin(partitions_of(keys, num_partitions), partitions)
        return found if only is None else found & only(keys)

    return wanted


def _read_whole(
    store: EmbeddingStore, storage: CutStorage, name: str, wanted: KeyFilter | None
) -> None:
    """Adds the rows of a file that holds those of all partitions; None: all of them."""
    make = describe_rows(store.layout, store.tables, store.seed)
    if wanted is None:
        with _whole_opened(storage, name) as opened:
            load_rows(opened, store.rows, make, name)
        return
    rows = store.rows
    with _whole_opened(storage, name) as opened, _whole_opened(storage, name) as keys_file:
        for keys, records in read_records(opened, keys_file, store.layout, make, name):
            chosen = wanted(keys)
            try:
                first = rows.append(np.ascontiguousarray(keys[chosen]))
            except ValueError as error:
                raise _unusable(name, f"the file is damaged: {error}") from error
            rows.records_NR[first : rows.num_rows] = records[chosen]


def _read_chain(
    store: EmbeddingStore,
    storage: CutStorage,
    chain: Sequence[CutFile],
    num_partitions: int,
    only: KeyFilter | None,
) -> None:
    """Adds the rows of one partition, from the newest file to the oldest: the first found stays."""
    runner = RangeRunner(1)
    deleted: Int64Array = np.empty(0, np.int64)
    for file in reversed(_checked_chain(chain)):
        newly_deleted: list[Int64Array] = []
        for batch in _batches_of(store, storage, file, num_partitions):
            rows_U, _ = store.rows.find(batch.keys, runner)
            chosen = rows_U < 0
            if only is not None:
                chosen &= only(batch.keys)
            if len(deleted):
                chosen &= ~np.isin(batch.keys, deleted)
            if batch.deleted.any():
                newly_deleted.append(batch.keys[chosen & batch.deleted])
                chosen &= ~batch.deleted
            batch.append_to(store.rows, chosen, file)
        deleted = np.concatenate([deleted, *newly_deleted])


def _checked_chain(chain: Sequence[CutFile]) -> Sequence[CutFile]:
    """Raises CheckpointError unless a chain is empty, or a base and deltas."""
    if chain and (chain[0].kind != "base" or any(file.kind != "delta" for file in chain[1:])):
        raise _unusable(chain[0].name, "the chain does not consist of a base and deltas after it")
    return chain


def _batches_of(
    store: EmbeddingStore,
    storage: CutStorage,
    file: CutFile,
    num_partitions: int,
    *,
    mapped: bool = True,
) -> Iterator["_LogBatch"]:
    """The rows of a file, checked; those that were announced."""
    import pyarrow as pa

    schema = _rows_schema(pa, store.layout.width, store.layout.num_slots)
    num_rows = 0
    with _opened(storage, file, mapped=mapped) as reader:
        if not reader.schema.equals(schema, check_metadata=False):
            raise _unusable(file.name, "the file has other columns than those of the row log")
        for number in range(reader.num_record_batches):
            found = reader.get_batch(number)
            num_rows += found.num_rows
            if num_rows > file.num_rows:
                break
            # Lengths and offsets of a made-up file need not agree with each other.
            found.validate(full=True)
            if any(column.null_count for column in found.columns):
                raise _unusable(file.name, "the file holds rows without a value")
            batch = _LogBatch(found, store)
            batch.check(store, file, num_partitions)
            yield batch
    if num_rows != file.num_rows:
        found_rows = f"{num_rows} rows" if num_rows < file.num_rows else "more rows"
        raise _unusable(file.name, f"{found_rows}, {file.num_rows} were written")


class _LogBatch:
    """Rows of a file as arrays; views of what was read or mapped."""

    def __init__(self, batch: Any, store: EmbeddingStore) -> None:
        self._tables: Int32Array = _numbers(batch.column("table"), np.int32)
        self._ids: Int64Array = _numbers(batch.column("id"), np.int64)
        self.keys: Int64Array = (self._tables.astype(np.int64) << ID_BITS) | self._ids
        self.deleted = _flags(batch.column("deleted"))
        self._count: Int32Array = _numbers(batch.column("count"), np.int32)
        self._last_seen: Int32Array = _numbers(batch.column("last_seen"), np.int32)
        values: Float32Array = _numbers(batch.column("values").flatten(), np.float32)
        slots: Float32Array = _numbers(batch.column("slots").flatten(), np.float32)
        self.values_NW = values.reshape(len(self.keys), store.layout.width)
        self._slots_NS = slots.reshape(len(self.keys), store.layout.num_slots)

    def check(self, store: EmbeddingStore, file: CutFile, num_partitions: int) -> None:
        """Raises CheckpointError if a row cannot be one of this file."""
        limits = np.array([table.num_ids for table in store.tables], np.int64)
        known = (self._tables >= 0) & (self._tables < len(limits))
        if not known.all() or not ((self._ids >= 0) & (self._ids < limits[self._tables])).all():
            raise _unusable(file.name, "the file holds an id that its table has not")
        if (partitions_of(self.keys, num_partitions) != file.partition).any():
            raise _unusable(file.name, "the file holds a row of another partition")
        if not (np.isfinite(self.values_NW).all() and np.isfinite(self._slots_NS).all()):
            raise _unusable(file.name, "the file holds a value that is not finite")

    def append_to(self, rows: RowStorage, chosen: Any, file: CutFile) -> None:
        """Adds the chosen rows."""
        part: Any = slice(None) if chosen.all() else chosen
        keys = np.ascontiguousarray(self.keys[part])
        try:
            first = rows.append(keys)
        except ValueError as error:
            raise _unusable(file.name, f"the file is damaged: {error}") from error
        last = first + len(keys)
        width, num_slots = self.values_NW.shape[1], self._slots_NS.shape[1]
        start = HEADER_WORDS + width
        rows.headers_NR[first:last, HEADER_COUNT] = self._count[part]
        rows.headers_NR[first:last, HEADER_LAST_SEEN] = self._last_seen[part]
        rows.records_NR[first:last, HEADER_WORDS:start] = self.values_NW[part]
        rows.records_NR[first:last, start : start + num_slots] = self._slots_NS[part]
        rows.records_NR[first:last, start + num_slots :] = 0


def _numbers(column: Any, dtype: Any) -> Any:
    """A column without nulls as a view; unlike `to_numpy` it does not load pandas."""
    content = column.buffers()[1]
    if content is None or not len(column):
        return np.empty(0, dtype)
    # The buffer may end anywhere behind them.
    start = column.offset * np.dtype(dtype).itemsize
    return np.frombuffer(content, dtype, len(column), start)


def _flags(column: Any) -> BoolArray:
    """A column of bits without nulls."""
    content = column.buffers()[1]
    packed = np.frombuffer(content if content is not None else b"", np.uint8)
    bits = np.unpackbits(packed, bitorder="little")
    return bits[column.offset : column.offset + len(column)].astype(np.bool_)
