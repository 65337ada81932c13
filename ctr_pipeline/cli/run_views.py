"""Several runs as a person reads them on a terminal."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from ctr_pipeline.cli.markup import escape
from ctr_pipeline.cli.progress_lines import spoken_seconds
from ctr_pipeline.cli.tables import make_console, print_paths

if TYPE_CHECKING:
    from ctr_pipeline.pipeline.comparison import ComparisonResult
    from ctr_pipeline.pipeline.run_list import ListedRun

_COLOURS = {"ahead": "green", "behind": "red", "open": "default"}
_KEYS_SHOWN = 40


def print_comparison(result: "ComparisonResult") -> None:
    """Test figures, what training took, and the keys that differ; a line a run."""
    console = make_console()
    views = result.views
    figures = Table(title="Test rows", title_justify="left")
    figures.add_column("run", style="cyan", overflow="fold")
    figures.add_column("model", no_wrap=True)
    for name in ("AUC", "to the first", "logloss", "to the first", "calibration"):
        figures.add_column(name, justify="right", no_wrap=True)
    for view in views:
        figures.add_row(
            escape(view.name),
            escape(view.model),
            view.auc,
            _coloured(*view.auc_ahead),
            view.logloss,
            _coloured(*view.logloss_ahead),
            escape(view.calibration),
        )
    console.print(figures)
    training = Table(title="Training", title_justify="left")
    training.add_column("run", style="cyan", overflow="fold")
    for name, _ in views[0].facts:
        training.add_column(name[0].lower() + name[1:], justify="right", no_wrap=True)
    for view in views:
        training.add_row(escape(view.name), *(text for _, text in view.facts))
    console.print(training)
    if result.settings:
        keys = Table(title="Keys that differ", title_justify="left")
        for name in ("key", *(view.name for view in views)):
            keys.add_column(escape(name), overflow="fold")
        for key, values in result.settings[:_KEYS_SHOWN]:
            keys.add_row(escape(key), *map(escape, values))
        console.print(keys)
        if len(result.settings) > _KEYS_SHOWN:
            console.print(f"and {len(result.settings) - _KEYS_SHOWN} more keys")
    for text in result.remarks:
        console.print(f"[yellow]{escape(text)}[/]", soft_wrap=True)
    if result.output is not None:
        print_paths(console, {"page": result.output})


def print_runs(runs: "Sequence[ListedRun]", folder: Path) -> None:
    """A line a run."""
    console = make_console()
    if not runs:
        console.print(f"No run lies in {escape(str(folder))}", soft_wrap=True)
        return
    table = Table()
    table.add_column("run", style="cyan", overflow="fold")
    table.add_column("model", overflow="fold")
    for name in ("rows", "AUC", "logloss", "training"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("state", overflow="fold")
    table.add_column("when", no_wrap=True)
    for run in runs:
        table.add_row(
            escape(str(run.folder)),
            escape(run.model or ""),
            "" if run.num_training_rows is None else f"{run.num_training_rows:,}",
            "" if run.auc is None else f"{run.auc:.4f}",
            "" if run.logloss is None else f"{run.logloss:.4f}",
            "" if run.training_seconds is None else spoken_seconds(run.training_seconds),
            escape(run.state),
            "" if run.when is None else f"{run.when.astimezone():%Y-%m-%d %H:%M}",
        )
    console.print(table)


def _coloured(text: str, tone: str) -> str:
    return f"[{_COLOURS[tone]}]{escape(text)}[/]"
