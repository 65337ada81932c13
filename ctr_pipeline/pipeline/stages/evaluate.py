"""Trained parameters → metrics and predictions."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ctr_pipeline import durable
from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.config.models import Config, ReportConfig
from ctr_pipeline.dataset.encoded import EncodedReader, load_meta
from ctr_pipeline.dataset.ingested import IngestedRows
from ctr_pipeline.dataset.parts import read_columns
from ctr_pipeline.evaluation.importance import ImportanceRow, importance_of, shuffled_orders
from ctr_pipeline.evaluation.likelihood import probabilities_of
from ctr_pipeline.evaluation.metrics import EvaluationResult, evaluate_predictions
from ctr_pipeline.pipeline.context import RunContext
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.preprocessing.plan import PreprocessingPlan
from ctr_pipeline.preprocessing.unknown_values import ROWS_OF_BATCH, Shares, UnknownCounter
from ctr_pipeline.progress import Progress
from ctr_pipeline.reporting.findings import on_result
from ctr_pipeline.reporting.formats import SPLIT_TITLES
from ctr_pipeline.training.scoring import ScoredRows

if TYPE_CHECKING:
    from ctr_pipeline.pipeline.model.trained_model import TrainedModel


_AUTO_SECONDS = 5.0
_AUTO_SHARE_OF_TRAINING = 0.1
"""What `importance: auto` may take: so many seconds, or this share of the training's."""

_MOST_HELD_OUT = 200_000

SplitScorer = Callable[[str, Path], ScoredRows]
"""Logits and labels of a split: its name, and the folder of its encoded rows."""


def held_out(folders: Mapping[str, Path]) -> dict[str, Path]:
    """Splits that no training step reads, of those that are encoded."""
    return {name: folders[name] for name in ("valid", "test") if name in folders}


def not_trained_on(config: Config, folders: Mapping[str, Path]) -> dict[str, Path]:
    """Splits that the model is evaluated on, of those that are encoded."""
    return {"test": folders["test"]} if config.train.refit else held_out(folders)


def run_evaluation(
    context: RunContext,
    ingested: IngestedRows,
    folders: Mapping[str, Path],
    score: SplitScorer,
    *,
    predictions: Path,
) -> dict[str, EvaluationResult]:
    """Exact metrics of the validation and test rows; writes the predictions of the test rows.

    Args:
        ingested: The rows as they were read.
        folders: Folders of encoded rows by split; a split without one is not evaluated.
        predictions: The file of predictions of the test rows.
    """
    loaded = context.loaded
    results: dict[str, EvaluationResult] = {}
    training = ingested.splits["train"]
    with context.times.stage("evaluation"):
        for split in ("valid", "test"):
            if split not in folders:
                continue
            scored = score(split, folders[split])
            carried = _carried(loaded, ingested.splits[split].files)
            results[split] = measure(
                loaded.config,
                scored,
                carried,
                baseline_rate=training.label_rate,
                place=f"{split} rows",
            )
            if split == "test":
                keys = carried.select(list(loaded.config.data.key_columns))
                save_predictions(predictions, keys, scored)
    return results


def measure(
    config: Config,
    scored: ScoredRows,
    carried: pa.Table,
    *,
    baseline_rate: float | None = None,
    place: str,
) -> EvaluationResult:
    """All metrics that a config asks for.

    Args:
        carried: Weights, and the columns that rows are grouped by, of the same rows.
        baseline_rate: Probability that the constant baseline predicts; None: the label rate of
            these rows.
        place: Name of the rows in error messages, such as `test rows`.
    """
    weight, wanted = config.data.weight, config.evaluation
    return evaluate_predictions(
        scored.labels,
        scored.logits,
        weights=None if weight is None else carried.column(weight).to_numpy(),
        groups=None if wanted.gauc_column is None else carried.column(wanted.gauc_column),
        by={name: carried.column(name) for name in wanted.group_by},
        bins=wanted.calibration_bins,
        baseline_rate=baseline_rate,
        place=place,
    )


def findings_on(result: EvaluationResult, split: str) -> list[dict[str, str]]:
    """Findings on the metrics of a split, for `metrics.json` and the terminal."""
    return [asdict(finding) for finding in on_result(result, SPLIT_TITLES.get(split, split))]


def held_out_unknown(plan: PreprocessingPlan, encoded: Path) -> dict[str, dict[str, float]]:
    """Shares of values that are in no vocabulary, or missing, of the first encoded rows."""
    counter = UnknownCounter(plan, show=False)
    with EncodedReader(encoded) as reader:
        num_rows = min(_MOST_HELD_OUT, reader.meta.num_rows)
        for first in range(0, num_rows, ROWS_OF_BATCH):
            rows = reader.read_range(first, min(ROWS_OF_BATCH, num_rows - first))
            counter.add(rows.ids_BF, rows.numbers_BN)
    return counter.shares()


