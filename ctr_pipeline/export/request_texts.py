"""Texts of a request, read in the graph as the file readers read them.

A text that is no number is the one of its value, as `dataset.value_texts` says.

White space around a text is dropped. What is left is a number if it is decimal with an optional
sign and exponent (`-4`, `.5`, `1e3`), or `inf`, `infinity`, `true` or `false` in any case; any
other text is missing, be it empty or bad: one bad value does not fail the other rows of a request.
(In training it is a bad row, which `data.bad_rows` is about.)
"""

from typing import Any

import tensorflow as tf

from ctr_pipeline.dataset.value_texts import (
    BLANKS,
    FALSE,
    POINT_ZEROS,
    TRUE,
    WHOLE_FLOAT,
    ZERO_FLOAT,
)

_SPACE = r"[\s\p{Z}\x0b\x1c-\x1f\x{85}]+"
_NUMBER = r"(?i)[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|[+-]?(?:inf|infinity)"


_REWRITABLE = rf"-?[0-9]+[.]0+|(?i:{TRUE}|{FALSE})|(?s:[{BLANKS}].*|.*[{BLANKS}])"


def one_texts(texts: Any) -> Any:
    """The one text of each value, of the same shape."""
    # Few texts have another one: a look at all and then at those takes a third of the time.
    at = tf.where(tf.strings.regex_full_match(texts, _REWRITABLE))
    return tf.tensor_scatter_nd_update(texts, at, _rewritten(tf.gather_nd(texts, at)))


def _rewritten(texts: Any) -> Any:
    texts = tf.strings.strip(texts)
    is_whole = tf.strings.regex_full_match(texts, WHOLE_FLOAT)
    texts = tf.where(is_whole, tf.strings.regex_replace(texts, POINT_ZEROS, ""), texts)
    return _truth_values(tf.strings.regex_replace(texts, ZERO_FLOAT, "0"))


def _truth_values(texts: Any) -> Any:
    for word, value in ((TRUE, "1"), (FALSE, "0")):
        texts = tf.strings.regex_replace(texts, rf"^(?i:{word})$", value)
    return texts


def parse_numbers(texts: Any) -> Any:
    """float64 of the same shape; NaN where the text is missing or no number.

    A number too large for float64 is infinite and one too small is zero.
    """
    stripped = _truth_values(tf.strings.regex_replace(texts, f"^{_SPACE}|{_SPACE}$", ""))
    is_number = tf.strings.regex_full_match(stripped, _NUMBER)
    return tf.strings.to_number(tf.where(is_number, stripped, "nan"), tf.float64)
