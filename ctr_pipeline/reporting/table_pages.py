"""What the pages about tables show beside their columns: a profile, a comparison."""

from datetime import datetime
from typing import Any

from ctr_pipeline.reporting.data import DriftData, ProfileData
from ctr_pipeline.reporting.findings import Finding, on_drift
from ctr_pipeline.reporting.formats import (
    count_text,
    duration_text,
    percent_text,
    short_count,
    shorten,
    value_text,
)
from ctr_pipeline.reporting.headline import Card
from ctr_pipeline.reporting.section import PageSection
from ctr_pipeline.reporting.sections.drift import drift_section, drift_view
from ctr_pipeline.statistics import DriftLevel


def moment_text(moment: datetime) -> str:
    """A moment as people write it."""
    zone = moment.strftime("%Z")
    return f"{moment.day} {moment.strftime('%B %Y, %H:%M')} {zone}".rstrip()


def profile_page(data: ProfileData) -> dict[str, Any]:
    """What the template of a profile names, apart from the sections about columns."""
    statistics = data.statistics
    summary = f"{count_text(statistics.num_rows)} rows of {_columns_text(len(statistics.columns))}"
    if data.label is not None:
        rate = percent_text(statistics.label_rate, 2)
        summary += f"; {rate} of them have {shorten(data.label, 40)} = 1"
    return {
        "data": data,
        "title": data.name,
        "page_kind": "profile",
        "kicker": f"{data.format} · {moment_text(data.created)}",
        "summary": f"{summary}.",
        "cards": _profile_cards(data),
        "findings": (),
    }


def _columns_text(count: int) -> str:
    return "1 column" if count == 1 else f"{count_text(count)} columns"


def _profile_cards(data: ProfileData) -> tuple[Card, ...]:
    statistics = data.statistics
    columns = statistics.columns.values()
    cells = sum(column.count for column in columns) or 1
    missing = sum(column.num_missing for column in columns)
    empty = sum(column.is_missing for column in columns)
    cards = [
        Card("Rows", short_count(statistics.num_rows), f"read in {duration_text(data.seconds)}"),
        Card(
            "Columns",
            count_text(len(statistics.columns)),
            f"{len(data.left_out)} would be no feature",
        ),
        Card(
            "Missing",
            percent_text(missing / cells),
            "of all values" if not empty else f"{_columns_text(empty)} without a value",
        ),
    ]
    if data.label is None:
        return tuple(cards)
    cards.append(
        Card("Click rate", percent_text(statistics.label_rate, 2), f"{shorten(data.label, 30)} = 1")
    )
    known = [
        (column.label_information.share_explained(statistics.label_rate), column.column)
        for column in columns
        if column.label_information is not None
    ]
    if known:
        most, column = max(known)
        detail = f"{percent_text(most)} of the label's entropy"
        cards.append(Card("Tells most", shorten(column, 24), detail))
    return tuple(cards)


def drift_page(data: DriftData) -> dict[str, Any]:
    """Everything that the template of a comparison names."""
    view = drift_view({data.new: data.drift}, data.sensitive)
    columns = data.drift.columns.values()
    largest = next(iter(columns), None)
    unseen = [
        (one.unseen_rate - (one.expected_unseen_rate or 0.0), one.unseen_rate, one.column)
        for one in columns
        if one.unseen_rate is not None
    ]
    cards = [
        Card(
            "Columns adrift",
            count_text(view.num_drifted),
            f"of {len(view.rows)}",
            "look" if view.num_drifted else "good",
        )
    ]
    if largest is not None:
        cards.append(
            Card(
                "Largest index",
                value_text(largest.psi, 3),
                shorten(largest.column, 30),
                "good" if largest.level is DriftLevel.STABLE else "look",
            )
        )
    if unseen:
        _, rate, column = max(unseen)
        cards.append(Card("New values", percent_text(rate), f"of rows, in {shorten(column, 30)}"))
    cards.append(
        Card("Rows", short_count(data.drift.num_rows), f"against {short_count(data.num_old_rows)}")
    )
    return {
        "data": data,
        "title": "Drift",
        "page_kind": "drift",
        "kicker": moment_text(data.created),
        "summary": f"{shorten(data.new, 200)} beside {shorten(data.old, 200)}: "
        f"{count_text(data.drift.num_rows)} rows beside {count_text(data.num_old_rows)}.",
        "cards": tuple(cards),
        "findings": (
            *on_drift({"new": data.drift}, "the new rows"),
            *(Finding("note", note) for note in data.notes),
        ),
    }


def drift_sections(data: DriftData) -> tuple[PageSection | None, ...]:
    """Sections of the page of a comparison."""
    view = drift_view({data.new: data.drift}, data.sensitive)
    return (drift_section(view, "the old ones"),)
