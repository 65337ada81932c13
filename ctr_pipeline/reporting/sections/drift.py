"""How far other rows are from the training rows, the farthest column first."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ctr_pipeline.reporting.data import ReportData
from ctr_pipeline.reporting.formats import SPLIT_TITLES, percent_text, shorten, value_text
from ctr_pipeline.reporting.section import PageSection
from ctr_pipeline.statistics import (
    LARGE_PSI,
    MODERATE_PSI,
    ColumnDrift,
    DriftCell,
    DriftLevel,
    RowsDrift,
)

REPORT_POSITION = 70

MAX_DETAILED_COLUMNS = 100
"""Columns beyond this many do not show their cells, so that the page stays small."""

_SHOWN = 25
"""Columns that are shown before one asks for more."""

_LONGEST_PSI = 1.0
_SHORTEST_SCALE = 0.3
_TAGS = {
    DriftLevel.LARGE: ("look", "large"),
    DriftLevel.MODERATE: ("look", "moderate"),
    DriftLevel.STABLE: ("good", "stable"),
}


@dataclass(frozen=True)
class CellView:
    """Rows that are alike: their share of the old rows and of the new ones; widths in percent."""

    name: str
    old_share: str
    new_share: str
    old_width: float
    new_width: float


@dataclass(frozen=True)
class SampleView:
    """One column of one sample.

    Attributes:
        sample: Number of the sample, which tells its colour.
        psi: The index.
        width: Width of its bar, in percent of the scale.
        is_noise: Whether sampling explains it.
        missing: Share of its rows.
        unseen: Share of its rows with a value the old rows lack; empty for numbers.
        expected: The share if nothing changed; empty for numbers.
    """

    sample: int
    psi: str
    width: float
    is_noise: bool
    missing: str
    unseen: str
    expected: str


@dataclass(frozen=True)
class DriftRow:
    """One column.

    Attributes:
        name: Column name, shortened.
        sensitive: Its values are hidden.
        tone: `good` or `look`.
        tag: What the largest difference calls for.
        old_missing: Share of the old rows.
        samples: In the order of the view's names.
        cells: Cells of the sample that is farthest away.
        cells_of: Name of that sample.
        cells_sample: Its number.
    """

    name: str
    sensitive: bool
    tone: str
    tag: str
    old_missing: str
    samples: tuple[SampleView, ...]
    cells: tuple[CellView, ...]
    cells_of: str
    cells_sample: int


@dataclass(frozen=True)
class DriftView:
    """All columns.

    Attributes:
        rows: The farthest column first.
        moderate_at: Where on the bars the first threshold is, in percent.
        large_at: Where the second one is.
        num_drifted: Columns that call for something.
    """

    names: tuple[str, ...] = ()
    rows: tuple[DriftRow, ...] = ()
    moderate_at: float = 0.0
    large_at: float = 0.0
    num_drifted: int = 0


def section(data: ReportData) -> PageSection | None:
    """Drift of validation and test rows from the training rows; None if it was not measured."""
    drift = {} if data.statistics is None else data.statistics.drift
    titles = {SPLIT_TITLES.get(name, name): rows for name, rows in drift.items()}
    return drift_section(drift_view(titles, data.sensitive_columns), "the training rows")


def drift_section(view: DriftView, old_rows_named: str) -> PageSection | None:
    """The section that shows a view; None if it has no columns."""
    if not view.rows:
        return None
    values = {"drift": view, "drift_shown": _SHOWN, "old_rows_named": old_rows_named}
    return PageSection("drift", "Drift", "drift.html.j2", values)


def drift_view(drift: Mapping[str, RowsDrift], sensitive: Collection[str]) -> DriftView:
    """The columns that all samples have, by their largest index.

    Args:
        drift: By name of the sample.
        sensitive: Columns whose values are not shown.
    """
    if not drift:
        return DriftView()
    names = tuple(drift)
    columns = {
        column: tuple(drift[name].columns[column] for name in names)
        for column in drift[names[0]].columns
    }
    ordered = sorted(columns.items(), key=lambda item: -max(one.psi for one in item[1]))
    highest = max((one.psi for found in columns.values() for one in found), default=0.0)
    scale = max(_SHORTEST_SCALE, min(1.1 * highest, _LONGEST_PSI))
    rows = tuple(
        _row(
            column,
            found,
            names,
            scale=scale,
            sensitive=column in sensitive,
            detailed=index < MAX_DETAILED_COLUMNS,
        )
        for index, (column, found) in enumerate(ordered)
    )
    return DriftView(
        names=tuple(shorten(name, 40) for name in names),
        rows=rows,
        moderate_at=round(100 * MODERATE_PSI / scale, 1),
        large_at=round(100 * LARGE_PSI / scale, 1),
        num_drifted=sum(row.tone == "look" for row in rows),
    )


def drifted_columns(
    drift: Mapping[str, RowsDrift], level: DriftLevel
) -> tuple[tuple[str, list[str]], ...]:
    """The columns of each sample that are at this level, the farthest first."""
    return tuple(
        (name, [one.column for one in rows.columns.values() if one.level is level])
        for name, rows in drift.items()
    )


def cell_name(cell: DriftCell) -> str:
    """Which rows a cell holds, in words."""
    if cell.kind == "value":
        return shorten(cell.value or "", 60)
    if cell.kind == "interval":
        left, right = cell.left, cell.right
        if left is None and right is None:
            return "any number"
        if left is None:
            return f"up to {value_text(right)}"
        if right is None:
            return f"above {value_text(left)}"
        return f"above {value_text(left)} to {value_text(right)}"
    return "all other values" if cell.kind == "rest" else "missing"


def _row(
    column: str,
    found: tuple[ColumnDrift, ...],
    names: tuple[str, ...],
    *,
    scale: float,
    sensitive: bool,
    detailed: bool,
) -> DriftRow:
    worst = max(range(len(found)), key=lambda index: found[index].psi)
    levels = {one.level for one in found}
    level = next(level for level in _TAGS if level in levels)
    tone, tag = _TAGS[level]
    return DriftRow(
        name=shorten(column, 60),
        sensitive=sensitive,
        tone=tone,
        tag=tag,
        old_missing=percent_text(found[0].old_missing_rate),
        samples=tuple(
            SampleView(
                sample=index,
                psi=f"{one.psi:.3f}",
                width=round(100 * min(one.psi / scale, 1.0), 1),
                is_noise=one.psi <= one.noise,
                missing=percent_text(one.new_missing_rate),
                unseen="" if one.unseen_rate is None else percent_text(one.unseen_rate),
                expected=""
                if one.expected_unseen_rate is None
                else percent_text(one.expected_unseen_rate),
            )
            for index, one in enumerate(found)
        ),
        cells=_cells(found[worst]) if detailed and not sensitive else (),
        cells_of=shorten(names[worst], 40),
        cells_sample=worst,
    )


def _cells(drift: ColumnDrift) -> tuple[CellView, ...]:
    num_old = sum(cell.old_count for cell in drift.cells)
    num_new = sum(cell.new_count for cell in drift.cells)
    shares = [(cell.old_count / num_old, cell.new_count / num_new) for cell in drift.cells]
    longest = max(max(pair) for pair in shares)
    return tuple(
        CellView(
            name=cell_name(cell),
            old_share=percent_text(old),
            new_share=percent_text(new),
            old_width=round(100 * old / longest, 1),
            new_width=round(100 * new / longest, 1),
        )
        for cell, (old, new) in zip(drift.cells, shares, strict=True)
    )
