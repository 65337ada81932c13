"""How a text tells a point in time, in terms that a kernel and TensorFlow's graph both follow.

`iso` is a date `2024-03-31`, or a date and a time `2024-03-31T18:05`, with or without minutes,
seconds, a fraction of them (behind a point or a comma) and an offset (`Z`, `UTC`, `+02`, `+0200`,
`+02:00`, a blank may stand before it); a blank may stand for the `T`. `epoch_seconds`,
`epoch_milliseconds`, `epoch_microseconds` and `epoch_nanoseconds` are whole numbers, or numbers
with a fraction. Anything else is a pattern in terms of strptime, of which are known:

- %Y (4 digits), %y (2 digits; the years are 1969 to 2068, as POSIX has them),
- %m, %d, %H, %I, %M and %S: 2 digits; 1 will do where no digit stands beside it,
- %b, a month as Jan to Dec, %p, AM or PM, both in letters of any size,
- %f, up to 9 digits of a fraction of seconds, %z, an offset as in `iso`, the last part, and %%.

Where a text is none of its format, but of `iso`, it is read as such: so typed timestamps are, which
become texts of `iso`. Blanks around a text are passed over. A text without offset is in UTC.
Fractions of a second are dropped. A leap second (:60), the hour 24 and the year 0000 are no points
in time.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from functools import cache

ISO = "iso"
TIME_FORMAT_HELP = (
    "iso, epoch_seconds (or _milliseconds, _microseconds, _nanoseconds), or a pattern of %Y or %y, "
    "%m or %b, %d, %H or %I with %p, %M, %S, %f, %z."
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
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
FIRST_SHORT_YEAR = 69
"""Shorter years, of two digits, are of the next century."""

_PLACES = {directive: place for place, directive in enumerate("YmdHMS")} | {"y": 0, "b": 1, "I": 3}
_WITHOUT_PLACE = {"p": "half of the day", "f": "fraction", "z": "offset"}
_DIRECTIVES = "%Y, %y, %m, %b, %d, %H, %I, %p, %M, %S, %f, %z and %%"
_DIGITS = frozenset("YymdHIMSf")
"""Directives that stand for digits."""
_OFFSET = "(?:Z|UTC|(?P<sign>[+-])(?P<offset_hours>[0-9]{2})(?::?(?P<offset_minutes>[0-9]{2}))?)"
ISO_REGEX = (
    "(?P<year>[0-9]{4})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})"
    "(?:[T ](?P<hour>[0-9]{2})(?::(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2})"
    f"(?:[.,][0-9]{{1,9}})?)?(?: ?{_OFFSET})?)?)?"
)
"""Pattern of texts without blanks around them, that RE2 and Python read alike."""


@dataclass(frozen=True)
class Directive:
    """What a part of a text tells.

    Attributes:
        letter: The directive's letter; empty for a byte that stands for itself.
        literal: The byte that stands for itself, else empty.
        fewest: Digits there are at least, where it is digits.
        most: Digits there are at most.
    """

    letter: str
    literal: str = ""
    fewest: int = 0
    most: int = 0

    @property
    def regex(self) -> str:
        """The part as a regular expression, that RE2 and Python read alike."""
        if not self.letter:
            return re.escape(self.literal)
        if self.letter == "z":
            return _OFFSET
        if self.letter == "p":
            return "(?P<half>[AaPp])[Mm]"
        if self.letter == "b":
            names = ("".join(f"[{one.upper()}{one}]" for one in name) for name in MONTHS)
            return f"(?P<month_name>{'|'.join(names)})"
        digits = f"[0-9]{{{self.fewest},{self.most}}}"
        return digits if self.letter == "f" else f"(?P<{COMPONENTS[_PLACES[self.letter]]}>{digits})"


@dataclass(frozen=True)
class TimePattern:
    """A pattern, part by part."""

    parts: tuple[Directive, ...]

    @property
    def has_short_year(self) -> bool:
        """Whether the year has two digits."""
        return any(part.letter == "y" for part in self.parts)

    @property
    def regex(self) -> str:
        """The pattern of texts without blanks around them, that RE2 and Python read alike."""
        return "".join(part.regex for part in self.parts)


@cache
def time_pattern(text: str) -> TimePattern:
    """A pattern in terms of strptime.

    Raises:
        ValueError: It names something twice, something unknown, or no year, month and day.
    """
    letters = _letters(text)
    _check_letters(text, [letter for letter, _ in letters if letter])
    are_digits = [letter in _DIGITS or literal.isdigit() for letter, literal in letters]
    parts = []
    for place, (letter, literal) in enumerate(letters):
        fewest = most = 0
        has_digits_behind = any(are_digits[place + 1 : place + 2])
        if letter in _DIGITS:
            is_alone = not has_digits_behind and not any(are_digits[max(place - 1, 0) : place])
            most = {"Y": 4, "f": 9}.get(letter, 2)
            fewest = 1 if letter == "f" or (is_alone and letter not in "Yy") else most
        if letter == "f" and has_digits_behind:
            raise ValueError(f"format '{text}' has digits right behind %f, whose end is not known")
        if letter == "z" and place + 1 < len(letters):
            raise ValueError(f"format '{text}' has something behind %z, which is the last part")
        parts.append(Directive(letter, literal, fewest, most))
    return TimePattern(tuple(parts))


def _letters(text: str) -> list[tuple[str, str]]:
    """Letters of directives, and bytes that stand for themselves; one of both is empty."""
    found = []
    characters = iter(text.strip())
    for character in characters:
        if character == "%":
            letter = next(characters, "")
            if letter == "%":
                found.append(("", "%"))
            elif letter in _PLACES or letter in _WITHOUT_PLACE:
                found.append((letter, ""))
            else:
                raise ValueError(
                    f"format '{text}' has %{letter}, and only {_DIRECTIVES} are known; formats by "
                    f"name are {FORMAT_NAMES}"
                )
        elif character.isascii():
            found.append(("", character))
        else:
            raise ValueError(f"format '{text}' has '{character}'; only ASCII can stand in it")
    return found


def _check_letters(text: str, letters: Sequence[str]) -> None:
    named = [
        COMPONENTS[_PLACES[letter]] if letter in _PLACES else _WITHOUT_PLACE[letter]
        for letter in letters
    ]
    for name in named:
        if named.count(name) > 1:
            raise ValueError(f"format '{text}' has the {name} twice")
    if not {"year", "month", "day"} <= set(named):
        raise ValueError(
            f"format '{text}' needs %Y or %y, %m or %b, and %d, or is to be one of {FORMAT_NAMES}"
        )
    if ("I" in letters) != ("p" in letters):
        raise ValueError(f"format '{text}' needs %I and %p together: hours to 12, and AM or PM")


def check_format(text: str) -> str:
    """The format itself.

    Raises:
        ValueError: It is none.
    """
    if text != ISO and text not in EPOCH_DIVISORS:
        time_pattern(text)
    return text


def iso_seconds(text: str) -> int:
    """Seconds since 1970 of a point in time of a config, in the format iso.

    Raises:
        ValueError: It is none.
    """
    found = re.fullmatch(ISO_REGEX, text.strip(), re.ASCII)
    wrong = f"'{text}' is no date such as 2024-06-01 or 2024-06-01T18:00Z"
    if found is None:
        raise ValueError(wrong)
    year, month, day, hour, minute, second, hours, minutes = (
        int(found[name] or 0) for name in (*COMPONENTS, "offset_hours", "offset_minutes")
    )
    try:
        if minutes > 59:
            raise ValueError(wrong)
        offset = timedelta(hours=hours, minutes=minutes)
        zone = timezone(-offset if found["sign"] == "-" else offset)
        moment = datetime(year, month, day, hour, minute, second, tzinfo=zone)
    except ValueError:
        raise ValueError(wrong) from None
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1)
