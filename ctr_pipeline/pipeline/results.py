"""Results of the pipeline, for the command line and notebooks."""

import html
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from ctr_pipeline.pipeline.stages.statistics_engines.protocol import ScanPlan
    from ctr_pipeline.reporting.data import PlanRow


_SHOWN = (
    ("auc", "AUC", "{:.4f}"),
    ("logloss", "logloss", "{:.4f}"),
    ("calibration", "calibration", "{:.3f}"),
    ("gauc", "GAUC", "{:.4f}"),
)


def headline(metrics: Mapping[str, Any]) -> str:
    """The metrics of the test rows, or of the validation rows, on a line."""
    split = "test" if "test" in metrics else "valid"
    found = metrics.get(split)
    if not found:
        return "not evaluated yet"
    texts = [f"{name} {form.format(found[key])}" for key, name, form in _SHOWN if found.get(key)]
    return f"{split} {', '.join(texts)}"


def metrics_html(title: str, metrics: Mapping[str, Any], more: Mapping[str, Any] = {}) -> str:
    """The metrics of both splits as a small table, for notebooks.

    Args:
        title: Heading of the table.
        metrics: As in `metrics.json`.
        more: Names and values shown below the table.
    """
    splits = [name for name in ("test", "valid") if name in metrics]
    head = "".join(f"<th>{name}</th>" for name in ("", *splits))
    lines = []
    for key, name, form in (*_SHOWN, ("num_rows", "rows", "{:,}")):
        values = [metrics[split].get(key) for split in splits]
        if any(value is not None for value in values):
            cells = "".join(f"<td>{form.format(one) if one else '–'}</td>" for one in values)
            lines.append(f"<tr><th>{name}</th>{cells}</tr>")
    table = f"<table><tr>{head}</tr>{''.join(lines)}</table>" if splits else "not evaluated yet"
    facts = "".join(
        f"<div>{html.escape(name)}: {html.escape(str(text))}</div>" for name, text in more.items()
    )
    return f"<div><b>{html.escape(title)}</b>{table}{facts}</div>"


@dataclass(frozen=True, repr=False)
class RunResult:
    """A finished run, or the part of it that was asked for.

    Attributes:
        folder: The run folder.
        metrics: As in `metrics.json`: "valid", "test", "findings", "timings_seconds", …; empty
            before the evaluation.
        timings_seconds: Seconds of each stage.
        paths: Artefacts that exist, by name: "report", "export", "metrics", …
        num_rows: Rows by split.
    """

    folder: Path
    metrics: dict[str, Any]
    timings_seconds: dict[str, float]
    paths: dict[str, Path | str]
    num_rows: dict[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<RunResult {self.folder}: {headline(self.metrics)}>"

    def _repr_html_(self) -> str:
        return metrics_html(str(self.folder), self.metrics, self.paths)

    @property
    def predictions(self) -> "pd.DataFrame":
        """Predictions of the test rows, in the order of the rows: keys, `label`, `probability`."""
        import pandas as pd

        return pd.read_parquet(self.folder / "predictions.parquet")


@dataclass(frozen=True)
class CheckResult:
    """The resolved plan.

    Attributes:
        rows: One row per feature.
        left_out: Columns without a feature, with the reason.
        exact: Whether it rests on the statistics of all training rows, not on the head of the data
            alone.
        num_fields: Embedded fields.
        num_numbers: Dense inputs.
        max_embedding_bytes: Upper bound of the rows' memory; None if unknown.
        warnings: Warnings, a sentence each.
        max_checkpoint_bytes: Upper bound of the checkpoints of a run in several processes, on disk;
            None in local mode.
        scans: What the statistics read where the rows are; None if rows are counted here.
        working_copy: Folder on this disk for a run at an address; None for one in a folder.
    """

    rows: "tuple[PlanRow, ...]"
    left_out: tuple[tuple[str, str], ...]
    exact: bool
    num_fields: int
    num_numbers: int
    max_embedding_bytes: int | None
    warnings: tuple[str, ...] = ()
    max_checkpoint_bytes: int | None = None
    scans: "ScanPlan | None" = None
    working_copy: Path | None = None


@dataclass(frozen=True)
class PredictResult:
    """Predictions of unseen rows.

    Attributes:
        output: The file or address that was written.
        num_rows: Rows predicted.
        num_bad_rows: Rows skipped.
        mean_probability: Mean prediction.
        seconds: Seconds from start to end.
    """

    output: str
    num_rows: int
    num_bad_rows: int
    mean_probability: float
    seconds: float
