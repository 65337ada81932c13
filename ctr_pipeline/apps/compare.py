"""Compares finished runs: `ctrpipe compare`."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from ctr_pipeline import durable
from ctr_pipeline.apps.outputs import require_output
from ctr_pipeline.config.key_paths import render_key_path, value_at
from ctr_pipeline.config.loader import load_config
from ctr_pipeline.config.resolved import GIVEN_FEATURES
from ctr_pipeline.config.yaml_source import parse_yaml
from ctr_pipeline.dataset.ingested import load_ingested
from ctr_pipeline.dataset.parts import column_names, read_columns
from ctr_pipeline.errors import RunFolderError
from ctr_pipeline.evaluation.auc import exact_auc, roc_points
from ctr_pipeline.evaluation.bootstrap import PairedDifference, paired_bootstrap
from ctr_pipeline.evaluation.calibration import calibration_bins
from ctr_pipeline.evaluation.likelihood import logloss_of_logits
from ctr_pipeline.evaluation.metrics import MeasuredRows
from ctr_pipeline.pipeline.run_folder import RunFolder, find_run
from ctr_pipeline.pipeline.stages.run_metrics import RunMetrics
from ctr_pipeline.progress import Progress, SilentProgress
from ctr_pipeline.reporting import data as page
from ctr_pipeline.reporting.comparison_view import RunView, run_views, setting_text
from ctr_pipeline.reporting.formats import visible_text
from ctr_pipeline.reporting.render import render_comparison
from ctr_pipeline.storage.opening import address_of
from ctr_pipeline.training.history import load_history

_BINS = 10
_AUC_TOLERANCE = 1e-5
_LOGLOSS_TOLERANCE = 1e-4
"""What rounding may put between measured figures and those of the stored probabilities."""

_IGNORED_KEYS = {("name",), ("output",)}
"""Keys that tell runs apart and say nothing about them."""


@dataclass(frozen=True)
class ScoredTest:
    """The test rows of a run with their predictions, in the order of the rows.

    Attributes:
        labels: [N] int8, zeros and ones.
        probabilities: [N] float64.
        keys: The key columns, if there are any.
        weights: [N] float64; None: all rows count alike.
    """

    labels: npt.NDArray[np.int8]
    probabilities: npt.NDArray[np.float64]
    keys: pa.Table
    weights: npt.NDArray[np.float64] | None = None


@dataclass(frozen=True)
class _Run:
    """A finished run; where it cannot be compared, `scored` is the reason as text."""

    name: str
    folder: RunFolder
    config: dict[str, Any]
    metrics: RunMetrics
    scored: ScoredTest | str


@dataclass(frozen=True)
class ComparisonResult:
    """The result of a comparison.

    Attributes:
        shown: The data of the page.
        output: The file of the page, if one was written.
    """

    shown: page.ComparisonData
    output: Path | None

    @property
    def views(self) -> tuple[RunView, ...]:
        """The runs with every figure as text."""
        return run_views(self.shown)

    @property
    def settings(self) -> list[tuple[str, list[str]]]:
        """Keys of the configs that differ, with the value in each run as text."""
        return [
            (visible_text(one.key), [setting_text(value) for value in one.values])
            for one in self.shown.config_differences
        ]

    @property
    def remarks(self) -> list[str]:
        """Why runs could not be compared, then other differences; a sentence each."""
        refused = [f"{run.name} {run.not_compared}." for run in self.shown.runs if run.not_compared]
        return [visible_text(text) for text in (*refused, *self.shown.notes)]

    def to_payload(self) -> dict[str, Any]:
        """The result as JSON values, without the curves."""
        return {
            "runs": [_run_payload(run) for run in self.shown.runs],
            "repeats": self.shown.repeats,
            "config_differences": [one.model_dump() for one in self.shown.config_differences],
            "notes": list(self.shown.notes),
            "output": self.output,
        }


def _run_payload(run: page.ComparedRun) -> dict[str, Any]:
    payload = run.model_dump(mode="json", exclude={"roc", "calibration_bins", "history"})
    for name in ("auc_difference", "logloss_difference"):
        difference = getattr(run, name)
        if difference is not None:
            payload[name]["verdict"] = difference.verdict
    return payload


def compare_runs(
    runs: Sequence[Path],
    *,
    repeats: int = 1000,
    output: Path | None = None,
    overwrite: bool = False,
    progress: Progress,
) -> ComparisonResult:
    """Compares finished runs with the first of them.

    Metrics are compared where two runs scored the same test rows: the same labels and weights in
    the same order, and the same values of key columns that both have. Otherwise the figures are
    shown side by side, with the reason why they cannot be compared.

    Args:
        runs: Run folders, or the configs they belong to; at least two.
        repeats: Bootstrap draws for an interval.
        output: File of the page to write.
        overwrite: Whether to replace an existing file.

    Raises:
        RunFolderError: Fewer than two runs, one named twice, one that is no finished run or is
            damaged, or `output` cannot be written.
        ConfigError: A config that names a run cannot be read.
    """
    if len(runs) < 2:
        raise RunFolderError(
            "one run alone has nothing to be compared with",
            place=str(runs[0]) if runs else None,
            remedy="Name two or more: ctrpipe compare RUN RUN",
        )
    if output is not None:
        require_output(output, overwrite=overwrite)
    folders = [_folder_of(path) for path in runs]
    counted = Counter(folder.path.resolve() for folder in folders)
    for folder in folders:
        if counted[folder.path.resolve()] > 1:
            raise RunFolderError(
                "is named twice", place=str(folder.path), remedy="Name different runs"
            )
    opened = [
        _open_run(name, folder)
        for name, folder in zip(
            distinct_names([folder.path for folder in folders]), folders, strict=True
        )
    ]
    shown = page.ComparisonData(
        created=datetime.now(UTC),
        runs=_compared(opened, repeats, progress),
        repeats=repeats,
        config_differences=differing_settings([run.config for run in opened]),
        notes=_notes(opened),
    )
    if output is not None:
        durable.write_text(output, render_comparison(shown))
    return ComparisonResult(shown, output)


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """Names of paths: their last parts, as many as make all names distinct."""
    # Not resolved: a link keeps its own name.
    parts = [path.absolute().parts for path in paths]
    depth = 1
    while depth < max(map(len, parts)) and len({part[-depth:] for part in parts}) < len(parts):
        depth += 1
    return ["/".join(part[-depth:]) for part in parts]


def differing_settings(configs: Sequence[Mapping[str, Any]]) -> tuple[page.ConfigDifference, ...]:
    """Finds the keys whose values differ between configs, in the order of the configs.

    Lists of one length are compared item by item, others as a whole.
    """
    found: list[page.ConfigDifference] = []
    _collect_differences(list(configs), (), found)
    return tuple(found)


def _collect_differences(
    values: Sequence[Any], path: tuple[str | int, ...], found: list[page.ConfigDifference]
) -> None:
    # Compared as JSON, because True equals 1 in Python.
    if path in _IGNORED_KEYS or len({json.dumps(value) for value in values}) == 1:
        return
    if all(isinstance(value, dict) for value in values):
        for key in dict.fromkeys(key for value in values for key in value):
            _collect_differences([value.get(key) for value in values], (*path, key), found)
    elif (
        all(isinstance(value, list) for value in values)
        and len({len(value) for value in values}) == 1
        and all(isinstance(item, dict) for value in values for item in value)
    ):
        for place in range(len(values[0])):
            _collect_differences([value[place] for value in values], (*path, place), found)
    else:
        found.append(page.ConfigDifference(key=render_key_path(path), values=tuple(values)))


def explain_difference(first: ScoredTest, other: ScoredTest) -> str | None:
    """Why two runs scored different rows, as the end of a sentence; None if they did not."""
    if first.labels.size != other.labels.size:
        return f"{other.labels.size:,} rows beside {first.labels.size:,}"
    differs = np.flatnonzero(first.labels != other.labels)
    if differs.size:
        return f"labels differ, first in row {differs[0] + 1:,}"
    for name in first.keys.column_names:
        if name in other.keys.column_names:
            row = _first_difference(first.keys.column(name), other.keys.column(name))
            if row is not None:
                return f"key column '{name[:40]}' differs, first in row {row + 1:,}"
    if (first.weights is None) != (other.weights is None):
        return "only one of the two counts rows by weight"
    if first.weights is not None and other.weights is not None:
        differs = np.flatnonzero(first.weights != other.weights)
        if differs.size:
            return f"weights differ, first in row {differs[0] + 1:,}"
    return None


def _first_difference(first: pa.ChunkedArray, other: pa.ChunkedArray) -> int | None:
    """The first row in which two columns of one length differ; None if they are equal."""
    if first.type == other.type and first.equals(other):
        return None
    # As texts, so that equal numbers of different types are equal, and so are NaNs.
    for row, (one, two) in enumerate(zip(first.to_pylist(), other.to_pylist(), strict=True)):
        if one != two and str(one) != str(two):
            return row
    return None


def _folder_of(path: Path) -> RunFolder:
    """The run folder of a path, which is its own or that of its config."""
    place = path.expanduser()
    if address_of(place) is not None:
        run = find_run(place)
    elif place.is_file() and place.suffix in {".yaml", ".yml"}:
        run = RunFolder.of(load_config(place).config)
        run.fetch()
    else:
        run = RunFolder(place)
    if not run.path.exists():
        raise RunFolderError(
            "there is no such run",
            place=str(path),
            remedy="Name a run folder, or the config it belongs to",
        )
    if not run.config.is_file():
        raise RunFolderError(
            "is not a run folder: it has no config.resolved.yaml",
            place=str(place),
            remedy="Name the 'output' folder of a run",
        )
    if not run.metrics.is_file():
        raise RunFolderError(
            "is not finished: it has no metrics.json",
            place=str(place),
            remedy="Wait until the run has ended; 'ctrpipe run CONFIG --resume' finishes one that "
            "was stopped, 'ctrpipe export CONFIG' one that was only trained",
        )
    return run


def _open_run(name: str, run: RunFolder) -> _Run:
    config, metrics = _read_config(run), RunMetrics.load(run)
    return _Run(name, run, config, metrics, _read_scored(run, config, metrics.test))


def _read_config(run: RunFolder) -> dict[str, Any]:
    """The resolved config as plain values: that of another version may not be valid here."""
    try:
        values, _ = parse_yaml(run.config.read_text(encoding="utf-8"), str(run.config))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise _damaged(run.config) from error
    if not isinstance(values, dict) or not isinstance(value_at(values, ("model", "name")), str):
        raise _damaged(run.config)
    # The decided features are compared, not the ones given.
    return {key: value for key, value in values.items() if key != GIVEN_FEATURES}


def _damaged(path: Path) -> RunFolderError:
    return RunFolderError(
        "is damaged, or is not what a run wrote",
        place=str(path),
        remedy="Restore it, or run 'ctrpipe run' with its config and --overwrite",
    )


def _read_scored(
    run: RunFolder, config: Mapping[str, Any], test: MeasuredRows | None
) -> ScoredTest | str:
    """Reads the scored test rows, or says why there are none to compare."""
    if test is None:
        return "has no test rows"
    if not run.predictions.exists():
        return "has no predictions.parquet"
    try:
        table = pq.read_table(run.predictions)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(run.predictions) from error
    scored = _scored_of(table, run)
    weight = value_at(config, ("data", "weight"))
    if isinstance(weight, str):
        weights = _weights_of(weight, scored.keys, run)
        if weights is None:
            return "counts rows by weights, which its folder no longer holds (cache/ingested)"
        scored = ScoredTest(scored.labels, scored.probabilities, scored.keys, weights)
    if not _is_measured(scored, test):
        return "has a predictions.parquet that is not the one its metrics.json measured"
    return scored


def _scored_of(table: pa.Table, run: RunFolder) -> ScoredTest:
    """Checks and converts the columns of `predictions.parquet`.

    Raises:
        RunFolderError: They are not those that a run writes.
    """
    if not {"label", "probability"} <= set(table.column_names):
        raise _damaged(run.predictions)
    labels, probabilities = table.column("label"), table.column("probability")
    fits = (
        pa.types.is_integer(labels.type)
        and pa.types.is_floating(probabilities.type)
        and labels.null_count == probabilities.null_count == 0
    )
    if not fits:
        raise _damaged(run.predictions)
    numbers = labels.to_numpy()
    chances = probabilities.to_numpy().astype(np.float64, copy=False)
    if not (np.isin(numbers, (0, 1)).all() and ((chances >= 0) & (chances <= 1)).all()):
        raise _damaged(run.predictions)
    keys = table.drop_columns(["label", "probability"])
    return ScoredTest(numbers.astype(np.int8, copy=False), chances, keys)


def _weights_of(column: str, keys: pa.Table, run: RunFolder) -> npt.NDArray[np.float64] | None:
    """Weights of the test rows, from the key columns or the cache; None if they are gone."""
    if column in keys.column_names:
        weights = keys.column(column)
    else:
        ingested = load_ingested(run.ingested)
        if ingested is None or "test" not in ingested.splits:
            return None
        files = ingested.splits["test"].files
        if column not in column_names(files):
            return None
        weights = read_columns(files, [column]).column(column)
    if not (pa.types.is_floating(weights.type) or pa.types.is_integer(weights.type)):
        return None
    return np.asarray(weights.to_numpy(), dtype=np.float64)


def _is_measured(scored: ScoredTest, test: MeasuredRows) -> bool:
    """Whether predictions, with the weights found, give the figures of `metrics.json`.

    They may not: `ctrpipe evaluate` rewrites only one of them, and the cache may be newer.
    """
    if (scored.labels.size, int(scored.labels.sum())) != (test.num_rows, test.num_positive):
        return False
    if not 0 < test.num_positive < test.num_rows:
        return False
    weights = scored.weights
    if weights is not None:
        fits = weights.size == test.num_rows and np.all((weights >= 0) & (weights < np.inf))
        if not fits or not all(weights[scored.labels == label].any() for label in (0, 1)):
            return False
    auc = exact_auc(scored.labels, scored.probabilities, weights=weights)
    logloss = logloss_of_logits(scored.labels, logits_of(scored.probabilities), weights)
    allowed = _LOGLOSS_TOLERANCE * max(1.0, test.logloss)
    return abs(auc - test.auc) <= _AUC_TOLERANCE and abs(logloss - test.logloss) <= allowed


def logits_of(probabilities: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Inverts the sigmoid; the logits of probabilities that were rounded to 0 or 1 are finite."""
    clipped = np.clip(probabilities, np.finfo(np.float64).tiny, 1 - np.finfo(np.float64).epsneg)
    logits: npt.NDArray[np.float64] = np.log(clipped) - np.log1p(-clipped)
    return logits


