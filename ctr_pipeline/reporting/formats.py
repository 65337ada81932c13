"""Numbers and foreign text as a person reads them."""

import math
import unicodedata

_VISIBLE_ESCAPES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories that are written as escapes: control, direction marks, lone surrogates."""

_KEPT = frozenset("\n\t\u200c\u200d")
"""Line breaks of the config, and the joiners that many scripts need."""


SPLIT_TITLES = {"valid": "validation"}
"""Names of splits where they are not the word that people read."""


def visible_text(text: str) -> str:
    """`text` with control characters, direction overrides and lone surrogates as escapes.

    A value can then neither break the page's encoding nor turn the text beside it around.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character
        if character in _KEPT or unicodedata.category(character) not in _VISIBLE_ESCAPES
        else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def shorten(text: str, length: int) -> str:
    """`text` on one line, cut to `length` characters with an ellipsis."""
    line = visible_text(text[: 4 * length]).replace("\n", "\\n").replace("\t", "\\t")
    if len(line) <= length and len(text) <= 4 * length:
        return line
    return line[: length - 1] + "…"


def count_text(count: float) -> str:
    """1234567 as `1,234,567`."""
    return f"{count:,.0f}"


def short_count(count: float) -> str:
    """1234567 as `1.23 M`; below ten thousand as it is."""
    # Each limit is where the unit below would round to four digits.
    for limit, scale, unit in ((999.5e6, 1e9, "G"), (999.5e3, 1e6, "M"), (1e4, 1e3, "k")):
        if count >= limit:
            return f"{_three_digits(count / scale)} {unit}"
    return count_text(count)


def _three_digits(value: float) -> str:
    text = f"{value:.3g}" if value < 100 else f"{value:.0f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent_text(fraction: float | None, digits: int = 1) -> str:
    """0.256 as `25.6 %`; a tiny share that is not 0 as `< 0.1 %`; None as a dash."""
    if fraction is None:
        return "–"
    smallest = 10.0**-digits
    if 0 < fraction * 100 < smallest:
        return f"< {smallest:.{digits}f} %"
    if 0 < (1 - fraction) * 100 < smallest:
        return f"> {100 - smallest:.{digits}f} %"
    return f"{fraction * 100:.{digits}f} %"


def bytes_text(num_bytes: float | None) -> str:
    """2048 as `2 KB`, binary units; None as a dash."""
    if num_bytes is None:
        return "–"
    value = float(num_bytes)
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1024:
            return f"{_three_digits(value)} {unit}"
        value /= 1024
    return f"{_three_digits(value)} TB"


def duration_text(seconds: float | None) -> str:
    """0.042 as `42 ms`, 4.21 as `4.2 s`, 125 as `2 min 5 s`; None as a dash."""
    if seconds is None:
        return "–"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def value_text(value: float | None, digits: int = 4) -> str:
    """A value of a column with so many significant digits; None as a dash."""
    if value is None:
        return "–"
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return "∞" if value > 0 else "−∞" if value < 0 else "NaN"
    size = abs(value)
    if 1e-3 <= size < 1e6:
        decimals = max(0, digits - 1 - math.floor(math.log10(size)))
        text = f"{value:,.{decimals}f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
    else:
        number, exponent = f"{value:.2e}".split("e")
        text = f"{number.rstrip('0').rstrip('.')}e{int(exponent)}"
    return text.replace("-", "−")


def metric_text(value: float | None, digits: int = 4) -> str:
    """A metric with fixed digits and a true minus sign; None as a dash."""
    return "–" if value is None else f"{value:.{digits}f}".replace("-", "−")
