"""Encoded rows on disk: fixed-width records that any range of can be read by one `pread`.

A record is `num_fields` int32 ids, `num_numbers` float32 numbers, the float32 weight if rows have
one, and the float32 label, in that order, little-endian. `meta.json` beside the records is written
last: without it they do not count. Where several processes encoded a split, its `meta.json` names
the folders below that hold its records, one after another; others there do not count.
"""

import json
import os
import shutil
import sys
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ctr_pipeline import durable
from ctr_pipeline.dataset.order import TaskRows
from ctr_pipeline.errors import DataError

_FORMAT_VERSION = 1
_WORD_BYTES = 4
_PARTS = "parts"


@dataclass(frozen=True)
class EncodedMeta:
    """What `meta.json` says of the records beside it.

    Attributes:
        fingerprint: Fingerprint of everything the records depend on.
        num_rows: Records.
        num_fields: Ids of a record.
        num_numbers: Numbers of a record.
        num_positive: Records whose label is 1.
        weight_sum: Sum of the records' weights; None if they have none.
        parts: Folders below that hold them, in this order; empty: `rows.bin` beside it does.
    """

    version: int
    fingerprint: str
    num_rows: int
    num_fields: int
    num_numbers: int
    num_positive: int
    weight_sum: float | None = None
    parts: tuple[str, ...] = ()

    @property
    def has_weights(self) -> bool:
        """Whether records have weights."""
        return self.weight_sum is not None

    @property
    def record_words(self) -> int:
        """32-bit words of a record."""
        return self.num_fields + self.num_numbers + self.has_weights + 1

    def parts_of(self, words_BR: NDArray[np.int32]) -> "EncodedRecords":
        """The parts of records as views of their words."""
        fields, numbers = self.num_fields, self.num_fields + self.num_numbers
        return EncodedRecords(
            words=words_BR,
            ids_BF=words_BR[:, :fields],
            numbers_BN=words_BR[:, fields:numbers].view(np.float32),
            labels_B=words_BR[:, -1].view(np.float32),
            weights_B=words_BR[:, numbers].view(np.float32) if self.has_weights else None,
        )


@dataclass(frozen=True)
class EncodedRows:
    """Some rows, as training takes them.

    Attributes:
        ids_BF: int32 [B, F], local to their field.
        numbers_BN: float32 [B, N].
        labels_B: float32 [B].
        weights_B: float32 [B], over the mean weight of all records, so that theirs is 1; None if
            all weigh the same.
    """

    ids_BF: NDArray[np.int32]
    numbers_BN: NDArray[np.float32]
    labels_B: NDArray[np.float32]
    weights_B: NDArray[np.float32] | None = None

    @property
    def num_rows(self) -> int:
        """Rows held."""
        return len(self.labels_B)


@dataclass(frozen=True)
class EncodedRecords:
    """Records to be filled and written: the parts of `EncodedRows` as views of one array.

    Attributes:
        words: int32 [B, words of a record].
        ids_BF: int32 [B, F].
        numbers_BN: float32 [B, N].
        labels_B: float32 [B].
        weights_B: float32 [B]; only their ratios matter. None if records have none.
    """

    words: NDArray[np.int32]
    ids_BF: NDArray[np.int32]
    numbers_BN: NDArray[np.float32]
    labels_B: NDArray[np.float32]
    weights_B: NDArray[np.float32] | None


