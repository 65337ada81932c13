"""How a text tells a point in time, in terms that a kernel and TensorFlow's graph both follow.

`iso` is a date `2024-03-31`, or a date and a time `2024-03-31T18:05`, with or without seconds, a
fraction of them and an offset; a blank may stand for the `T`. `epoch_seconds`,
`epoch_milliseconds`, `epoch_microseconds` and `epoch_nanoseconds` are whole numbers. Anything else
is a pattern in terms of strptime, of which those of fixed width are known: %Y (4 digits), %y, %m,
%d, %H, %M, %S (2 digits each) and %%. The years of %y are 1969 to 2068, as POSIX has them.

A text without offset is in UTC. Fractions of a second are dropped. A leap second (:60), the hour 24
and the year 0000 are no points in time.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache

ISO = "iso"
TIME_FORMAT_HELP = (
    "iso, epoch_seconds (or _milliseconds, _microseconds, _nanoseconds), or a pattern of %Y or %y, "
    "%m, %d, %H, %M, %S."
)
EPOCH_DIVISORS = {
    "epoch_seconds": 1,
    "epoch_milliseconds": 1000,
    "epoch_microseconds": 1_000_000,
    "epoch_nanoseconds": 1_000_000_000,
}
FORMAT_NAMES = f"{ISO}, {', '.join(EPOCH_DIVISORS)}"
EPOCH_DIGITS = 19
"""The longest whole number that is read as a time; of those, up to 8 in front fit into int64."""

COMPONENTS = ("year", "month", "day", "hour", "minute", "second")
_WIDTHS = {"Y": 4, "m": 2, "d": 2, "H": 2, "M": 2, "S": 2, "y": 2}
_PLACES = {directive: place for place, directive in enumerate("YmdHMS")} | {"y": 0}
FIRST_SHORT_YEAR = 69
"""Shorter years, of two digits, are of the next century."""


@dataclass(frozen=True)
class FixedFormat:
    """A pattern, byte by byte.

    Attributes:
        components: For each byte the index in `COMPONENTS` of what it is a digit of, or -1.
        literals: For each byte what it must be, where it is no digit.
    """

    components: tuple[int, ...]
    literals: bytes

    @property
    def has_short_year(self) -> bool:
        """Whether the year has two digits."""
        return self.components.count(0) == _WIDTHS["y"]

    @property
    def regex(self) -> str:
        """The pattern as a regular expression, that RE2 and Python read alike."""
        return "".join(
            "[0-9]" if component >= 0 else re.escape(chr(literal))
            for component, literal in zip(self.components, self.literals, strict=True)
        )


@cache
def fixed_format(text: str) -> FixedFormat:
    """A pattern in terms of strptime.

    Raises:
        ValueError: It names something twice, something unknown, or no year, month and day.
    """
    components: list[int] = []
    literals = bytearray()
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character != "%":
            if not character.isascii():
                raise ValueError(f"format '{text}' has '{character}'; only ASCII can stand in it")
            components.append(-1)
            literals += character.encode("ascii")
            continue
        directive = text[position : position + 1]
        position += 1
        if directive == "%":
            components.append(-1)
            literals += b"%"
        elif directive in _WIDTHS:
            if _PLACES[directive] in components:
                named = COMPONENTS[_PLACES[directive]]
                raise ValueError(f"format '{text}' has the {named} twice")
            components += [_PLACES[directive]] * _WIDTHS[directive]
            literals += b"0" * _WIDTHS[directive]
        else:
            raise ValueError(
                f"format '{text}' has %{directive}, and only %Y, %y, %m, %d, %H, %M, %S and %% "
                f"are known; formats by name are {FORMAT_NAMES}"
            )
    if not {0, 1, 2} <= set(components):
        raise ValueError(
            f"format '{text}' needs %Y or %y, %m and %d, or is to be one of {FORMAT_NAMES}"
        )
    return FixedFormat(tuple(components), bytes(literals))


def check_format(text: str) -> str:
    """The format itself.

    Raises:
        ValueError: It is none.
    """
    if text != ISO and text not in EPOCH_DIVISORS:
        fixed_format(text)
    return text


def iso_seconds(text: str) -> int:
    """Seconds since 1970 of a point in time of a config, in the format iso.

    Raises:
        ValueError: It is none.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or not re.fullmatch(r"\d{4}-\d\d-\d\d.*", text):
        raise ValueError(f"'{text}' is no date such as 2024-06-01 or 2024-06-01T18:00Z")
    known = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (known - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1)
