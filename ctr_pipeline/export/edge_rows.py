"""Rows on which two implementations would differ, if they did."""

import sys
from collections.abc import Collection, Mapping

import pyarrow as pa

from ctr_pipeline.dataset.columns import missing_numbers
from ctr_pipeline.features import ListSpec, SequenceSpec, VectorSpec

TEXT_EDGES: tuple[str | None, ...] = (
    None,
    "ctrpipe-unseen-value",
    "žluťoučký kůň 🐎 中文",
    "a\tb\n c",
    "0",
    "1e5",
    "NaN",
    "x" * 5000,
    "a\x00b",
)
"""Missing, unseen, not ASCII, white space, number-like, long, and with a zero byte."""

NUMBER_EDGES: tuple[float | None, ...] = (
    None,
    float("inf"),
    float("-inf"),
    sys.float_info.max,
    -sys.float_info.max,
    1e20,
    -1e20,
    5e-324,
    sys.float_info.min,
    1e-40,
    -1e-8,
    -0.0,
    0.0,
    0.5,
    1.5,
    2.5,
    -1.0,
    float(2**53 + 1),
)
"""Missing, infinite, huge, tiny, subnormal, both zeros, halves, beyond exact integers."""

_MAX_SINGLE_ROWS = 1000


def sequence_edges(sequence: SequenceSpec) -> tuple[str, ...]:
    """Texts that are hard to cut: empty elements, too many of them, weights good and bad."""
    edges = [
        ("", ""),
        ("a", "", "b"),
        ("a", "a"),
        tuple(str(element) for element in range(sequence.max_length + 3)),
    ]
    if sequence.weights:
        mark = sequence.weight_delimiter
        weights = ("0", ".5", "2.", "1e-3", "1e-300", "1e300", "1e999", "-1", "x", "")
        edges += [(f"a{mark}{weight}", "b", f"c{mark}2") for weight in weights]
        edges += [(f"a{mark}0", f"b{mark}0"), (f"a{mark}b{mark}3", f"{mark}1")]
    return tuple(sequence.delimiter.join(elements) for elements in edges)


def vector_edges(vector: VectorSpec) -> tuple[str, ...]:
    """Texts that are hard to cut into numbers: too few and too many of them, huge, tiny and bad."""
    numbers = ("0", "-0", "1.", "-.5", "+2", "1e-3", "1E+30", "-1e300", "1e-40", "1e-310", "7")
    bad = ("1e999", "nan", "inf", "x", "", " 1", "1\n", "--1", "1e", ".", "0x1", "1_0", "１")
    edges = [(number,) * vector.length for number in numbers]
    edges += [("1",) * (vector.length - 1) + (number,) for number in bad]
    edges += [("1",) * (vector.length + 1), ("1",) * (vector.length - 1)]
    edges.append(tuple(numbers[place % len(numbers)] for place in range(vector.length)))
    return tuple(vector.delimiter.join(elements) for elements in edges)


def list_edges(cut: ListSpec) -> tuple[str, ...]:
    """Texts that are hard to cut."""
    return vector_edges(cut) if isinstance(cut, VectorSpec) else sequence_edges(cut)


def edge_rows(
    column_types: Mapping[str, str],
    *,
    ordinary: pa.Table,
    missing_values: Collection[str] = (),
    lists: Mapping[str, ListSpec] | None = None,
) -> pa.Table:
    """Rows that between them give every column every hard value.

    First rows in which all columns are hard at once, each with its next value from row to row;
    then rows in which one column is hard and the others are those of an ordinary row, in which a
    fault in one column cannot be drowned by another's huge value. Of the latter there are at most
    1,000, evenly spread, whatever the number of columns.

    Args:
        column_types: Every raw column and its type, "string" or "double".
        ordinary: At least one row of the columns, as in the data; the first one is taken.
        missing_values: Texts that mean missing; in a table they never occur, nor do the numbers
            that they are, so both are left out.
        lists: Text columns that are lists, and how they are cut.

    Returns:
        A table of string and float64 columns in the order of `column_types`.
    """
    more = {column: list_edges(cut) for column, cut in (lists or {}).items()}
    edges = {
        column: _edges_of(kind, missing_values, more.get(column, ()))
        for column, kind in column_types.items()
    }
    first = {column: ordinary.column(column)[0].as_py() for column in column_types}
    num_together = max(len(values) for values in edges.values())
    columns = {
        # Starting at another value in every column, so that unlike values meet.
        column: [values[(row + place) % len(values)] for row in range(num_together)]
        for place, (column, values) in enumerate(edges.items())
    }
    singles = [(column, value) for column, values in edges.items() for value in values]
    stride = -(-len(singles) // _MAX_SINGLE_ROWS)
    for hard_column, value in singles[::stride]:
        for column, cells in columns.items():
            cells.append(value if column == hard_column else first[column])
    types = {column: _arrow_type(kind) for column, kind in column_types.items()}
    return pa.table({c: pa.array(cells, types[c]) for c, cells in columns.items()})


def _edges_of(
    kind: str, missing_values: Collection[str], more: tuple[str, ...]
) -> tuple[str | None, ...] | tuple[float | None, ...]:
    if kind == "double":
        listed = missing_numbers(tuple(missing_values))
        return tuple(number for number in NUMBER_EDGES if number not in listed)
    return tuple(text for text in (*TEXT_EDGES, *more) if text not in missing_values)


def _arrow_type(kind: str) -> pa.DataType:
    return pa.float64() if kind == "double" else pa.string()
