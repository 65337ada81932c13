"""Raw columns of an Arrow table as the servable model takes them."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


def columns_as_arrays(
    rows: pa.Table, column_types: Mapping[str, str]
) -> dict[str, NDArray[np.generic]]:
    """Every column as "serving_default" takes it.

    Returns:
        By column: float64 with NaN for NULL, or an object array of UTF-8 bytes with b"" for NULL.

    Raises:
        ValueError: A column is missing or has another type.
    """
    columns: dict[str, NDArray[np.generic]] = {}
    for column, kind in column_types.items():
        if column not in rows.column_names:
            raise ValueError(f"the rows have no column '{column}'")
        values = rows.column(column).combine_chunks()
        try:
            if kind == "double":
                columns[column] = np.asarray(
                    values.cast(pa.float64()).fill_null(np.nan).to_numpy(zero_copy_only=False)
                )
            else:
                columns[column] = _as_bytes(values.cast(pa.large_string()))
        except pa.ArrowInvalid as error:
            raise ValueError(f"column '{column}' is no {kind}: {error}") from error
    return columns


def columns_as_texts(
    rows: pa.Table, column_types: Mapping[str, str]
) -> dict[str, NDArray[np.generic]]:
    """Every column as "serving_strings" takes it: object arrays of bytes, b"" for missing.

    Numbers are written with the fewest digits that read back as the same float64.
    """
    typed = columns_as_arrays(rows, column_types)
    texts: dict[str, NDArray[np.generic]] = {}
    for column, values in typed.items():
        if column_types[column] == "double":
            written = ["" if np.isnan(value) else repr(float(value)) for value in values]
            texts[column] = _object_array([text.encode() for text in written])
        else:
            texts[column] = values
    return texts


def _as_bytes(values: pa.Array) -> NDArray[np.generic]:
    binary = pc.fill_null(values, "").cast(pa.large_binary())
    return _object_array(binary.to_pylist())


def _object_array(values: list[bytes]) -> NDArray[np.generic]:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def render_value(value: object) -> str:
    """A raw value for a message, in at most 40 characters."""
    text = "missing" if value is None else repr(value)
    return text if len(text) <= 40 else f"{text[:36]}...'"
