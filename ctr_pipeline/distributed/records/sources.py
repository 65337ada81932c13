"""Records by their number: from files of TFRecord, RecordIO, text or Parquet, or numbers alone."""

import mmap
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ctr_pipeline.dataset.formats.parquet.reading import (
    ParquetFile,
    read_batches,
    read_schema,
    rows_of_groups,
)
from ctr_pipeline.dataset.formats.recordio.chunks import RecordIOReader
from ctr_pipeline.dataset.formats.text.records import Dialect, find_last_end, find_records
from ctr_pipeline.dataset.limits import LONGEST_VALUE_BYTES
from ctr_pipeline.dataset.paths import resolve_files
from ctr_pipeline.dataset.source import Range
from ctr_pipeline.errors import DataError
from ctr_pipeline.kernels.crc32c import masked_crc

RecordFormat = Literal["tfrecord", "recordio", "text", "parquet"]
FORMATS: dict[str, RecordFormat] = {
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
    ".recordio": "recordio",
    ".csv": "text",
    ".tsv": "text",
    ".txt": "text",
    ".jsonl": "text",
    ".parquet": "parquet",
}
"""Formats by the ending of a file's name."""

Records = Any
"""int64 [N] of numbers, object [N] of bytes, or such arrays by the name of a column."""

_HELD_BYTES = 256 << 20
"""Bytes of chunks and row groups that are kept decoded."""
_TEXT_BYTES = 16 << 20
"""Bytes of text in which records are looked for at a time."""
_LENGTH_BYTES = 8
_CRC_BYTES = 4

Int64s = NDArray[np.int64]
T = TypeVar("T")


class RecordSource(Protocol):
    """Records that can be read by their number."""

    @property
    def num_records(self) -> int:
        """How many there are."""

    def read(self, numbers_N: Int64s) -> Records:
        """The records of these numbers, in this order.

        Raises:
            DataError: A file is damaged.
        """


class RecordNumbers:
    """Numbers instead of records, for scripts that know how to get at a record by its number."""

    def __init__(self, num_records: int) -> None:
        self.num_records = num_records

    def read(self, numbers_N: Int64s) -> Records:
        """The numbers themselves."""
        return numbers_N


class _BytesFile(ABC):
    """Records of bytes in a file."""

    num_records: int

    @abstractmethod
    def read_into(self, records_N: NDArray[Any], places: Int64s, numbers: Int64s) -> None:
        """Puts the records of ascending `numbers` at `places`."""