class EncodedWriter:
    """Writes one split's records; a context manager that finishes the folder or leaves nothing.

    Args:
        folder: Theirs.
        num_fields: Ids of a record.
        num_numbers: Numbers of a record.
        fingerprint: Fingerprint of everything the records depend on.
        has_weights: Whether records have weights.
    """

    def __init__(
        self,
        folder: Path,
        *,
        num_fields: int,
        num_numbers: int,
        fingerprint: str,
        has_weights: bool = False,
    ) -> None:
        if sys.byteorder != "little":
            raise DataError(
                "rows are encoded for little-endian machines only, and this one is not",
                place=str(folder),
                remedy="Run on an x86-64 or ARM machine",
            )
        self._folder = folder
        self._meta = EncodedMeta(
            _FORMAT_VERSION,
            fingerprint,
            num_rows=0,
            num_fields=num_fields,
            num_numbers=num_numbers,
            num_positive=0,
            weight_sum=0.0 if has_weights else None,
        )
        with durable.os_errors_explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "meta.json").unlink(missing_ok=True)
            shutil.rmtree(folder / _PARTS, ignore_errors=True)
            # Without a buffer of its own a full disk is noticed where it can be told.
            self._file = (folder / "rows.bin").open("wb", buffering=0)

    def write(
        self,
        ids_BF: NDArray[np.int32],
        numbers_BN: NDArray[np.float32],
        labels_B: NDArray[np.float32],
        weights_B: NDArray[np.float32] | None = None,
    ) -> None:
        """Appends rows; they have weights if records do."""
        records = self.new_records(len(labels_B))
        records.ids_BF[:] = ids_BF
        records.numbers_BN[:] = numbers_BN
        records.labels_B[:] = labels_B
        if (records.weights_B is None) != (weights_B is None):
            raise ValueError("weights are given for all records or for none")
        if records.weights_B is not None and weights_B is not None:
            records.weights_B[:] = weights_B
        self.write_records(records)

    def new_records(self, num_rows: int) -> EncodedRecords:
        """Records without values; any thread may ask for them."""
        return self._meta.parts_of(np.empty((num_rows, self._meta.record_words), dtype=np.int32))

    def write_records(self, records: EncodedRecords) -> None:
        """Appends records, whose memory is free again afterwards."""
        # Not `tofile`, whose errors do not tell a full disk from another one.
        rest = records.words.reshape(-1).view(np.uint8).data
        with durable.os_errors_explained(self._folder / "rows.bin"):
            while rest:
                rest = rest[self._file.write(rest) :]
        meta = self._meta
        self._meta = replace(
            meta,
            num_rows=meta.num_rows + len(records.labels_B),
            num_positive=meta.num_positive + int(np.count_nonzero(records.labels_B)),
        )
        if meta.weight_sum is not None and records.weights_B is not None:
            total = float(np.sum(records.weights_B, dtype=np.float64))
            self._meta = replace(self._meta, weight_sum=meta.weight_sum + total)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        if kind is not None:
            (self._folder / "rows.bin").unlink(missing_ok=True)
            return
        meta = {name: value for name, value in asdict(self._meta).items() if value is not None}
        del meta["parts"]
        _write_meta(self._folder, meta)


def _write_meta(folder: Path, meta: Mapping[str, Any]) -> None:
    durable.write_text(folder / "meta.json", json.dumps(meta, indent=2) + "\n")


def part_folder(folder: Path, name: str) -> Path:
    """Where a part of a split's records lies, which an `EncodedWriter` of its own writes."""
    return folder / _PARTS / name


def join_parts(folder: Path, names: Sequence[str]) -> None:
    """Makes parts the records of a split, in this order; all else in its folder is deleted.

    Raises:
        DataError: A part is missing or damaged.
    """
    meta = _meta_of_all([_require_meta(part_folder(folder, name)) for name in names])
    facts = {name: value for name, value in asdict(meta).items() if value is not None}
    _write_meta(folder, facts | {"parts": list(names)})
    (folder / "rows.bin").unlink(missing_ok=True)
    for found in (folder / _PARTS).iterdir():
        if found.name not in names:
            shutil.rmtree(found, ignore_errors=True)


def load_meta(folder: Path) -> EncodedMeta | None:
    """What is known of the records in `folder`; None if they are absent, cut short or of old."""
    try:
        facts = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        meta = EncodedMeta(**facts | {"parts": tuple(facts.get("parts", ()))})
        files = [one / "rows.bin" for one in _folders_of(folder, meta)]
        size = sum(file.stat().st_size for file in files)
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    whole = size == meta.num_rows * meta.record_words * _WORD_BYTES
    return meta if whole and meta.version == _FORMAT_VERSION else None


def _folders_of(folder: Path, meta: EncodedMeta) -> list[Path]:
    """The folders whose `rows.bin` hold the records, in order."""
    return [part_folder(folder, name) for name in meta.parts] or [folder]


def _require_meta(folder: Path) -> EncodedMeta:
    meta = load_meta(folder)
    if meta is None:
        raise DataError(
            "the encoded rows are missing or damaged",
            place=str(folder),
            remedy="Delete the folder and run again",
        )
    return meta


def _meta_of_all(metas: Sequence[EncodedMeta]) -> EncodedMeta:
    first = metas[0]
    if any(_layout(one) != _layout(first) for one in metas):
        raise ValueError("records of different layouts cannot be read as one")
    sums = [one.weight_sum for one in metas if one.weight_sum is not None]
    return replace(
        first,
        num_rows=sum(one.num_rows for one in metas),
        num_positive=sum(one.num_positive for one in metas),
        parts=(),
        weight_sum=sum(sums) if sums else None,
    )


