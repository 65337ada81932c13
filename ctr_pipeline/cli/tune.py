"""`ctrpipe tune`: the values of a declared range that are best on the validation rows."""

from typing import TYPE_CHECKING

from ctr_pipeline.cli.command import Panel, command
from ctr_pipeline.cli.options import ConfigFile, Overrides, Overwrite, Resume
from ctr_pipeline.cli.session import CommandSession

if TYPE_CHECKING:
    from ctr_pipeline.apps.tune.search import TuneResult

_SHOWN = 20
_COLOURS = {"complete": "green", "pruned": "yellow", "failed": "red"}


@command(Panel.STAGES)
def tune(
    session: CommandSession,
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    resume: Resume = False,
    overwrite: Overwrite = False,
) -> None:
    """Search the values declared under `tune:` for the best ones on the validation rows.

    Writes config.best.yaml, trials.csv and tune.html into the run folder; test rows are not
    read.

    For example:

    ctrpipe tune config.yaml --set tune.trials=50

    ctrpipe tune config.yaml --resume
    """
    loaded = session.read(config, overrides, resumed_by="tune")
    from ctr_pipeline.apps.tune.search import tune as search

    result = search(loaded, resume=resume, overwrite=overwrite, progress=session.progress)
    session.show(result.to_payload(), lambda: print_search(result))


def print_search(result: "TuneResult") -> None:
    """Prints the best trials, one line each, and the paths of the results."""
    from rich.table import Table

    from ctr_pipeline.apps.tune.search import ranked, value_text
    from ctr_pipeline.cli.markup import escape
    from ctr_pipeline.cli.tables import make_console, print_paths

    console = make_console()
    table = Table(title=f"{len(result.trials)} trials, the best first", title_justify="left")
    name = "AUC" if result.metric == "auc" else result.metric
    for column in ("trial", name, "epochs", "seconds"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for key in result.best.values:
        table.add_column(escape(key), overflow="fold")
    for one in ranked(result.trials, result.metric)[:_SHOWN]:
        table.add_row(
            str(one.number),
            "" if one.value is None else f"{one.value:.5f}",
            str(len(one.epochs)),
            f"{one.seconds:.1f}",
            f"[{_COLOURS[one.state]}]{one.state}[/]",
            *(escape(value_text(value)) for value in one.values.values()),
            style="bold" if one.number == result.best.number else None,
        )
    console.print(table)
    if len(result.trials) > _SHOWN:
        console.print(f"and {len(result.trials) - _SHOWN} more in the table")
    print_paths(console, result.paths)
