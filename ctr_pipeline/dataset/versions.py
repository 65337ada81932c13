"""Versions of the files and tables of a source: which they are, and which changed since."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import zip_longest
from typing import TYPE_CHECKING, Self

from ctr_pipeline.errors import DataError

if TYPE_CHECKING:
    from ctr_pipeline.dataset.source import Place, Source

State = tuple[str | int, ...]
_STATE_CHARACTERS = 200


@dataclass(frozen=True)
class SourceVersions:
    """The versions of all files and tables of a source at one time.

    Attributes:
        states: As `SourceFile.state` tells them.
    """

    states: Mapping["Place", State]

    @classmethod
    def of(cls, source: "Source") -> Self:
        """Asks anew for all of them.

        Raises:
            DataError: One is gone.
        """
        return cls({place: opened.state() for place, opened in source.opened.items()})

    def require_same(self, source: "Source", since: str) -> None:
        """Refuses files and tables that have changed.

        Args:
            source: The same one.
            since: Ends `changed …`, such as `while it was read`.

        Raises:
            DataError: One has changed or is gone; the message names it and both versions.
        """
        for place, now in self.of(source).states.items():
            if now != self.states[place]:
                before, after = _differences(self.states[place], now)
                raise DataError(
                    f"changed {since}: {before} then, {after} now",
                    place=str(place),
                    remedy="Let nothing write into it meanwhile, and run again",
                )


def _differences(before: State, now: State) -> tuple[str, str]:
    """The parts of two states that differ, in words."""
    pairs = [
        pair
        for pair in zip_longest(_worded(before), _worded(now), fillvalue="nothing")
        if pair[0] != pair[1]
    ]
    old, new = ("; ".join(words) for words in zip(*pairs, strict=True))
    return old, new


def _worded(state: State) -> list[str]:
    """Each text as it is; of numbers behind one, the first is of bytes and the next a time."""
    words = []
    num_numbers = 0
    for part in state:
        if isinstance(part, str):
            num_numbers = 0
            words.append(part[:_STATE_CHARACTERS])
            continue
        num_numbers += 1
        words.append(f"{part:,} bytes" if num_numbers == 1 else f"last modified {_time(part)}")
    return words


def _time(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{rest:09d} UTC"
