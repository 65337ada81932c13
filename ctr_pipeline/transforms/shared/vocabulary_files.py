"""Vocabularies on disk and in memory, as Arrow arrays of values in the order of their ids."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ctr_pipeline.errors import PreprocessingError


def load_vocabulary(path: Path) -> pa.Array:
    """The values of a vocabulary file, large_binary [V].

    A `.parquet` file has them in its column `value`; any other file has one value a line, UTF-8.

    Raises:
        PreprocessingError: The file is missing or unreadable.
    """
    remedy = "Delete it and run 'ctrpipe train --resume' with the config of the run"
    try:
        if path.suffix == ".parquet":
            with pq.ParquetFile(path) as file:
                if "value" not in file.schema_arrow.names:
                    raise PreprocessingError(
                        "the vocabulary has no column 'value'", place=str(path), remedy=remedy
                    )
                column = file.read(columns=["value"]).column("value")
            values = column.cast(pa.large_binary()).combine_chunks()
        else:
            values = pa.array(path.read_bytes().splitlines(), pa.large_binary())
    except (OSError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise PreprocessingError(
            f"the vocabulary cannot be read ({error})", place=str(path), remedy=remedy
        ) from error
    if isinstance(values, pa.ChunkedArray):
        values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    return values


def vocabulary_of(values: Sequence[str | bytes | int]) -> pa.Array:
    """The same from a sequence; integers are their decimal text.

    Raises:
        ValueError: A value is repeated.
    """
    encoded = [_encode(value) for value in values]
    if len(set(encoded)) != len(encoded):
        raise ValueError("the vocabulary repeats a value")
    return pa.array(encoded, pa.large_binary())


def vocabulary_as_text(values: pa.Array) -> list[str]:
    """The values as text that JSON can hold and `vocabulary_of` reads back, byte for byte."""
    return [value.decode("utf-8", "surrogateescape") for value in values.to_pylist()]


def _encode(value: str | bytes | int) -> bytes:
    if isinstance(value, bytes):
        return value
    return str(value).encode("utf-8", "surrogateescape")
