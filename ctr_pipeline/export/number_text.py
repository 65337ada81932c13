"""Texts that are numbers, parsed in the graph as the file readers parse them.

White space around a text is dropped. What is left is a number if it is decimal with an optional
sign and exponent (`-4`, `.5`, `1e3`), or `inf` or `infinity` in any case; it is missing if it is
empty, `nan`, or one of the texts that mean "missing". Any other text is missing as well: one bad
value does not fail the other rows of a request. (In training it is a bad row, which
`data.bad_rows` is about.)
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

_SPACE = r"[\s\p{Z}\x0b\x1c-\x1f\x{85}]+"
_NUMBER = r"(?i)[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|[+-]?(?:inf|infinity)"


def parse_numbers(texts: Any, missing_values: Sequence[str] = ()) -> Any:
    """float64 of the same shape; NaN where the text is missing or no number.

    A number too large for float64 is infinite and one too small is zero.
    """
    stripped = tf.strings.regex_replace(texts, f"^{_SPACE}|{_SPACE}$", "")
    is_number = tf.strings.regex_full_match(stripped, _NUMBER)
    for text in missing_values:
        is_number &= stripped != text
    return tf.strings.to_number(tf.where(is_number, stripped, "nan"), tf.float64)
