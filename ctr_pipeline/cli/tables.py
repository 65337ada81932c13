"""Shows results on a terminal, and gives them as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from ctr_pipeline.cli.markup import escape
from ctr_pipeline.cli.progress_lines import format_amount, format_seconds
from ctr_pipeline.reporting.formats import shorten

if TYPE_CHECKING:
    from ctr_pipeline.apps.convert import ConvertResult
    from ctr_pipeline.apps.init import InitResult
    from ctr_pipeline.apps.sample import SampleSummary
    from ctr_pipeline.cli.machine_checks import Check
    from ctr_pipeline.pipeline.results import CheckResult, PredictResult, RunResult
    from ctr_pipeline.pipeline.stages.statistics_engines.protocol import ScanPlan
    from ctr_pipeline.statistics import Statistics

_PIPE_WIDTH = 160
"""Characters a line where no terminal says how wide it is."""

_SHOWN_LEFT_OUT = 5
"""Columns that `init` names; the config has all."""

_METRICS = (
    ("auc", "AUC", "{:.4f}"),
    ("logloss", "logloss", "{:.4f}"),
    ("normalized_entropy", "normalised entropy", "{:.4f}"),
    ("calibration", "calibration (predicted ÷ observed)", "{:.3f}"),
    ("gauc", "GAUC", "{:.4f}"),
)

_GROUPS_SHOWN = 5
"""Values of a column at the end of a run; the report has them all."""

_TAGS = {"look": ("check", "yellow"), "good": ("good", "green"), "note": ("note", "default")}
"""The word and the colour of each tone of a finding."""


def make_console() -> Console:
    """A console as wide as the terminal, or wide enough for a pipe."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    return console


def facts_table(title: str, style: str = "cyan") -> Table:
    """An empty table of names, in `style`, and values, without a heading."""
    table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style=style, no_wrap=True)
    table.add_column(overflow="fold")
    return table


def print_paths(console: Console, paths: Mapping[str, Path | str]) -> None:
    """Prints one line per path or address."""
    # Outside any table, so that a path is never broken over two lines.
    for name, path in paths.items():
        console.print(f"[cyan]{name:<12}[/] {escape(str(path))}", soft_wrap=True)


def _add_metrics(table: Table, prefix: str, metrics: Mapping[str, Any]) -> None:
    for key, name, form in _METRICS:
        value = metrics.get(key)
        if isinstance(value, int | float):
            table.add_row(f"{prefix}{name}", form.format(value))


