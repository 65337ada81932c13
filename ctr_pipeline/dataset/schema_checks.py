"""Do the files of one source hold the same columns with the same kind of values?"""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from ctr_pipeline.dataset.arrow_columns import column_type_of
from ctr_pipeline.dataset.inference import is_numeric
from ctr_pipeline.dataset.limits import check_num_columns
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
    names: Sequence[str], file: object, others: Sequence[str], other: object
) -> None:
    """Raises DataError unless two files have the same columns, in whatever order."""
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
        remedy="Give files with the same columns",
    )


def check_same_types(schema: pa.Schema, file: object, expected: pa.Schema, first: object) -> None:
    """Raises DataError unless two files have the same columns, each of the same use."""
    check_same_names(schema.names, file, expected.names, first)
    for name in expected.names:
        own, other = schema.field(name).type, expected.field(name).type
        use = column_type_of(own)
        if use is not column_type_of(other) or (use is None and own != other):
            raise DataError(
                f"column '{name}' has the type {own}, but {other} in '{first}'",
                place=str(file),
                remedy="Give files with the same types",
            )


def check_same_kinds(table: pa.Table, file: object, numbers: Sequence[str], first: object) -> None:
    """Raises DataError if a number column of the first file holds mostly other texts in `file`."""
    for name in numbers:
        column = table.column(name)
        num_present = len(column) - column.null_count
        num_numeric = pc.sum(is_numeric(column)).as_py() or 0
        if num_numeric * 2 < num_present:
            raise DataError(
                f"column '{name}' holds texts that are no numbers, but numbers in '{first}'",
                place=str(file),
                remedy="Give files with the same columns in the same order",
            )
