"""Rows that are not part of the run: predictions and metrics of new files."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.config.models import Config
from ctr_pipeline.dataset.bad_rows import BadRowLedger
from ctr_pipeline.dataset.source import Source
from ctr_pipeline.dataset.stream import inspect_new, stream_rows
from ctr_pipeline.errors import DataError
from ctr_pipeline.pipeline.resources import num_threads
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.pipeline.run_places import load_metrics
from ctr_pipeline.pipeline.stages.evaluate import held_out_shares
from ctr_pipeline.preprocessing.encode import ColumnEncoder
from ctr_pipeline.preprocessing.plan import PreprocessingPlan
from ctr_pipeline.preprocessing.unknown_values import UnknownCounter
from ctr_pipeline.progress import Progress
from ctr_pipeline.training.batches import Prefetcher

if TYPE_CHECKING:
    from ctr_pipeline.pipeline.model.trained_model import TrainedModel


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

    @property
    def unknown(self) -> UnknownCounter:
        """The values that the model does not know, of the rows that were scored so far."""

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
        progress: Has notes on the files.
        unknown: As of `FileScorer`.
    """

    loaded: LoadedConfig
    run: RunFolder
    model: "TrainedModel"
    progress: Progress
    unknown: UnknownCounter

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
            self.loaded,
            plan,
            data,
            label_required=label_required,
            ledger=ledger,
            keep=keep,
            source=look_at_new(self.loaded, data, self.progress),
        )
        encoded = ((batch, encoder.encode(batch)) for batch in batches)
        # TensorFlow leaves a part of the cores idle, which the thread that encodes ahead takes.
        with Prefetcher(encoded, num_ahead=1) as ahead:
            for batch, rows in ahead:
                self.unknown.add(rows.ids, rows.numbers, batch)
                yield ScoredBatch(batch, self.model.scorer.score(rows.ids, rows.numbers))


def look_at_new(loaded: LoadedConfig, data: str, progress: Progress) -> Source:
    """What new files hold; notes on them, such as a column that some lack, become warnings."""
    source = inspect_new(loaded.config.data, data)
    for note in source.notes:
        progress.log(f"warning: {note}")
    return source


def stream_file(
    loaded: LoadedConfig,
    plan: PreprocessingPlan,
    data: str,
    *,
    label_required: bool,
    ledger: BadRowLedger,
    keep: Sequence[str] = (),
    source: Source,
) -> Iterator[pa.RecordBatch]:
    """The good rows of files, with the columns that the model and the results need.

    Args:
        loaded: The config.
        plan: What the model reads.
        data: The files.
        label_required: Whether the label is read.
        ledger: Counts bad rows.
        keep: Columns that the results have beside the scores.
        source: As of `look_at_new`.
    """
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
        sensitive=plan.inputs if config.has_sensitive_columns else (),
        lists=plan.list_columns,
        ledger=ledger,
        threads=num_threads(config.runtime),
        source=source,
    )


def scores_by_job(loaded: LoadedConfig, run: RunFolder) -> bool:
    """Whether members of a job score: the config says so, and the model is one of theirs."""
    return loaded.config.runtime.has_members and (run.job / "spec.json").exists()


def unknown_counter(config: Config, plan: PreprocessingPlan) -> UnknownCounter:
    """Counts unknown values of rows to be scored."""
    return UnknownCounter(plan, show=not config.has_sensitive_columns)


def report_unknown(
    run: RunFolder, unknown: UnknownCounter, progress: Progress, *, place: str, strict: bool
) -> None:
    """Warns of columns that tell the model far less than those of rows held out.

    Args:
        run: The run folder, which tells of those.
        unknown: Unknown values of the rows that were scored.
        place: Their name.
        strict: Whether such a column is an error.

    Raises:
        DataError: There is one, and `strict`; or the folder does not tell.
    """
    held_out = held_out_shares(run, unknown.plan, load_metrics(run))
    if strict and not held_out:
        raise DataError(
            "holds neither metrics nor encoded rows that training held out, to compare with",
            place=str(run.path),
            remedy="Run 'ctrpipe run' with --resume first, or leave out --strict",
        )
    found = unknown.compare(held_out)
    if found and strict:
        raise DataError(
            "; ".join(found),
            place=place,
            remedy="Write these values as the training rows have them, or leave out --strict",
        )
    for sentence in found:
        progress.log(f"warning: {sentence}: are they written as in training?")