def _compared(
    runs: Sequence[_Run], repeats: int, progress: Progress
) -> tuple[page.ComparedRun, ...]:
    """The runs as they are shown, each compared with the first where that is possible."""
    first = runs[0]
    reasons = [_reason(first, run) for run in runs]
    pairs = sum(reason is None for reason in reasons[1:])
    shown = []
    shower = progress if pairs else SilentProgress()
    with shower.task("Bootstrap", total=2 * pairs, unit="intervals") as task:
        for run, reason in zip(runs, reasons, strict=True):
            found: dict[str, Any] = {"not_compared": reason}
            if reason is None and isinstance(run.scored, ScoredTest):
                found |= _curves(run.scored)
            if reason is None and run is not first:
                metrics: tuple[Literal["auc", "logloss"], ...] = ("auc", "logloss")
                for metric in metrics:
                    found[f"{metric}_difference"] = _difference(run, first, metric, repeats)
                    task.advance(1)
            shown.append(_shown(run, found))
    return tuple(shown)


def _reason(first: _Run, run: _Run) -> str | None:
    """Why a run is not compared with the first, as a sentence after its name; None if it is."""
    if isinstance(run.scored, str):
        return run.scored
    if isinstance(first.scored, str):
        return f"is not compared, for '{first.name}' {first.scored}"
    differs = explain_difference(first.scored, run.scored)
    if differs is None:
        return None
    return f"scored other test rows than '{first.name}' ({differs}), so it is not compared"


