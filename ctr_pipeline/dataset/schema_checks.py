"""Do the files of one source hold the same columns with the same kind of values?"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ctr_pipeline.dataset.arrow_columns import column_type_of, is_time
from ctr_pipeline.dataset.inference import is_numeric
from ctr_pipeline.dataset.limits import check_num_columns
from ctr_pipeline.dataset.lists import is_list
from ctr_pipeline.dataset.value_texts import one_text
from ctr_pipeline.errors import DataError


def check_names(names: Sequence[str], file: object) -> None:
    """Raises DataError unless every column has a name of its own, and they are not too many."""
    check_num_columns(len(names), file)
    seen = set[str]()
    for index, name in enumerate(names):
        if not name:
            raise DataError(
                f"column {index + 1} has no name",
                place=str(file),
                remedy="Name every column in the header, or list the columns in data.columns if "
                "the file has no header",
            )
        if name in seen:
            raise DataError(
                f"two columns are named '{name}'",
                place=str(file),
                remedy="Rename one of them, or list the columns in data.columns if the file has "
                "no header",
            )
        seen.add(name)


def check_same_names(
    names: Sequence[str],
    file: object,
    others: Sequence[str],
    other: object,
    *,
    label: str | None = None,
) -> None:
    """Raises DataError unless two files have the same columns, in whatever order.

    Args:
        names: The columns.
        file: Where they are.
        others: The schemas that are expected.
        other: Where these are.
        label: The column that rows to train and test on need.
    """
    own, expected = set(names), set(others)
    lacking = [name for name in others if name not in own]
    added = [name for name in names if name not in expected]
    if not lacking and not added:
        return
    differences = [
        f"{what} {', '.join(repr(name) for name in found[:5])}{', …' if len(found) > 5 else ''}"
        for what, found in (("lacks", lacking), ("has in addition", added))
        if found
    ]
    raise DataError(
        f"has other columns than '{other}': it {' and '.join(differences)}",
        place=str(file),
        remedy="Rows without labels tell no metric: leave the file out of the config, and score "
        "it once the model is trained, by 'ctrpipe predict'"
        if lacking == [label] and not added
        else "Give files with the same columns",
    )


def check_same_types(schema: pa.Schema, file: object, expected: pa.Schema, first: object) -> None:
    """Raises DataError unless two files have the same columns, each of the same use."""
    check_same_names(schema.names, file, expected.names, first)
    unify_schemas({first: expected, file: schema})


def unify_schemas(schemas: Mapping[Any, pa.Schema]) -> pa.Schema:
    """The columns of all files, each with the type of the first one that has values of it.

    A column may be of several types of one use, such as int32 and float64, or a dictionary and its
    values. Its type is null where no file has a value.

    Args:
        schemas: Schemas by file.

    Raises:
        DataError: Types of a column have no use in common; names both, and how many files have
            each.
    """
    first = next(iter(schemas.values()))
    # Most files are like the first one, and there may be thousands with thousands of columns.
    others = {file: schema for file, schema in schemas.items() if not schema.equals(first)}
    kinds: dict[str, pa.DataType] = {}
    for schema in (first, *others.values()):
        for field in schema:
            if pa.types.is_null(kinds.setdefault(field.name, field.type)):
                kinds[field.name] = field.type
    for file, schema in others.items():
        for field in schema:
            if not _are_of_one_use(field.type, kinds[field.name]):
                raise _of_two_types(field.name, kinds[field.name], field.type, file, schemas)
    return pa.schema(list(kinds.items()))


def _are_of_one_use(one: pa.DataType, other: pa.DataType) -> bool:
    if one == other or pa.types.is_null(one) or pa.types.is_null(other):
        return True
    if is_list(one) and is_list(other):
        return _are_of_one_use(one.value_type, other.value_type)
    if is_time(one) and is_time(other):
        return True
    use = column_type_of(one)
    return use is not None and use is column_type_of(other)


def _of_two_types(
    name: str,
    expected: pa.DataType,
    found: pa.DataType,
    file: object,
    schemas: Mapping[Any, pa.Schema],
) -> DataError:
    having = [schema for schema in schemas.values() if name in schema.names]
    of_each = Counter(str(schema.field(name).type) for schema in having)
    first = next(
        one
        for one, schema in schemas.items()
        if name in schema.names and schema.field(name).type == expected
    )
    as_text = (
        f"frame['{name}'].map(lambda row: [str(value) for value in row])"
        if is_list(expected)
        else f"frame.astype({{'{name}': 'string'}})"
    )
    counted = f" ({of_each[str(found)]} of {len(schemas)} files)" if len(schemas) > 2 else ""
    return DataError(
        f"column '{name}' has the type {found}{counted}, but {expected} in '{first}'",
        place=str(file),
        remedy=f"Write the column with one type, as with pandas: {as_text}",
    )


def check_same_kinds(table: pa.Table, file: object, numbers: Sequence[str], first: object) -> None:
    """Raises DataError if a number column of the first file holds mostly other texts in `file`."""
    for name in numbers:
        column = one_text(table.column(name).combine_chunks())
        num_present = len(column) - column.null_count
        num_numeric = pc.sum(is_numeric(column)).as_py() or 0
        if num_numeric * 2 < num_present:
            raise DataError(
                f"column '{name}' holds texts that are no numbers, but numbers in '{first}'",
                place=str(file),
                remedy="Give files with the same columns in the same order",
            )
