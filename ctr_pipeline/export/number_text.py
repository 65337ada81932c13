"""Texts that are numbers, parsed in the graph.

A text is a number if, without blanks and tabs around it, it is a decimal number with an optional
sign and exponent (`-4`, `.5`, `1e3`), or `inf`, `infinity` or `nan` in any case. `nan` and the
empty text are missing. Any other text is missing as well: one bad value does not fail the other
rows of a request. (In training it is a bad row, which `data.bad_rows` is about.)
"""

from typing import Any

import tensorflow as tf

_NUMBER = r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?(?i:inf|infinity|nan)"


def parse_numbers(texts: Any) -> Any:
    """float64 of the same shape; NaN where the text is missing or no number.

    A number too large for float64 is infinite and one too small is zero, as in the file readers.
    """
    stripped = tf.strings.regex_replace(texts, r"^[ \t]+|[ \t]+$", "")
    is_number = tf.strings.regex_full_match(stripped, _NUMBER)
    return tf.strings.to_number(tf.where(is_number, stripped, "nan"), tf.float64)
