"""Names of columns in a config: one, all, or a range such as `I1..I13` or `f01_usd..f12_usd`."""

import re

ALL_COLUMNS = "*"
"""As the columns of an entry: every column that the config does not keep out."""

MAX_RANGE = 100_000
"""More columns than any file has; a larger range is a slip of the hand."""

_DIGITS = re.compile(r"(\d+)")


class RangeError(ValueError):
    """A range that names nothing."""


def names_itself(name: str) -> bool:
    """Whether a config that names a column so means it alone, and no range or all columns."""
    try:
        return name != ALL_COLUMNS and expand_range(name) == (name,)
    except RangeError:
        return False


def expand_range(text: str) -> tuple[str, ...]:
    """The names a range stands for; a text that is no range stands for itself.

    Both ends are alike but for one whole number, which counts up. Ends of equal width with a
    leading zero keep that width. A text with `..` but no digit on either side is a plain name.

    Raises:
        RangeError: The ends differ in more than one number, run backwards, or are too far apart.
    """
    first, separator, last = text.partition("..")
    if not separator or not (_DIGITS.search(first) or _DIGITS.search(last)):
        return (text,)
    # Odd places of the split hold the digits, even ones the text between them.
    first_parts, last_parts = _DIGITS.split(first), _DIGITS.split(last)
    if len(first_parts) != len(last_parts) or first_parts[::2] != last_parts[::2]:
        raise RangeError(
            f"'{text}' is not a range: both ends must be alike but for one number, as in I1..I13"
        )
    places = [
        place for place in range(1, len(first_parts), 2) if first_parts[place] != last_parts[place]
    ]
    if len(places) > 1:
        raise RangeError(f"'{text}' is not a range: its ends differ in more than one number")
    place = places[0] if places else len(first_parts) - 2
    low, high = first_parts[place], last_parts[place]
    is_padded = any(digits[0] == "0" and len(digits) > 1 for digits in (low, high))
    if is_padded and len(low) != len(high):
        raise RangeError(
            f"'{text}' is not a range: {low} and {high} are padded to different widths"
        )
    if int(low) > int(high):
        raise RangeError(f"'{text}' runs backwards; write {last}..{first}")
    if int(high) - int(low) >= MAX_RANGE:
        raise RangeError(f"'{text}' names more than {MAX_RANGE:,} columns")
    width = len(low) if is_padded else 0
    prefix, suffix = "".join(first_parts[:place]), "".join(first_parts[place + 1 :])
    return tuple(f"{prefix}{number:0{width}d}{suffix}" for number in range(int(low), int(high) + 1))
