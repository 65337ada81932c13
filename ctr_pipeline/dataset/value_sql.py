"""Values of a column as the reader of rows makes them, and their hashes, as SQL.

See `value_texts` and `splits`.
"""

from collections.abc import Sequence

import pyarrow as pa
from sqlglot import exp

from ctr_pipeline.dataset.columns import missing_numbers
from ctr_pipeline.dataset.splits import HASH_DIGITS, NUM_HASHES
from ctr_pipeline.dataset.value_texts import (
    BLANKS,
    FALSE,
    POINT_ZEROS,
    TRUE,
    WHOLE_FLOAT,
    ZERO_FLOAT,
)
from ctr_pipeline.specs.columns import ColumnType


def typed_value(
    name: str, kind: pa.DataType, column_type: ColumnType, missing_values: Sequence[str]
) -> exp.Expr | None:
    """A column as the reader of rows makes it; None if SQL has no way to say the same.

    Args:
        name: The column.
        kind: Its type in the table.
        column_type: The type that it is read as.
        missing_values: Texts that mean missing, the empty one among them.
    """
    column: exp.Expr = exp.column(name)
    if pa.types.is_boolean(kind):
        yes, no = ("1.0", "0.0") if column_type is ColumnType.NUMBER else ("1", "0")
        target = "double" if column_type is ColumnType.NUMBER else "text"
        case = exp.Case().when(column, exp.Literal.string(yes))
        value = exp.cast(case.when(exp.Not(this=column), exp.Literal.string(no)), target)
        if column_type is ColumnType.NUMBER:
            return present_number(value, missing_values)
        return _unless_listed(value, missing_values)
    if column_type is ColumnType.NUMBER:
        is_number = (
            pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        )
        # A float32 is the decimal number that it is printed as.
        written = exp.cast(column, "text") if pa.types.is_float32(kind) else column
        number: exp.Expr = exp.cast(written, "double")
        if pa.types.is_floating(kind):
            number = without_minus_zero(number)
        return present_number(number, missing_values) if is_number else None
    if column_type is not ColumnType.TEXT:
        return None
    if pa.types.is_integer(kind):
        # Its text is the one of its value.
        return _unless_listed(exp.cast(column, "text"), missing_values)
    if not pa.types.is_string(kind):
        return None
    return present_text(column, missing_values)


def present_text(text: exp.Expr, missing_values: Sequence[str]) -> exp.Expr:
    """The one text of a value that is a text, NULL if it means missing."""
    return _unless_listed(one_text(text), missing_values)


def present_number(number: exp.Expr, missing_values: Sequence[str]) -> exp.Expr:
    """A number, NULL if it means missing."""
    listed = [number_of(one) for one in missing_numbers(tuple(missing_values))]
    if not listed:
        return number
    is_missing = exp.In(this=number, expressions=listed)
    return exp.Case().when(is_missing, exp.null()).else_(number.copy())


def _unless_listed(text: exp.Expr, texts: Sequence[str]) -> exp.Expr:
    return exp.Case().when(is_listed(text, texts), exp.null()).else_(text.copy())


def one_text(text: exp.Expr) -> exp.Expr:
    """As `value_texts.one_text`."""
    text = exp.Trim(this=text, expression=exp.Literal.string(BLANKS), position="BOTH")

    def matches(pattern: str) -> exp.Expr:
        return exp.RegexpLike(this=text.copy(), expression=exp.Literal.string(pattern))

    zeros, nothing = exp.Literal.string(POINT_ZEROS), exp.Literal.string("")
    whole = exp.RegexpReplace(this=text.copy(), expression=zeros, replacement=nothing)
    case = exp.Case().when(matches(WHOLE_FLOAT), whole)
    case = case.when(matches(ZERO_FLOAT), exp.Literal.string("0"))
    case = case.when(is_word(text, TRUE), exp.Literal.string("1"))
    return case.when(is_word(text, FALSE), exp.Literal.string("0")).else_(text.copy())


def is_word(text: exp.Expr, word: str) -> exp.Expr:
    """Whether a text is a word, in whatever case."""
    return exp.EQ(this=exp.Lower(this=text.copy()), expression=exp.Literal.string(word))


def is_listed(text: exp.Expr, texts: Sequence[str]) -> exp.Expr:
    """Whether a text is one of several."""
    return exp.In(this=text, expressions=[exp.Literal.string(one) for one in texts])


def without_minus_zero(number: exp.Expr) -> exp.Expr:
    """The same number, 0 for -0, which some engines count apart."""
    return exp.Add(this=number, expression=exp.cast(exp.Literal.string("0.0"), "double"))


def number_of(number: float) -> exp.Expr:
    """A float64, by its shortest exact text."""
    return exp.cast(exp.Literal.string(repr(number)), "double")


def digest_of(text: exp.Expr) -> exp.Expr:
    """The MD5 of a text, of the empty one where it is missing, as small hexadecimal digits."""
    present = exp.Coalesce(this=text, expressions=[exp.Literal.string("")])
    return exp.Lower(this=exp.func("MD5", present))


def is_in_range(digest: exp.Expr, hashes: tuple[int, int]) -> list[exp.Expr]:
    """Conditions for a digest to be one of the hashes from the first to before the last.

    Args:
        digest: As `digest_of` gives it; its digits sort as the number that they mean.
        hashes: As of `splits.plan_hash_ranges`.
    """
    first, after = hashes
    conditions: list[exp.Expr] = []
    if first > 0:
        conditions.append(exp.GTE(this=digest.copy(), expression=_digits(first)))
    if after < NUM_HASHES:
        conditions.append(is_below(digest, after))
    return conditions


def is_below(digest: exp.Expr, after: int) -> exp.Expr:
    """Whether a digest is a hash before `after`."""
    return exp.LT(this=digest.copy(), expression=_digits(after))


def _digits(number: int) -> exp.Expr:
    return exp.Literal.string(f"{number:0{HASH_DIGITS}x}")
