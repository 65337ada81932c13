"""How Spark cuts and reads texts, as syntax trees; pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from ctr_pipeline.dataset.columns import NUMBER
from ctr_pipeline.dataset.formats.text.records import Dialect
from ctr_pipeline.dataset.value_sql import (
    is_listed,
    is_word,
    present_number,
    without_minus_zero,
)
from ctr_pipeline.dataset.value_texts import FALSE, TRUE

ELEMENT = "element"
"""What the functions of `each` call an element of an array."""
_BLANKS = (
    "\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007"
    "\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)
"""What may stand around a number: the white space of Unicode, as Arrow trims it."""


def is_number(text: exp.Expr, missing_values: Sequence[str]) -> exp.Expr:
    """Whether a text, NULL where it is missing, is a number as the reader of rows knows it."""
    bare = trimmed(text)
    is_written = exp.RegexpLike(this=bare, expression=exp.Literal.string(NUMBER))
    is_missing = exp.Is(this=text.copy(), expression=exp.null())
    return exp.or_(is_missing, is_listed(bare.copy(), missing_values), is_written)


def number_of_text(text: exp.Expr, missing_values: Sequence[str]) -> exp.Expr:
    """The number that a text is, NULL if it is missing; texts that are no numbers do not come."""
    bare = trimmed(text)
    number = without_minus_zero(exp.cast(bare, "double"))
    case = exp.Case().when(is_listed(text.copy(), missing_values), exp.null())
    case = case.when(is_listed(bare.copy(), missing_values), exp.null())
    for word, value in ((TRUE, "1.0"), (FALSE, "0.0")):
        case = case.when(is_word(bare, word), exp.cast(exp.Literal.string(value), "double"))
    return present_number(case.else_(number), missing_values)


def trimmed(text: exp.Expr) -> exp.Expr:
    """A text without the white space around it."""
    blanks = exp.Literal.string(_BLANKS)
    return exp.Trim(this=text.copy(), expression=blanks, position="BOTH")


@dataclass(frozen=True)
class FieldPatterns:
    """Regular expressions, as Java and Python have them, of fields that may be quoted.

    A quote opens at a field's start only, a doubled one is one quote, and after the one that closes
    the field goes on as an unquoted one. No step goes back over what it has taken, so that a long
    line costs no more than its length.

    Attributes:
        field: A delimiter and, as group 1, the field behind it.
        quoted: At the start of a field, its quoted part, what is within the quotes as group 1.
    """

    field: str
    quoted: str


def field_patterns(dialect: Dialect) -> FieldPatterns:
    """The patterns of a dialect with a quote."""
    quote, delimiter = re.escape(dialect.quote or ""), re.escape(dialect.delimiter)
    inner = f"[^{quote}]*+(?:{quote}{quote}[^{quote}]*+)*+"
    return FieldPatterns(
        f"{delimiter}((?:{quote}{inner}{quote})?+[^{delimiter}]*+)", f"^{quote}({inner}){quote}"
    )


def build_fields(line: exp.Expr, dialect: Dialect) -> exp.Expr:
    """The fields of a line as an array of texts; NULL if a quote is opened and not closed."""
    plain = exp.Split(this=line.copy(), expression=exp.Literal.string(dialect.delimiter))
    if dialect.quote is None:
        return plain
    patterns = field_patterns(dialect)
    quote = exp.Literal.string(dialect.quote)
    # With a delimiter in front every field has one, and no match is empty.
    whole = call("CONCAT", exp.Literal.string(dialect.delimiter), line.copy())
    found = call(
        "REGEXP_EXTRACT_ALL", whole, exp.Literal.string(patterns.field), exp.Literal.number(1)
    )
    field, quoted = exp.column(ELEMENT), exp.Literal.string(patterns.quoted)
    opens = call("STARTSWITH", field, quote)
    inner = call("REGEXP_EXTRACT", field, quoted, exp.Literal.number(1))
    doubled = exp.Literal.string(dialect.quote * 2)
    within = call("REPLACE", inner, doubled, quote)
    behind = call("REGEXP_REPLACE", field, quoted, exp.Literal.string(""))
    unquoted = exp.Case().when(opens.copy(), call("CONCAT", within, behind)).else_(field.copy())
    is_closed = call("REGEXP_LIKE", field, quoted)
    is_open = exp.And(this=opens.copy(), expression=exp.Not(this=is_closed))
    fields = call("TRANSFORM", found.copy(), each(unquoted))
    has_open = call("EXISTS", found.copy(), each(is_open))
    cut = exp.Case().when(has_open, exp.null()).else_(fields)
    has_quote = exp.GT(
        this=call("INSTR", line.copy(), quote.copy()), expression=exp.Literal.number(0)
    )
    return exp.Case().when(has_quote, cut).else_(plain)


def each(expression: exp.Expr) -> exp.Lambda:
    """A function of the elements of an array."""
    return exp.Lambda(this=expression, expressions=[exp.to_identifier(ELEMENT)])


def call(name: str, *arguments: exp.Expr) -> exp.Anonymous:
    """A function of Spark by its name: sqlglot's own would change what dialects share."""
    return exp.Anonymous(this=name, expressions=[one.copy() for one in arguments])