def _layout(meta: EncodedMeta) -> tuple[int, int, bool]:
    return meta.num_fields, meta.num_numbers, meta.has_weights


@dataclass(frozen=True)
class _File:
    """The records of one folder.

    Attributes:
        path: Theirs.
        descriptor: Descriptor of the open file.
        first_row: What the first of them counts as, over all folders.
        num_rows: Records.
    """

    path: Path
    descriptor: int
    first_row: int
    num_rows: int


class EncodedReader:
    """Reads records by range. Safe for several threads: `pread` has no position of its own.

    Args:
        others: Folders whose records, encoded by the same transforms, follow those.

    Attributes:
        meta: Metadata of the records of all folders; the fingerprint is the first's.
    """

    def __init__(self, folder: Path, *others: Path) -> None:
        wholes = [(one, _require_meta(one)) for one in (folder, *others)]
        self.meta = _meta_of_all([meta for _, meta in wholes])
        self._files: list[_File] = []
        first_row = 0
        try:
            for one in [part for whole in wholes for part in _folders_of(*whole)]:
                path = one / "rows.bin"
                descriptor = os.open(path, os.O_RDONLY)
                num_rows = _require_meta(one).num_rows
                self._files.append(_File(path, descriptor, first_row, num_rows))
                first_row += num_rows
        except BaseException:
            self.close()
            raise
        self._first_rows = [file.first_row for file in self._files]

    def close(self) -> None:
        """Closes the files."""
        while self._files:
            os.close(self._files.pop().descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_records(self, ranges: NDArray[np.int64]) -> NDArray[np.int32]:
        words = self.meta.record_words
        records = np.empty((int(ranges[:, 1].sum()), words), dtype=np.int32)
        target = memoryview(records.data).cast("B")
        record_bytes = words * _WORD_BYTES
        position = 0
        for file, first_row, num_rows in self._places(ranges):
            wanted = num_rows * record_bytes
            offset = first_row * record_bytes
            while wanted:
                count = os.preadv(file.descriptor, [target[position : position + wanted]], offset)
                if count == 0:
                    raise DataError(
                        "was cut short while it was read",
                        place=str(file.path),
                        remedy="Let nothing else write into the run folder, and run again",
                    )
                position, offset, wanted = position + count, offset + count, wanted - count
        return records

    def _places(self, ranges: NDArray[np.int64]) -> Iterator[tuple[_File, int, int]]:
        """What each range takes of each file: the first row there, and how many."""
        for first_row, num_rows in ranges.tolist():
            last_row = first_row + num_rows
            for file in self._files[bisect_right(self._first_rows, first_row) - 1 :]:
                if file.first_row >= last_row:
                    break
                first = max(first_row, file.first_row)
                last = min(last_row, file.first_row + file.num_rows)
                if first < last:
                    yield file, first - file.first_row, last - first

    def _as_rows(self, records: NDArray[np.int32]) -> EncodedRows:
        parts = self.meta.parts_of(records)
        return EncodedRows(
            ids_BF=np.ascontiguousarray(parts.ids_BF),
            numbers_BN=np.ascontiguousarray(parts.numbers_BN),
            labels_B=np.ascontiguousarray(parts.labels_B),
            weights_B=None if parts.weights_B is None else self._relative(parts.weights_B),
        )

    def _relative(self, weights_B: NDArray[np.float32]) -> NDArray[np.float32]:
        mean = (self.meta.weight_sum or 0.0) / self.meta.num_rows
        if mean == 0.0:
            return np.zeros(len(weights_B), np.float32)
        return (weights_B.astype(np.float64) / mean).astype(np.float32)

    def read_range(self, first_row: int, num_rows: int) -> EncodedRows:
        """Neighbouring rows, in the order of the file."""
        return self._as_rows(self._read_records(np.array([[first_row, num_rows]], dtype=np.int64)))

    def read_task(self, task: TaskRows, batch_size: int) -> Iterator[EncodedRows]:
        """The batches of one task, in its order; the last may be short."""
        records = self._read_records(task.ranges)
        for first in range(0, task.num_rows, batch_size):
            last = min(first + batch_size, task.num_rows)
            if task.permutation is None:
                yield self._as_rows(records[first:last])
            else:
                yield self._as_rows(records[task.permutation[first:last]])

    def read_in_order(self, batch_size: int) -> Iterator[EncodedRows]:
        """All rows in the order of the file; the last batch may be short."""
        for first in range(0, self.meta.num_rows, batch_size):
            yield self.read_range(first, min(batch_size, self.meta.num_rows - first))
