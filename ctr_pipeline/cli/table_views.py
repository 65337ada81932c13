"""Shows profiles and comparisons of tables on a terminal."""

from typing import TYPE_CHECKING

from rich.table import Table

from ctr_pipeline.cli.markup import escape
from ctr_pipeline.cli.tables import make_console, print_paths

if TYPE_CHECKING:
    from ctr_pipeline.apps.tables import DriftResult, ProfileResult
    from ctr_pipeline.statistics import ColumnStatistics

_COLOURS = {"stable": "green", "moderate": "yellow", "large": "red"}


def print_profile(result: "ProfileResult") -> None:
    """Prints one line per column; with known clicks, the most informative column first."""
    shown, statistics = result.shown, result.shown.statistics
    console = make_console()
    title = f"{statistics.num_rows:,} rows"
    if shown.label is not None:
        title += f", {statistics.label_rate:.2%} with {escape(shown.label)} = 1"
    table = Table(title=title, title_justify="left")
    table.add_column("column", style="cyan", overflow="fold")
    names = ["type", "missing", "distinct", "min", "mean", "max"]
    if shown.label is not None:
        names.append("inf. value")
    for name in names:
        table.add_column(name, justify="left" if name == "type" else "right", no_wrap=True)
    columns = sorted(statistics.columns.values(), key=lambda column: -_value_of(column))
    for column in columns:
        moments = column.moments
        numbers = (moments.minimum, moments.mean, moments.maximum) if moments else (None,) * 3
        cells = [
            column.column_type.value,
            f"{column.num_missing / max(column.count, 1):.1%}",
            f"{column.num_distinct:,}",
            *("" if number is None else f"{number:,.4g}" for number in numbers),
        ]
        if shown.label is not None:
            cells.append(f"{_value_of(column):.3f}")
        table.add_row(escape(_on_one_line(column.column)), *cells)
    console.print(table)
    for name, reason in shown.left_out.items():
        console.print(
            f"no feature: [cyan]{escape(_on_one_line(name))}[/] ({escape(reason)})",
            soft_wrap=True,
        )
    for reason, count in shown.bad_rows.by_reason.items():
        console.print(f"[yellow]{count:,} rows left out:[/] {escape(reason)}")
    if result.output is not None:
        print_paths(console, {"page": result.output})


def _value_of(column: "ColumnStatistics") -> float:
    found = column.label_information
    return 0.0 if found is None else found.information_value


def print_drift(result: "DriftResult") -> None:
    """Prints one line per column, the largest drift first."""
    console = make_console()
    drift = result.shown.drift
    title = f"{drift.num_rows:,} rows beside {result.shown.num_old_rows:,}"
    table = Table(title=title, title_justify="left")
    table.add_column("column", style="cyan", overflow="fold")
    for name in ("index", "by sampling", "missing", "new values", "expected", ""):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for one in drift.columns.values():
        level = one.level.value
        table.add_row(
            escape(_on_one_line(one.column)),
            f"{one.psi:.3f}",
            f"{one.noise:.3f}",
            f"{one.old_missing_rate:.1%} → {one.new_missing_rate:.1%}",
            "" if one.unseen_rate is None else f"{one.unseen_rate:.1%}",
            "" if one.expected_unseen_rate is None else f"{one.expected_unseen_rate:.1%}",
            f"[{_COLOURS[level]}]{level}[/]",
        )
    console.print(table)
    for note in result.shown.notes:
        console.print(escape(note), soft_wrap=True)
    if result.output is not None:
        print_paths(console, {"page": result.output})


def _on_one_line(text: str) -> str:
    """A name on one line, shortened for a terminal."""
    shown = "".join(letter if letter.isprintable() else "\ufffd" for letter in text[:80])
    return shown if len(text) <= 80 else f"{shown}…"
