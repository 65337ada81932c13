"""Bad rows that were left out, as a part of the sections about rows."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from ctr_pipeline.reporting.data import BadRowExample, BadRows
from ctr_pipeline.reporting.formats import shorten

_EXAMPLES_SHOWN = 5


@dataclass(frozen=True)
class BadExample:
    """One bad row as shown; `text` is None where it must stay hidden."""

    place: str
    column: str | None
    text: str | None


def bad_rows_values(bad_rows: Sequence[BadRows], sensitive: Collection[str]) -> dict[str, Any]:
    """What `bad_rows.html.j2` names."""
    return {
        "bad_rows": [
            (
                rows,
                [_bad_example(example, sensitive) for example in rows.examples[:_EXAMPLES_SHOWN]],
            )
            for rows in bad_rows
        ],
        "num_bad_rows": sum(rows.count for rows in bad_rows),
    }


def _bad_example(example: BadRowExample, sensitive: Collection[str]) -> BadExample:
    """The example without its text, where that may hold a sensitive value."""
    hidden = bool(sensitive) if example.column is None else example.column in sensitive
    return BadExample(
        place=shorten(example.place, 120),
        column=None if example.column is None else shorten(example.column, 60),
        text=None if hidden else shorten(example.text, 160),
    )
