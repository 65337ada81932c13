"""Columns that would be numbers but for a few of their texts.

One `NULL` among thousands of numbers makes a text of a column, as a percent sign or a decimal comma
does. What keeps a column from being read as one of numbers is found here, for people to be told.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from ctr_pipeline.dataset.inference import infer_type, is_numeric
from ctr_pipeline.specs.columns import ColumnType

_MISSING_WORDS = frozenset(
    {"null", "(null)", "<null>", "\\n", "nil", "none", "na", "n/a", "#n/a", "<na>", "nat"}
    | {"undefined", "unknown", "missing", "-", "--", "---", "?", "."}
)
"""Words in small letters; `\n` is a backslash and an n, as Hive and PostgreSQL write NULL."""

_SIGN = "[$€£¥₹₽₩₺฿₫₴₦₱]"
_DIGITS = r"\d+([.,]\d+)*"
_COMMAS = r"\d+,\d+|\d{1,3}(,\d{3})+(\.\d+)?|\d{1,3}(\.\d{3})+,\d+"
_STYLES = {
    "with a currency sign": rf"^[+-]?({_SIGN} ?[+-]?{_DIGITS}|{_DIGITS} ?{_SIGN})$",
    "with a percent sign": rf"^[+-]?{_DIGITS} ?%$",
    "with commas between digits": rf"^[+-]?({_COMMAS})$",
}
_OTHERS = "but for other texts"
_CODE = r"^[+-]?0\d+$"
_MOST_OTHERS = 0.1
"""Share of the values, above which numbers among other texts are no column of numbers."""


@dataclass(frozen=True)
class NearNumber:
    """What keeps a column from being read as one of numbers.

    Attributes:
        words: Each such text, if all of them look as if they meant missing; else empty.
        what: Otherwise what is odd about them, without a value of the data.
        share: Share of the values that are no plain numbers.
        example: The first of these.
    """

    words: tuple[str, ...]
    what: str
    share: float
    example: str

    @property
    def reason(self) -> str:
        """Reason of the decision about the column; tells no value of the data."""
        return f"numbers {self._what()} in {self._percent()} of its values"

    def describe(self, column: str, *, is_sensitive: bool = False) -> str:
        """A sentence with the remedy, and with an example unless values are never shown."""
        found = f"'{column}' holds numbers {self._what()} in {self._percent()} of its values"
        if self.words:
            quoted = ", ".join(f"'{word}'" for word in self.words)
            return f"{found}: list {quoted} in data.missing_values, or it is read as text"
        example = "" if is_sensitive else f" ('{self.example[:40]}')"
        remedy = (
            "list what means missing in data.missing_values, and mend the others"
            if self.what == _OTHERS
            else "write plain numbers, such as 1234.5"
        )
        return f"{found}{example}, so it is read as text: {remedy}"

    def _what(self) -> str:
        quoted = [f"'{word}'" for word in self.words]
        return f"but for {' and '.join(quoted)}" if quoted else self.what

    def _percent(self) -> str:
        return f"{self.share:.1%}" if self.share >= 0.001 else "under 0.1%"


def means_missing(text: str) -> bool:
    """Whether a text that is no number looks as if it said that there is none."""
    return text.strip().lower() in _MISSING_WORDS


def find_near_numbers(texts: pa.Table, types: Mapping[str, ColumnType]) -> dict[str, NearNumber]:
    """The columns that are read as text, and would be numbers but for a few of their values.

    Args:
        texts: The first rows of text files, NULL where missing.
        types: How columns are read; only those that are texts are looked at.
    """
    found = {
        name: _near_number(texts.column(name))
        for name, kind in types.items()
        if kind is ColumnType.TEXT
    }
    return {name: near for name, near in found.items() if near is not None}


def _near_number(texts: pa.ChunkedArray) -> NearNumber | None:
    present = pc.utf8_trim_whitespace(texts.drop_null())
    is_number = is_numeric(present)
    others = present.filter(pc.invert(is_number))
    if not len(others):
        return None
    share = len(others) / len(present)
    would_be_number = infer_type(present.filter(is_number)) is ColumnType.NUMBER
    different = pc.unique(others).to_pylist()
    rest = [text for text in different if not means_missing(text)]
    if not rest:
        return NearNumber(tuple(different), "", share, different[0]) if would_be_number else None
    for what, pattern in _STYLES.items():
        is_styled = pc.match_substring_regex(pa.array(rest), pattern)
        if is_styled[0].as_py():
            return NearNumber((), what, share, rest[0]) if pc.all(is_styled).as_py() else None
    has_codes = pc.any(pc.match_substring_regex(pa.array(rest), _CODE)).as_py()
    if not would_be_number or share > _MOST_OTHERS or has_codes:
        return None
    return NearNumber((), _OTHERS, share, rest[0])