def _difference(
    run: _Run, first: _Run, metric: Literal["auc", "logloss"], repeats: int
) -> PairedDifference | None:
    if isinstance(run.scored, str) or isinstance(first.scored, str):
        return None
    ours, base = run.scored.probabilities, first.scored.probabilities
    if metric == "logloss":
        ours, base = logits_of(ours), logits_of(base)
    return paired_bootstrap(
        run.scored.labels, ours, base, metric, weights=run.scored.weights, repeats=repeats
    )


def _curves(scored: ScoredTest) -> dict[str, Any]:
    return {
        "roc": roc_points(scored.labels, scored.probabilities, weights=scored.weights),
        "calibration_bins": calibration_bins(
            scored.labels, scored.probabilities, _BINS, scored.weights
        ),
    }


def _shown(run: _Run, found: Mapping[str, Any]) -> page.ComparedRun:
    metrics, training = run.metrics, run.metrics.training
    return page.ComparedRun(
        name=run.name,
        folder=str(run.folder.path),
        model=value_at(run.config, ("model", "name")),
        test=metrics.test,
        valid=metrics.valid,
        history=tuple(load_history(_history_of(run.folder))),
        num_training_rows=training.num_refit_rows() or metrics.num_rows.get("train"),
        num_epochs=training.epochs,
        best_epoch=training.best_epoch,
        training_seconds=metrics.timings_seconds.get("training"),
        num_dense_parameters=training.dense_parameters,
        # 0 where parameter servers held the rows.
        num_embedding_rows=training.embedding_rows or None,
        **found,
    )


def _history_of(run: RunFolder) -> Path:
    """The learning curve of a run; of an ensemble, that of its first model."""
    trained = run.trained_folders()
    return trained[0].history if trained and not run.history.exists() else run.history


def _notes(runs: Sequence[_Run]) -> tuple[str, ...]:
    """Notes on ensembles and on learning curves of different validation rows."""
    first = runs[0]
    notes = [
        f"{run.name} is an ensemble of {len(run.metrics.training.members)} models: its learning "
        "curve is that of the first, all else is of all together."
        for run in runs
        if run.metrics.training.members
    ]
    for run in runs[1:]:
        ours, theirs = run.metrics.valid, first.metrics.valid
        if ours is None or theirs is None:
            continue
        if (ours.num_rows, ours.num_positive) != (theirs.num_rows, theirs.num_positive):
            notes.append(
                f"Learning curves of {run.name} and {first.name} are of different validation rows: "
                f"{ours.num_rows:,} with {ours.num_positive:,} clicks beside "
                f"{theirs.num_rows:,} with {theirs.num_positive:,}."
            )
    return tuple(notes)
