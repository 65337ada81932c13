"""Several runs as a person reads them on a terminal."""

from typing import TYPE_CHECKING

from rich.table import Table

from ctr_pipeline.cli.markup import escape
from ctr_pipeline.cli.tables import make_console, print_paths

if TYPE_CHECKING:
    from ctr_pipeline.pipeline.comparison import ComparisonResult

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


def _coloured(text: str, tone: str) -> str:
    return f"[{_COLOURS[tone]}]{escape(text)}[/]"
