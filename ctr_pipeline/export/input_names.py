"""Names of the servable model's inputs.

TensorFlow makes an input's name a parameter of a function and a name in the graph: ASCII letters,
digits and underscores. A column of such a name keeps it; another gets the nearest such name, or is
called by its place where no letter of its name is left; the model card says which.
"""

import keyword
import re
from collections.abc import Iterable

_ALLOWED = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_OF_TENSORFLOW = frozenset({"self"})
"""Parameters of the methods of TensorFlow that inputs are given to by name."""


def choose_input_names(columns: Iterable[str]) -> dict[str, str]:
    """Maps every column to its input's name; names are unique, also without regard to case.

    Columns whose names are allowed keep them, whatever the order.
    """
    columns = list(columns)
    chosen: dict[str, str] = {}
    taken: set[str] = set()
    for column in columns:
        if _is_allowed(column) and column.lower() not in taken:
            chosen[column] = column
            taken.add(column.lower())
    for place, column in enumerate(columns, 1):
        if column in chosen:
            continue
        plain = re.sub(r"[^A-Za-z0-9_]", "_", column)
        if not re.search(r"[A-Za-z]", plain):
            # Of Chinese or Cyrillic letters there would be a row of underscores.
            plain = re.sub(r"_+", "_", plain).strip("_") or str(place)
        if not _is_allowed(plain):
            plain = f"column_{plain}"
        name, number = plain, 2
        while name.lower() in taken:
            name, number = f"{plain}_{number}", number + 1
        chosen[column] = name
        taken.add(name.lower())
    return {column: chosen[column] for column in columns}


def _is_allowed(name: str) -> bool:
    is_word = keyword.iskeyword(name) or name in _OF_TENSORFLOW
    return bool(_ALLOWED.fullmatch(name)) and not is_word
