"""Rows that are not part of the run: predictions and metrics of new files."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ctr_pipeline import durable
from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.dataset.bad_rows import BadRowLedger
from ctr_pipeline.dataset.paths import paths_of
from ctr_pipeline.dataset.stream import stream_rows
from ctr_pipeline.errors import DataError
from ctr_pipeline.evaluation.likelihood import probabilities_of
from ctr_pipeline.evaluation.metrics import EvaluationResult
from ctr_pipeline.pipeline.evaluation_stage import measure
from ctr_pipeline.pipeline.outputs import require_output
from ctr_pipeline.pipeline.resources import num_threads
from ctr_pipeline.pipeline.results import PredictResult
from ctr_pipeline.pipeline.trained_model import TrainedModel
from ctr_pipeline.pipeline.workspace import RunFolder
from ctr_pipeline.preprocessing.encode import ColumnEncoder
from ctr_pipeline.preprocessing.fitted import PreprocessingPlan
from ctr_pipeline.progress import Progress
from ctr_pipeline.training.batches import Prefetcher
from ctr_pipeline.training.scoring import ScoredRows

_PROBABILITY = "probability"


@dataclass(frozen=True)
class ScoredBatch:
    """Some rows of a new file with their scores.

    Attributes:
        rows: As they were read.
        logits: float32, one a row.
    """

    rows: pa.RecordBatch
    logits: NDArray[np.float32]


class FileScorer(Protocol):
    """Scores rows of new files, wherever the model is."""

    def score_file(
        self,
        data: str,
        *,
        label_required: bool,
        ledger: BadRowLedger,
        keep: Sequence[str] = (),
    ) -> Iterator[ScoredBatch]:
        """The good rows of files with their scores, in their order.

        Args:
            data: File or glob.
            label_required: A row without a label is a bad one, and rows have the columns that the
                config measures by; else labels are not looked at.
            ledger: Is told of bad rows.
            keep: Columns that the rows have beside those of the model and the key columns.
        """


@dataclass(frozen=True)
class ModelScorer:
    """Scores in this process.

    Attributes:
        loaded: The config.
        run: The run folder.
        model: Loaded from it.
    """

    loaded: LoadedConfig
    run: RunFolder
    model: TrainedModel

    def score_file(
        self,
        data: str,
        *,
        label_required: bool,
        ledger: BadRowLedger,
        keep: Sequence[str] = (),
    ) -> Iterator[ScoredBatch]:
        """As `FileScorer.score_file`."""
        plan = self.model.plan
        encoder = ColumnEncoder(plan, self.run.path)
        batches = stream_file(
            self.loaded, plan, data, label_required=label_required, ledger=ledger, keep=keep
        )
        encoded = ((batch, encoder.encode(batch)) for batch in batches)
        # TensorFlow leaves a part of the cores idle, which the thread that encodes ahead takes.
        with Prefetcher(encoded, num_ahead=1) as ahead:
            for batch, rows in ahead:
                yield ScoredBatch(batch, self.model.scorer.score(rows.ids, rows.numbers))


def stream_file(
    loaded: LoadedConfig,
    plan: PreprocessingPlan,
    data: str,
    *,
    label_required: bool,
    ledger: BadRowLedger,
    keep: Sequence[str] = (),
) -> Iterator[pa.RecordBatch]:
    """The good rows of files, with the columns that the model and the results need."""
    config, kept_by = loaded.config, "--keep"
    if label_required:
        keep, kept_by = [*keep, *config.evaluation.columns], "evaluation.group_by (or --by)"
    return stream_rows(
        config.data,
        data,
        plan.inputs,
        label_required=label_required,
        extra_columns=config.data.key_columns,
        kept_columns=keep,
        kept_by=kept_by,
        lists=plan.list_columns,
        ledger=ledger,
        threads=num_threads(config.runtime),
    )


def predict_file(
    loaded: LoadedConfig,
    scorer: FileScorer,
    *,
    data: str,
    output: Path,
    keep: Sequence[str] = (),
    overwrite: bool = False,
    progress: Progress,
) -> PredictResult:
    """Writes `probability` beside the carried columns of every good row, in the order of the rows.

    Args:
        loaded: The config, whose key columns are carried.
        scorer: Of the trained model.
        data: File or glob.
        output: A new file, Parquet or CSV by its ending.
        keep: More columns to carry.
        overwrite: Replace a file that stands at `output`.
        progress: Who is told.

    Raises:
        DataError: The output cannot be, or a column to carry is not there.
    """
    started = time.perf_counter()
    if output.suffix not in {".parquet", ".csv"}:
        raise DataError(
            "predictions are written as Parquet or CSV",
            place=str(output),
            remedy="Give --output a name that ends in .parquet or .csv",
        )
    trained_on = (loaded.config.data.train, loaded.config.data.valid, loaded.config.data.test)
    require_output(
        output,
        overwrite=overwrite,
        reads=[data],
        spares=[path for paths in trained_on if paths is not None for path in paths_of(paths)],
    )
    ledger = BadRowLedger(loaded.config.data.bad_rows, loaded.config.data.max_bad_fraction)
    _check_kept(keep)
    keys = list(dict.fromkeys([*loaded.config.data.key_columns, *keep]))
    schema = pa.schema([*((key, pa.string()) for key in keys), (_PROBABILITY, pa.float32())])
    num_rows, total = 0, 0.0
    batches = scorer.score_file(data, label_required=False, ledger=ledger, keep=keep)
    with durable.durable_write(output) as file, progress.task("Predicting", total=None) as task:
        writer = (
            pq.ParquetWriter(file, schema)
            if output.suffix == ".parquet"
            else pa_csv.CSVWriter(file, schema)
        )
        with writer:
            for scored in batches:
                probabilities = probabilities_of(scored.logits).astype(np.float32)
                columns = [scored.rows.column(key).cast(pa.string()) for key in keys]
                columns.append(pa.array(probabilities))
                writer.write_batch(pa.record_batch(columns, schema=schema))
                num_rows += len(probabilities)
                total += float(probabilities.sum(dtype=np.float64))
                task.advance(len(probabilities))
    return PredictResult(
        output=output,
        num_rows=num_rows,
        num_bad_rows=ledger.close().total,
        mean_probability=total / num_rows if num_rows else 0.0,
        seconds=time.perf_counter() - started,
    )


def _check_kept(keep: Sequence[str]) -> None:
    for name in keep:
        if not name:
            raise DataError(
                "an empty name is among the columns",
                place="--keep",
                remedy="Write names with commas between, such as --keep user,day",
            )
        if name == _PROBABILITY:
            raise DataError(
                f"'{name}' is what predictions are called in the output",
                place="--keep",
                remedy="Give the column of the data another name",
            )


def evaluate_file(
    loaded: LoadedConfig, scorer: FileScorer, *, data: str, progress: Progress
) -> EvaluationResult:
    """Exact metrics of a new file that has labels."""
    config = loaded.config
    ledger = BadRowLedger(config.data.bad_rows, config.data.max_bad_fraction)
    weight = [] if config.data.weight is None else [config.data.weight]
    carried, logits = [], []
    batches = scorer.score_file(data, label_required=True, ledger=ledger)
    with progress.task("Evaluating", total=None) as task:
        for scored in batches:
            columns = dict.fromkeys([config.data.label, *weight, *config.evaluation.columns])
            carried.append(scored.rows.select(list(columns)))
            logits.append(scored.logits)
            task.advance(len(scored.logits))
    if not logits:
        raise DataError("holds no good row", place=data)
    rows = pa.Table.from_batches(carried)
    labels = rows.column(config.data.label).to_numpy().astype(np.float32)
    return measure(config, ScoredRows(labels, np.concatenate(logits)), rows, place=data)


def score_table(rows: pa.Table, run: RunFolder, model: TrainedModel) -> NDArray[np.float32]:
    """The trainer's logits of rows as they are read: float64 and text columns."""
    encoder = ColumnEncoder(model.plan, run.path)
    logits = [np.empty(0, np.float32)]
    for batch in rows.combine_chunks().to_batches():
        encoded = encoder.encode(batch)
        logits.append(model.scorer.score(encoded.ids, encoded.numbers))
    return np.concatenate(logits)
