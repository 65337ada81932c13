"""Bad rows that were left out, as a part of the sections about rows."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from ctr_pipeline.dataset.bad_rows import BadRow, BadRows
from ctr_pipeline.reporting.formats import shorten


@dataclass(frozen=True)
class BadExample:
    """One bad row as shown; `text` is None where it must stay hidden."""

    place: str
    column: str | None
    text: str | None


def bad_rows_values(bad: BadRows, sensitive: Collection[str]) -> dict[str, Any]:
    """Variables of `bad_rows.html.j2`."""
    return {
        "bad_rows": [
            (
                reason.value,
                count,
                [_bad_example(one, sensitive) for one in bad.examples if one.reason is reason],
            )
            for reason, count in bad.by_reason.items()
        ],
        "num_bad_rows": bad.total,
    }


def _bad_example(row: BadRow, sensitive: Collection[str]) -> BadExample:
    """The row without its text, where that may hold a sensitive value."""
    hidden = bool(sensitive) if row.column is None else row.column in sensitive
    return BadExample(
        place=shorten(f"{row.file}:{row.row}", 120),
        column=None if row.column is None else shorten(row.column, 60),
        text=None if hidden or row.value is None else shorten(row.value, 160),
    )
