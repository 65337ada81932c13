"""A list of horizontal bars, longest first."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Bar:
    """One bar of a list of bars; `width` is in percent of the longest.

    Attributes:
        value: The number that it shows.
        detail: Another number.
        width: Its length.
        spread: Where a line across its end begins and how long it is, in the same percent; None
            where nothing is known of the spread.
        spread_text: The text of that line.
    """

    name: str
    value: str
    detail: str
    width: float
    spread: tuple[float, float] | None = None
    spread_text: str = ""