def _print_groups(console: Console, metrics: Mapping[str, Any], *, most: int | None = None) -> None:
    """Prints a table for each column of metrics by value, with `most` lines at most."""
    for column, found in (metrics.get("by_column") or {}).items():
        table = Table(title=f"By {escape(column)}", title_justify="left")
        table.add_column("value", style="cyan", overflow="fold")
        for name in ("rows", "click rate", "AUC", "logloss", "calibration"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("", no_wrap=True)
        shown = found["groups"][:most]
        for group in shown:
            name = "missing" if group["value"] is None else escape(shorten(group["value"], 40))
            table.add_row(name, *_group_cells(group))
        num_more = found["num_values"] - len(shown)
        if found["others"] is not None and len(shown) == len(found["groups"]):
            table.add_row(f"{num_more:,} others", *_group_cells(found["others"]))
            num_more = 0
        console.print(table)
        if num_more:
            values = "value" if num_more == 1 else "values"
            console.print(f"and {num_more:,} more {values}: see the report, or metrics.json")


def _group_cells(group: Mapping[str, Any]) -> tuple[str, ...]:
    figures = (
        ("label_rate", "{:.2%}"),
        ("auc", "{:.4f}"),
        ("logloss", "{:.4f}"),
        ("calibration", "{:.3f}"),
    )
    cells = ("–" if group[key] is None else form.format(group[key]) for key, form in figures)
    return f"{group['num_rows']:,}", *cells, group["hint"]


def run_payload(result: "RunResult") -> dict[str, Any]:
    """A run as JSON."""
    return {
        "run_folder": result.folder,
        "num_rows": result.num_rows,
        "metrics": result.metrics,
        "timings_seconds": result.timings_seconds,
        "paths": result.paths,
    }


def print_run(result: "RunResult") -> None:
    """Prints the summary at the end of a run."""
    console = make_console()
    table = facts_table("")
    if result.num_rows:
        rows = ", ".join(f"{name} {count:,}" for name, count in result.num_rows.items())
        table.add_row("rows", rows)
    stages = [f"{name} {format_seconds(spent)}" for name, spent in result.timings_seconds.items()]
    if stages:
        table.add_row("time", ", ".join(stages))
    _add_metrics(table, "test ", result.metrics.get("test") or {})
    _add_planted(table, result.metrics.get("planted") or {})
    console.print(table)
    measured = result.metrics.get("test") or result.metrics.get("valid") or {}
    _print_groups(console, measured, most=_GROUPS_SHOWN)
    _print_verdicts(console, result.metrics.get("findings") or ())
    print_paths(console, result.paths)


def _print_verdicts(console: Console, findings: Sequence[Mapping[str, str]]) -> None:
    """Prints the findings of the report, one per line; those to act on come first."""
    for finding in findings:
        tag, colour = _TAGS[finding["tone"]]
        console.print(f"[{colour}]{tag:<12}[/] {escape(finding['text'])}", soft_wrap=True)


def _add_planted(table: Table, planted: Mapping[str, Any]) -> None:
    """Adds the best possible metrics of sample rows, which follow from their model."""
    realized = planted.get("realized") or {}
    for key, name in (
        ("bayes_logloss", "best possible logloss (the planted model itself)"),
        ("learnable_floor", "learnable floor (true weights of the ids seen in training)"),
        ("base_rate_logloss", "logloss of the constant click rate"),
    ):
        if isinstance(realized.get(key), int | float):
            table.add_row(name, f"{realized[key]:.4f}")


def print_metrics(metrics: Mapping[str, Any]) -> None:
    """Prints the metrics of one set of rows, and the checkpoint if the run still trains."""
    table = facts_table("")
    checkpoint = metrics.get("checkpoint")
    if checkpoint:
        table.add_row(
            "checkpoint",
            f"{checkpoint['number']}, epoch {checkpoint['epoch']}, step {checkpoint['step']:,}",
        )
    if isinstance(metrics.get("num_rows"), int):
        table.add_row("rows", f"{metrics['num_rows']:,}")
    _add_metrics(table, "", metrics)
    console = make_console()
    console.print(table)
    _print_groups(console, metrics)
    _print_verdicts(console, metrics.get("findings") or ())
    if "folder" in metrics:
        print_paths(console, {"kept in": Path(metrics["folder"])})


def check_payload(result: "CheckResult") -> dict[str, Any]:
    """A plan as JSON."""
    return asdict(result)


def print_check(result: "CheckResult", *, reasons: bool) -> None:
    """Prints the plan, one line per feature, and its totals; with `reasons`, also why."""
    console = make_console()
    table = Table(title="What becomes of each column", title_justify="left")
    table.add_column("feature", style="cyan", no_wrap=True)
    for name in ("type", "number", "id", "statistics used"):
        table.add_column(name, overflow="fold")
    for name in ("ids", "dimension", "bytes"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in result.rows:
        chains = (row.number or "", row.id or "")
        cells = (row.feature, row.column_type, *chains, ", ".join(row.statistics))
        num_ids = "" if row.num_ids is None else f"{row.num_ids:,}"
        size = "" if row.max_bytes is None else format_amount(row.max_bytes, "bytes")
        dimension = str(row.dimension) if row.dimension else ""
        table.add_row(*map(escape, cells), num_ids, dimension, size)
    console.print(table)
    bound = result.max_embedding_bytes
    memory = (
        "unknown before the analysis"
        if bound is None
        else f"at most {format_amount(bound, 'bytes')}"
    )
    console.print(
        f"{result.num_fields} embedded fields, {result.num_numbers} dense inputs; "
        f"embeddings with optimizer state: {memory}"
    )
    if result.max_checkpoint_bytes is not None:
        size = format_amount(result.max_checkpoint_bytes, "bytes")
        console.print(f"checkpoints on disk: at most {size}")
    if result.scans is not None:
        _print_scans(console, result.scans, queries=reasons)
    for row in result.rows if reasons else ():
        decision = ", ".join(filter(None, (row.reason, row.place)))
        console.print(f"[cyan]{escape(row.feature)}[/]: {escape(decision)}", soft_wrap=True)
    for column, reason in result.left_out:
        console.print(f"left out: [cyan]{escape(column)}[/] ({escape(reason)})", soft_wrap=True)
    if result.working_copy is not None:
        print_paths(console, {"working copy": result.working_copy})
    for warning in result.warnings:
        console.print(f"[yellow]warning:[/] {escape(warning)}", soft_wrap=True)
    if not result.exact:
        console.print(
            "Sizes are estimates from the head of the data; 'ctrpipe analyze' counts all."
        )


def _print_scans(console: Console, scans: "ScanPlan", *, queries: bool) -> None:
    """Prints what the statistics read where the rows are; with `queries`, the SQL too."""
    times = "once" if scans.num_scans == 1 else f"{scans.num_scans:,} times"
    size = f", {format_amount(scans.size_bytes, 'bytes')} in all" if scans.size_bytes else ""
    hint = "" if queries else "; -v shows the SQL"
    console.print(
        f"{scans.engine} reads the rows {times} for the statistics, each time "
        f"{escape(scans.each)}{size}{hint}",
        soft_wrap=True,
    )
    for number, cost in enumerate(scans.costs, start=1):
        console.print(f"scan {number}: {escape(cost)}", soft_wrap=True)
    for query in scans.queries if queries else ():
        console.print(escape(query), soft_wrap=True)


def print_statistics(statistics: "Statistics", folder: Path) -> None:
    """Prints the statistics, one line per column."""
    console = make_console()
    title = f"{statistics.num_rows:,} training rows, click rate {statistics.label_rate:.4f}"
    table = Table(title=title, title_justify="left")
    table.add_column("column", style="cyan", no_wrap=True)
    for name in ("type", "missing", "distinct", "min", "mean", "max"):
        table.add_column(name, justify="left" if name == "type" else "right", no_wrap=True)
    for name, column in statistics.columns.items():
        missing = f"{column.num_missing / max(column.count, 1):.1%}"
        moments = column.moments
        numbers = (moments.minimum, moments.mean, moments.maximum) if moments else (None,) * 3
        shown = ("" if number is None else f"{number:,.4g}" for number in numbers)
        cells = (column.column_type.value, missing, f"{column.num_distinct:,}", *shown)
        table.add_row(escape(name), *cells)
    console.print(table)
    for note in statistics.notes:
        console.print(escape(note), soft_wrap=True)
    print_paths(console, {"statistics": folder / "statistics.json"})


def predict_payload(result: "PredictResult") -> dict[str, Any]:
    """Predictions as JSON."""
    return asdict(result)


def print_predictions(result: "PredictResult") -> None:
    """Prints the path of the predictions and a summary."""
    table = facts_table("")
    table.add_row("rows", f"{result.num_rows:,}")
    if result.num_bad_rows:
        table.add_row("bad rows skipped", f"{result.num_bad_rows:,}")
    table.add_row("mean probability", f"{result.mean_probability:.4f}")
    table.add_row("time", format_seconds(result.seconds))
    console = make_console()
    console.print(table)
    print_paths(console, {"predictions": result.output})


def init_payload(result: "InitResult") -> dict[str, Any]:
    """A written config as JSON."""
    return asdict(result)


def print_init(result: "InitResult") -> None:
    """Prints what was found in the data, and what to do next."""
    console = make_console()
    console.print(
        f"{result.num_columns} columns; of {result.num_rows_seen:,} rows looked at, "
        f"{result.label_rate:.1%} have {escape(result.label)} = {escape(result.positive)}"
    )
    for column, reason in result.left_out[:_SHOWN_LEFT_OUT]:
        console.print(f"left out: [cyan]{escape(column)}[/] ({escape(reason)})", soft_wrap=True)
    if (rest := len(result.left_out) - _SHOWN_LEFT_OUT) > 0:
        console.print(f"left out: {rest:,} more columns; the config has the reasons")
    for note in result.notes:
        console.print(note, soft_wrap=True, markup=False)
    print_paths(console, {"config": result.output})
    console.print(f"Next: ctrpipe check {result.output}", soft_wrap=True, markup=False)
    console.print(f"then: ctrpipe run {result.output}", soft_wrap=True, markup=False)


def convert_payload(result: "ConvertResult") -> dict[str, Any]:
    """A conversion as JSON."""
    return asdict(result)


def print_conversion(result: "ConvertResult") -> None:
    """Prints what was written."""
    console = make_console()
    console.print(
        f"{result.num_rows:,} rows of {result.num_columns} columns as {result.format}, "
        f"{format_amount(result.num_bytes, 'bytes')}, in {format_seconds(result.seconds)}"
    )
    if result.num_rounded:
        console.print(
            f"{result.num_rounded:,} numbers have fewer digits now: an Example holds float32",
            soft_wrap=True,
        )
    print_paths(console, {"file": result.output})


def print_sample(summary: "SampleSummary") -> None:
    """Prints the best possible metrics of the sample."""
    table = facts_table("")
    table.add_row("rows", f"{summary.num_rows:,} ({summary.num_test_rows:,} of them test)")
    table.add_row("click rate", f"{summary.click_rate:.4f}")
    table.add_row("test rows with an unseen id", f"{summary.unseen_fraction:.1%}")
    table.add_row("logloss of a constant", f"{summary.base_rate_logloss:.4f}")
    table.add_row("learnable floor", f"{summary.learnable_floor:.4f}")
    table.add_row("best possible logloss (Bayes)", f"{summary.bayes_logloss:.4f}")
    table.add_row("best possible AUC", f"{summary.bayes_auc:.4f}")
    console = make_console()
    console.print(table)
    print_paths(console, {"file": Path(summary.path)})


def print_checks(checks: Sequence["Check"]) -> None:
    """Prints what works on this machine, or in a cluster."""
    colours = {"works": "green", "partly": "yellow", "slow": "yellow", "fails": "red"}
    console = make_console()
    for check in checks:
        colour = colours[check.verdict.value]
        console.print(
            f"[{colour}]{check.verdict.value:<6}[/] [cyan]{check.name:<12}[/] "
            f"{escape(check.found)}",
            soft_wrap=True,
        )
        if check.remedy:
            console.print(f"{'':<19} → {escape(check.remedy)}", soft_wrap=True)