def held_out_shares(run: RunFolder, plan: PreprocessingPlan, metrics: Mapping[str, Any]) -> Shares:
    """As `held_out_unknown`: of `metrics`, or of encoded rows if the run is not finished.

    Empty if neither is there.
    """
    if "missing_values" in metrics:
        return metrics
    folders = [run.encoded / split for split in ("test", "valid")]
    encoded = next((one for one in folders if load_meta(one) is not None), None)
    return {} if encoded is None else held_out_unknown(plan, encoded)


def decide_importance(report: ReportConfig, *, seconds: float, training_seconds: float) -> bool:
    """Whether importance is measured.

    Args:
        seconds: Estimate for all features and shuffles together.
        training_seconds: Duration of the training, all epochs and models together.
    """
    if report.importance == "auto":
        return seconds <= max(_AUTO_SECONDS, _AUTO_SHARE_OF_TRAINING * training_seconds)
    return report.importance


def run_importance(
    context: RunContext, encoded: Path, model: "TrainedModel", *, split: str
) -> tuple[ImportanceRow, ...]:
    """How much worse logloss gets when a feature is shuffled, the most important feature first.

    It is measured on the first rows of a split, whose encoded rows lie in the folder `encoded`.
    Empty where the config turns it off; also, with a line in the log, where it would take long or
    all rows are of one class.
    """
    plan, config, progress = model.plan, context.config, context.progress
    columns, repeats = plan.features, config.report.importance_repeats
    if config.report.importance is False:
        return ()
    with EncodedReader(encoded) as reader:
        rows = reader.read_range(0, min(config.report.importance_rows, reader.meta.num_rows))
    counted = rows.labels_B if rows.weights_B is None else rows.labels_B[rows.weights_B > 0]
    if len(np.unique(counted)) < 2:
        progress.log(
            f"Importance is left out: the first {rows.num_rows:,} {split} rows are of one class "
            "(report.importance_rows)"
        )
        return ()
    with context.times.stage("importance"):
        # The first call may compile the model, which no shuffle waits for again.
        model.scorer.score(rows.ids_BF[:1], rows.numbers_BN[:1])
        started = time.perf_counter()
        before = model.scorer.score(rows.ids_BF, rows.numbers_BN)
        seconds = (time.perf_counter() - started) * len(columns) * repeats
        if not decide_importance(
            config.report, seconds=seconds, training_seconds=_training_seconds(model)
        ):
            progress.log(
                f"Importance is left out: it would take about {seconds:.0f} s "
                "(report.importance: true measures it)"
            )
            return ()
        orders = shuffled_orders(rows.num_rows, config.train.seed)
        found = []
        with progress.task("Importance", total=len(columns), unit="features") as task:
            for column in columns:
                positions, floats = plan.places_of(column)
                after = []
                for order in islice(orders, repeats):
                    ids, numbers = rows.ids_BF.copy(), rows.numbers_BN.copy()
                    ids[:, positions] = ids[:, positions][order]
                    numbers[:, floats] = numbers[:, floats][order]
                    after.append(model.scorer.score(ids, numbers))
                found.append(importance_of(column, rows.labels_B, before, after, rows.weights_B))
                task.advance(1)
    return tuple(sorted(found, key=lambda row: row.logloss_rise, reverse=True))


def _training_seconds(model: "TrainedModel") -> float:
    """Seconds of all epochs, those before a resumption included, of all models of an ensemble."""
    states = [member.state for member in model.members] or [model.state]
    return sum(record.seconds for state in states for record in state.history)


def save_predictions(path: Path, keys: pa.Table, scored: ScoredRows) -> None:
    """Writes keys, `label` and `probability`, in the order of the rows."""
    # A list and not `append_column`: a table without columns forgets its number of rows.
    columns = {name: keys.column(name) for name in keys.column_names}
    columns["label"] = pa.array(scored.labels.astype(np.int8))
    columns["probability"] = pa.array(probabilities_of(scored.logits))
    table = pa.table(columns)
    with durable.durable_write(path) as file:
        pq.write_table(table, file)


def split_scorer(model: "TrainedModel", progress: Progress) -> SplitScorer:
    """Scores splits with a model, or loads the scores that workers wrote."""

    def score(split: str, folder: Path) -> ScoredRows:
        if model.scores is not None:
            return model.scores.load(split, folder)
        with (
            EncodedReader(folder) as reader,
            progress.task(f"Scoring {split}", total=reader.meta.num_rows) as task,
        ):
            return model.scorer.score_split(reader, task)

    return score


def _carried(loaded: LoadedConfig, files: Sequence[Path]) -> pa.Table:
    """Key columns, weights and the columns that rows are grouped by."""
    config = loaded.config
    weight = [] if config.data.weight is None else [config.data.weight]
    wanted = dict.fromkeys([*config.data.key_columns, *config.evaluation.columns, *weight])
    return read_columns(files, list(wanted))
