"""Labels that are not written as 0 and 1: which value means a click, and which means none."""

from collections.abc import Collection
from dataclasses import dataclass

_OPPOSITES = (
    ("true", "false"),
    ("yes", "no"),
    ("t", "f"),
    ("y", "n"),
    ("on", "off"),
    ("1", "-1"),
)
"""Values of label 1 and of label 0 that need no explanation, as `LabelValues` compares them."""
_LABELS = frozenset({0.0, 1.0})


@dataclass(frozen=True)
class LabelValues:
    """Two values of a label column.

    They are compared without blanks around them and without case, so that `True` of a text file is
    `true` of a Parquet file; two numbers by what they are worth, so that `1` is `1.0`.

    Attributes:
        positive: What label 1 is written as.
        negative: What label 0 is written as.
    """

    positive: str
    negative: str

    def number_of(self, text: str) -> float | None:
        """1 or 0; None for any other text."""
        value = _canonical(text)
        if value == _canonical(self.positive):
            return 1.0
        return 0.0 if value == _canonical(self.negative) else None

    def read(self, text: str) -> float | None:
        """1 or 0 of a label, also of one that other files may hold; None for any other text.

        True is 1 and false is 0, as in other columns; and 1 and 0 mean themselves where no label
        is written as one of them.
        """
        worth, yes, no = (_worth(one) for one in (text, self.positive, self.negative))
        if worth == yes:
            return 1.0
        if worth == no:
            return 0.0
        means_itself = worth in _LABELS and _LABELS.isdisjoint({yes, no})
        return float(worth) if means_itself else None


def as_written(value: object) -> object:
    """A number or boolean of YAML as the text that it is compared as; anything else as it is."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


def opposite_of(positive: str) -> str | None:
    """What label 0 is written as if label 1 is written so; None if that has to be said."""
    wanted = _canonical(positive)
    return next((no for yes, no in _OPPOSITES if _canonical(yes) == wanted), None)


def find_label_values(texts: Collection[str]) -> LabelValues | None:
    """The pair that all of these different values belong to, written as they are; None if none."""
    for yes, no in _OPPOSITES:
        pair = LabelValues(yes, no)
        written = {pair.number_of(text): text.strip() for text in texts}
        if texts and None not in written:
            return LabelValues(written.get(1.0, yes), written.get(0.0, no))
    return None


def _worth(text: str) -> str | float:
    value = _canonical(text)
    return {"true": 1.0, "false": 0.0}.get(value, value) if isinstance(value, str) else value


def _canonical(text: str) -> str | float:
    trimmed = text.strip().lower()
    try:
        return float(trimmed)
    except ValueError:
        return trimmed