class _Mapped(_BytesFile):
    """Records whose places in an uncompressed file are known."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                self._data: mmap.mmap | bytes = (
                    mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
                )
        except OSError as error:
            raise DataError(
                f"cannot be read ({error.strerror})",
                place=str(path),
                remedy="Check the file and its permissions",
            ) from error
        if self._data[:2] == b"\x1f\x8b":
            raise DataError(
                "is compressed, so that its records cannot be read by their number",
                place=str(path),
                remedy="Unpack it",
            )
        self._starts, self._ends = self._find()
        self.num_records = len(self._starts)

    @abstractmethod
    def _find(self) -> tuple[Int64s, Int64s]:
        """Where each record begins, and where it ends."""

    def read_into(self, records_N: NDArray[Any], places: Int64s, numbers: Int64s) -> None:
        """As `_BytesFile.read_into`."""
        for place, number in zip(places.tolist(), numbers.tolist(), strict=True):
            first, after = int(self._starts[number]), int(self._ends[number])
            records_N[place] = self._data[first:after]
            self._check(number, records_N[place])

    def _check(self, number: int, record: bytes) -> None:
        """Raises DataError if the record is damaged."""


class _TFRecordFile(_Mapped):
    """A file that holds of each record its length, its bytes, and a checksum of each."""

    def _find(self) -> tuple[Int64s, Int64s]:
        starts, ends = list[int](), list[int]()
        first, size = 0, len(self._data)
        head_bytes = _LENGTH_BYTES + _CRC_BYTES
        while first < size:
            length = int.from_bytes(self._data[first : first + _LENGTH_BYTES], "little")
            start = first + head_bytes
            if not self._has_crc(first, first + _LENGTH_BYTES):
                raise self._damaged(len(starts), "is no record, or is damaged")
            if start + length + _CRC_BYTES > size:
                raise self._damaged(len(starts), "is truncated")
            starts.append(start)
            ends.append(start + length)
            first = start + length + _CRC_BYTES
        return np.array(starts, np.int64), np.array(ends, np.int64)

    def _has_crc(self, first: int, after: int) -> bool:
        """Whether the checksum behind these bytes is theirs."""
        data = np.frombuffer(self._data[first:after], np.uint8)
        expected = int.from_bytes(self._data[after : after + _CRC_BYTES], "little")
        return int(masked_crc(data)) == expected

    def _check(self, number: int, record: bytes) -> None:
        if not self._has_crc(int(self._starts[number]), int(self._ends[number])):
            raise self._damaged(number, "is damaged: it does not have its checksum")

    def _damaged(self, number: int, what: str) -> DataError:
        return DataError(
            what,
            place=f"{self._path}, record {number + 1}",
            remedy="Copy the file again, or name its format",
        )


class _TextFile(_Mapped):
    """A record is a line, or several if a quoted field goes on over its end."""

    def __init__(self, path: Path, *, has_header: bool) -> None:
        delimiter = "\t" if ".tsv" in path.suffixes else ","
        # A quote means something in CSV alone.
        self._dialect = Dialect(delimiter, '"' if ".csv" in path.suffixes else None)
        self._has_header = has_header
        super().__init__(path)

    def _find(self) -> tuple[Int64s, Int64s]:
        starts, ends = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        first, size = 0, len(self._data)
        while first < size:
            after, length = size, _TEXT_BYTES
            block = self._data[first : first + length]
            while first + len(block) < size:
                end = find_last_end(block, self._dialect)
                if end:
                    after, block = first + end, block[:end]
                    break
                if length >= LONGEST_VALUE_BYTES:
                    raise DataError(
                        f"has a record of more than {LONGEST_VALUE_BYTES:,} bytes",
                        place=f"{self._path}, byte {first:,}",
                        remedy="Check for a quote that is never closed",
                    )
                length *= 2
                block = self._data[first : first + length]
            found = find_records(block, self._dialect)
            starts.append(found.starts + first)
            ends.append(found.ends + first)
            first = after
        skipped = int(self._has_header)
        return np.concatenate(starts)[skipped:], np.concatenate(ends)[skipped:]


class _Chunks(Generic[T]):
    """Decoded parts of a file, of which those used last are kept.

    Args:
        num_records_C: Records of each part.
        decode: Decodes one part; answers with its bytes in memory as well.
    """

    def __init__(
        self, num_records_C: Sequence[int], decode: Callable[[int], tuple[T, int]]
    ) -> None:
        self._firsts = np.concatenate([[0], np.cumsum(num_records_C)]).astype(np.int64)
        self._decode = decode
        self._held: OrderedDict[int, tuple[T, int]] = OrderedDict()
        self._held_bytes = 0

    @property
    def num_records(self) -> int:
        """Records of all parts."""
        return int(self._firsts[-1])

    def find(self, numbers: Int64s) -> Iterator[tuple[T, slice, Int64s]]:
        """The parts that hold records of ascending numbers.

        Yields:
            A part, which of the numbers are its records, and their places in it.
        """
        chunk_N = np.searchsorted(self._firsts, numbers, side="right") - 1
        for chunk in np.unique(chunk_N).tolist():
            low, high = np.searchsorted(chunk_N, [chunk, chunk + 1]).tolist()
            yield self.get(chunk), slice(low, high), numbers[low:high] - self._firsts[chunk]

    def get(self, chunk: int) -> T:
        """A part by its number."""
        if chunk not in self._held:
            self._held[chunk] = self._decode(chunk)
            self._held_bytes += self._held[chunk][1]
            while self._held_bytes > _HELD_BYTES and len(self._held) > 1:
                _, (_, num_bytes) = self._held.popitem(last=False)
                self._held_bytes -= num_bytes
        self._held.move_to_end(chunk)
        return self._held[chunk][0]


class _RecordIOFile(_BytesFile):
    def __init__(self, path: Path) -> None:
        self._path = path
        with RecordIOReader(path) as reader:
            self._ranges = reader.ranges(1)
            firsts = reader.first_records
        self._chunks = _Chunks(np.diff(firsts).tolist(), self._decode)
        self.num_records = self._chunks.num_records

    def _decode(self, chunk: int) -> tuple[list[bytes], int]:
        with RecordIOReader(self._path) as reader:
            parts = reader.chunks(self._ranges[chunk])
            found = [bytes(one) for records, _ in parts for one in records]
        return found, sum(map(len, found))

    def read_into(self, records_N: NDArray[Any], places: Int64s, numbers: Int64s) -> None:
        """As `_BytesFile.read_into`."""
        for chunk, some, within in self._chunks.find(numbers):
            for place, one in zip(places[some].tolist(), within.tolist(), strict=True):
                records_N[place] = chunk[one]


class _BytesFiles:
    """Records of bytes, of several files one after another."""

    def __init__(self, files: Sequence[_BytesFile]) -> None:
        self._files = files
        self._firsts = np.cumsum([0, *(file.num_records for file in files)])
        self.num_records = int(self._firsts[-1])

    def read(self, numbers_N: Int64s) -> Records:
        """Object [N] of bytes."""
        records_N = np.empty(len(numbers_N), object)
        order = np.argsort(numbers_N, kind="stable")
        numbers = numbers_N[order]
        bounds = np.searchsorted(numbers, self._firsts)
        for index, file in enumerate(self._files):
            low, high = bounds[index : index + 2].tolist()
            if low < high:
                file.read_into(records_N, order[low:high], numbers[low:high] - self._firsts[index])
        return records_N


class _ParquetFiles:
    """Rows of Parquet files, one after another, as arrays by column."""

    def __init__(self, paths: Sequence[Path], columns: Sequence[str] | None) -> None:
        schemas = [read_schema(path) for path in paths]
        self._files = [
            ParquetFile(path, *schema) for path, schema in zip(paths, schemas, strict=True)
        ]
        known = self._files[0].column_names
        self._columns = tuple(known if columns is None else columns)
        for file in self._files:
            missing = [name for name in self._columns if name not in file.column_names]
            if missing:
                raise DataError(
                    f"has no column '{missing[0]}'",
                    place=str(file.path),
                    remedy=f"Its columns are {', '.join(file.column_names)}",
                )
        groups = [rows_of_groups(path).tolist() for path in paths]
        self._places = [
            (file, group)
            for file, counts in zip(self._files, groups, strict=True)
            for group in range(len(counts))
        ]
        self._chunks = _Chunks([count for counts in groups for count in counts], self._decode)
        self.num_records = self._chunks.num_records

    def _decode(self, chunk: int) -> tuple[Mapping[str, NDArray[Any]], int]:
        file, group = self._places[chunk]
        batches = read_batches(file, self._columns, 1 << 20, part=Range(group, group + 1))
        table = pa.Table.from_batches(list(batches))
        arrays = {
            name: _to_numpy(table[name], f"{file.path}, column '{name}'") for name in self._columns
        }
        return arrays, table.nbytes

    def read(self, numbers_N: Int64s) -> Records:
        """Arrays [N] by column."""
        order = np.argsort(numbers_N, kind="stable")
        found = [
            {name: values[within] for name, values in chunk.items()}
            for chunk, _, within in self._chunks.find(numbers_N[order])
        ]
        back = np.argsort(order)
        if not found:
            chunk = self._chunks.get(0)
            found = [{name: values[:0] for name, values in chunk.items()}]
        return {
            name: np.concatenate([part[name] for part in found])[back] for name in self._columns
        }


def _to_numpy(column: pa.ChunkedArray, place: str) -> NDArray[Any]:
    """Numbers as they are, whole ones as int64, texts as bytes; missing is NaN or empty.

    Raises:
        DataError: The type has no such form, or a whole number is missing.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        column = column.cast(pa.large_binary())
        kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        texts = np.empty(len(column), object)
        texts[:] = column.fill_null(b"").to_pylist()
        return texts
    if pa.types.is_floating(kind):
        return np.asarray(column.to_numpy())
    if not (pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        raise DataError(
            f"values of type {kind} are not read as records",
            place=place,
            remedy="Name the columns to read by columns=",
        )
    if column.null_count:
        raise DataError(
            f"{column.null_count:,} whole numbers are missing",
            place=place,
            remedy="Write another number for missing, or the column as floats",
        )
    return np.asarray(column.to_numpy()).astype(
        np.bool_ if pa.types.is_boolean(kind) else np.int64, copy=False
    )


def open_records(
    source: int | str | Sequence[str],
    *,
    file_format: str | None = None,
    columns: Sequence[str] | None = None,
    has_header: bool = False,
) -> RecordSource:
    """Records by their number.

    Args:
        source: How many records, or files, lists of them or globs.
        file_format: The format of the files; None: by the endings of their names.
        columns: Which columns of Parquet files are read; None: all.
        has_header: The first line of each text file is no record.

    Raises:
        DataError: A file is missing or damaged, or its format is unknown.
    """
    if isinstance(source, int):
        if source < 1:
            raise DataError(f"{source} records", place="ElasticRecords", remedy="Name 1 or more")
        return RecordNumbers(source)
    paths = []
    for file in resolve_files(source, "ElasticRecords"):
        if not isinstance(file, Path):
            raise DataError(
                "is no file on a disk", place=str(file), remedy="Copy it to a disk of each node"
            )
        paths.append(file)
    formats = {_format_of(path, file_format) for path in paths}
    if len(formats) > 1:
        raise DataError(
            f"files of several formats: {', '.join(sorted(formats))}",
            place="ElasticRecords",
            remedy="Read those of one format",
        )
    (found,) = formats
    if columns is not None and found != "parquet":
        raise DataError(
            f"records of {found} have no columns",
            place="ElasticRecords",
            remedy="Leave out columns=, and parse the records in the script",
        )
    opened: RecordSource
    if found == "parquet":
        opened = _ParquetFiles(paths, columns)
    elif found == "recordio":
        opened = _BytesFiles([_RecordIOFile(path) for path in paths])
    elif found == "tfrecord":
        opened = _BytesFiles([_TFRecordFile(path) for path in paths])
    else:
        opened = _BytesFiles([_TextFile(path, has_header=has_header) for path in paths])
    if not opened.num_records:
        raise DataError("hold no records", place=", ".join(map(str, paths)))
    return opened


def _format_of(path: Path, file_format: str | None) -> str:
    if file_format is not None:
        if file_format not in FORMATS.values():
            raise DataError(
                f"no format is named '{file_format}'",
                place="ElasticRecords",
                remedy=f"Formats are {', '.join(dict.fromkeys(FORMATS.values()))}",
            )
        return file_format
    found = FORMATS.get(path.suffix.lower())
    if found is None:
        raise DataError(
            "its name does not tell its format",
            place=str(path),
            remedy=f"Name it: format={' or '.join(map(repr, dict.fromkeys(FORMATS.values())))}",
        )
    return found
