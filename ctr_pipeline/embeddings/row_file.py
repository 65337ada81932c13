"""Saving and loading the rows of a store, bit for bit."""

from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any

import numpy as np

from ctr_pipeline.embeddings.array_file import ArrayFileReader, ArrayFileWriter
from ctr_pipeline.embeddings.arrays import Float32Array, Int64Array
from ctr_pipeline.embeddings.layout import RowLayout, describe_segments
from ctr_pipeline.embeddings.rows import RowStorage
from ctr_pipeline.embeddings.update_kernels import HEADER_WORDS
from ctr_pipeline.errors import CheckpointError
from ctr_pipeline.specs.table import TableSpec

_MAGIC = b"CTRROWS1"
BLOCK_ROWS = 16_384


def describe_rows(layout: RowLayout, tables: Sequence[TableSpec], seed: int) -> dict[str, Any]:
    """What a file and a store must agree on, as JSON values."""
    return {
        "record_floats": layout.record_floats,
        "seed": seed,
        "segments": describe_segments(layout.groups[0]),
        "tables": [_describe_table(table, layout) for table in tables],
    }


def _describe_table(table: TableSpec, layout: RowLayout) -> dict[str, Any]:
    described: dict[str, Any] = {"name": table.name, "num_ids": table.num_ids}
    own = describe_segments(table.segments or layout.groups[0])
    if own != describe_segments(layout.groups[0]):
        described["segments"] = own
    return described


def save_rows(file: IO[bytes], rows: RowStorage, expected: dict[str, Any]) -> None:
    """Writes keys and whole records in order of creation."""
    num_rows = rows.num_rows
    save_blocks(file, num_rows, [rows.keys_N[:num_rows]], [rows.records_NR[:num_rows]], expected)


def save_blocks(
    file: IO[bytes],
    num_rows: int,
    keys: Iterable[Int64Array],
    records: Iterable[Float32Array],
    expected: dict[str, Any],
) -> None:
    """As `save_rows`, of rows that come in blocks.

    Args:
        keys: Keys of all rows.
        records: Records of all rows, in the order of their keys; asked for after all keys.
    """
    writer = ArrayFileWriter(file, _MAGIC, {**expected, "num_rows": num_rows})
    for blocks in (keys, records):
        for block in blocks:
            writer.write_array(block)
    writer.finish()


def load_rows(file: IO[bytes], rows: RowStorage, expected: dict[str, Any], place: str) -> None:
    """Replaces all rows by those of a file.

    Raises:
        CheckpointError: The file is damaged (the store is empty then), or its rows are of another
            make (the store is as it was).
    """
    reader, num_rows = _open_rows(file, expected, place)
    rows.require_room(num_rows)
    rows.clear()
    reader.read_array(rows.keys_N[:num_rows])
    reader.read_array(rows.records_NR[:num_rows])
    reader.finish()
    try:
        rows.adopt(num_rows)
    except ValueError as error:
        raise reader.damaged(str(error)) from error


def read_values(
    file: IO[bytes], keys_file: IO[bytes], layout: RowLayout, expected: dict[str, Any], place: str
) -> Iterator[tuple[Int64Array, Float32Array]]:
    """Keys and values of the rows of a file, as `read_records`.

    Yields:
        int64 [n] and float32 [n, W], which is overwritten by the next.
    """
    for keys, records in read_records(file, keys_file, layout, expected, place):
        yield keys, records[:, HEADER_WORDS : HEADER_WORDS + layout.width]


def read_records(
    file: IO[bytes], keys_file: IO[bytes], layout: RowLayout, expected: dict[str, Any], place: str
) -> Iterator[tuple[Int64Array, Float32Array]]:
    """Keys and records of the rows of a file, in order of creation and in bounded memory.

    Args:
        keys_file: The file, opened once more: all keys stand before all records, so it is read at
            two places at once.

    Yields:
        int64 [n] and float32 [n, R], which is overwritten by the next.

    Raises:
        CheckpointError: The file is damaged, which may be found at its end; or its rows are of
            another make.
    """
    reader, num_rows = _open_rows(file, expected, place)
    keys_file.seek(reader.skip_array(8 * num_rows))
    records = np.empty((min(BLOCK_ROWS, num_rows), layout.record_floats), np.float32)
    for first in range(0, num_rows, BLOCK_ROWS):
        count = min(BLOCK_ROWS, num_rows - first)
        reader.read_array(records[:count])
        yield np.frombuffer(keys_file.read(8 * count), np.int64), records[:count]
    reader.finish()


def _open_rows(
    file: IO[bytes], expected: dict[str, Any], place: str
) -> tuple[ArrayFileReader, int]:
    """A reader of a file whose rows are of the expected make, and how many they are."""
    reader = ArrayFileReader(file, _MAGIC, place)
    found = reader.description
    num_rows = found.get("num_rows")
    for name, value in expected.items():
        if found.get(name) != value:
            raise CheckpointError(
                f"embedding rows of another make: {first_difference(name, found.get(name), value)}",
                place=place,
                remedy="Restore the configuration of the checkpoint, or start a new run",
            )
    if not isinstance(num_rows, int) or num_rows < 0:
        raise reader.damaged("the number of rows is missing")
    return reader, num_rows


def first_difference(name: str, found: Any, expected: Any) -> str:
    """The first thing in which two values of a description differ."""
    if isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        for i, (one, other) in enumerate(zip(found, expected, strict=True)):
            if one != other:
                return first_difference(f"{name}[{i}]", one, other)
    if isinstance(found, dict) and isinstance(expected, dict):
        for key, value in expected.items():
            if found.get(key) != value:
                return first_difference(f"{name}.{key}", found.get(key), value)
    if isinstance(found, list) and isinstance(expected, list):
        return f"{name}: {len(found)} in the file, {len(expected)} configured"
    return f"{name}: {found!r} in the file, {expected!r} configured"
