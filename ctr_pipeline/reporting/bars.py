"""A list of horizontal bars, longest first."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Bar:
    """One bar of a list of bars; `width` is in percent of the longest."""

    name: str
    value: str
    detail: str
    width: float
