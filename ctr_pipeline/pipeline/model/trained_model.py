"""A trained model, and the checks that its parameters belong to the rows and transforms."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ctr_pipeline.config.models import Config
from ctr_pipeline.distributed.master.status import JobView
from ctr_pipeline.embeddings.counts import IdCounts
from ctr_pipeline.errors import CheckpointError
from ctr_pipeline.pipeline.model.embedding_rows import (
    ReadableRows,
    TrainedRows,
    memory_limit_of,
)
from ctr_pipeline.pipeline.model.ensemble import TrainedMember, num_rows_made
from ctr_pipeline.pipeline.model.parameters import Parameters, build_parameters
from ctr_pipeline.pipeline.model.score_files import ScoreFiles
from ctr_pipeline.pipeline.resources import thread_shares
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.preprocessing.encode import ColumnEncoder
from ctr_pipeline.preprocessing.plan import PreprocessingPlan
from ctr_pipeline.preprocessing.unknown_values import UnknownCounter
from ctr_pipeline.training.compiled import CompiledModel
from ctr_pipeline.training.ensemble import Network, RowScorer
from ctr_pipeline.training.lookup import DenseValues
from ctr_pipeline.training.scoring import Scorer
from ctr_pipeline.training.trainer import TrainingState


@dataclass(frozen=True)
class RowCounts:
    """Embedding rows of a trained model.

    Attributes:
        num_rows: Rows that training made.
        num_bytes: Memory that they take.
        num_spilled_bytes: Bytes in files, beyond a memory limit.
    """

    num_rows: int
    num_bytes: int
    num_spilled_bytes: int


@dataclass(frozen=True)
class TrainedModel:
    """A model with its parameters, ready to score and to export.

    Attributes:
        plan: Fitted transforms.
        compiled: The dense part.
        rows: Embedding rows.
        dense: Dense parameters.
        scorer: Ids and numbers → logits.
        state: State at the end of training; of an ensemble, that of its first model.
        scores: Logits of the splits, where they are known already.
        job: The job of several processes that trained it; None: there was none.
        members: The models of an ensemble; empty for one model.
    """

    plan: PreprocessingPlan
    compiled: Network
    rows: TrainedRows
    dense: DenseValues
    scorer: RowScorer
    state: TrainingState
    scores: ScoreFiles | None = None
    job: JobView | None = None
    members: tuple[TrainedMember, ...] = ()

    @classmethod
    def of(
        cls,
        plan: PreprocessingPlan,
        compiled: CompiledModel,
        rows: ReadableRows,
        dense: DenseValues,
        state: TrainingState,
    ) -> "TrainedModel":
        """One model, which its own rows and dense parameters score."""
        return cls(plan, compiled, rows, dense, Scorer(compiled, rows, dense), state)

    def count_rows(self) -> RowCounts:
        """Counts the rows and the bytes they take; call it before `release_rows`."""
        return RowCounts(
            num_rows_made(self.rows), self.rows.memory_bytes(), self.rows.spilled_bytes()
        )

    def release_rows(self) -> None:
        """Frees the memory or the files of the rows; the model can no longer score."""
        self.rows.release()


def initial_parameters(
    config: Config,
    run: RunFolder,
    plan: PreprocessingPlan,
    counts: Sequence[IdCounts] | None,
    compiled: CompiledModel,
) -> Parameters:
    """Builds the parameters that training begins with, or that a checkpoint replaces.

    Args:
        config: The config.
        run: Where rows beyond the memory limit lie.
        plan: Fitted transforms.
        counts: Occurrences of each id in the training rows; None where nothing is trained.
        compiled: The dense part.
    """
    return build_parameters(
        config,
        plan,
        counts,
        compiled.initial_parameters(),
        threads=thread_shares(config.runtime).rows,
        memory_limit=memory_limit_of(config, run.path),
    )


def sorting_folder(run: RunFolder) -> Path:
    """Makes the folder on whose disk rows are sorted by key."""
    folder = run.path / "cache"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def require_same_plan(state: TrainingState, plan: PreprocessingPlan, run: RunFolder) -> None:
    """Refuses parameters that were trained with other transforms.

    Raises:
        CheckpointError: They were.
    """
    if state.plan_fingerprint != plan.fingerprint():
        raise CheckpointError(
            "was trained with other transforms than those that lie beside it now",
            place=str(run.path),
            remedy="Run 'ctrpipe run' with --overwrite: data or config changed since then",
        )


def require_same_rows(state: TrainingState, fingerprint: str, run: RunFolder) -> None:
    """Refuses parameters that were trained on other rows or with other transforms.

    Raises:
        CheckpointError: The data changed since.
    """
    if state.rows_fingerprint != fingerprint:
        raise CheckpointError(
            "the data changed since the model was trained",
            place=str(run.path),
            remedy="Run 'ctrpipe run' with --overwrite to train on it from the start",
        )


def score_table(
    rows: pa.Table, run: RunFolder, model: TrainedModel, unknown: UnknownCounter | None = None
) -> NDArray[np.float32]:
    """Computes the logits of raw rows (float64 and text columns), as the trainer does.

    Args:
        rows: The columns of the plan.
        run: Its folder.
        model: What scores.
        unknown: Counts the values that the model does not know.
    """
    encoder = ColumnEncoder(model.plan, run.path)
    logits = [np.empty(0, np.float32)]
    for batch in rows.combine_chunks().to_batches():
        encoded = encoder.encode(batch)
        if unknown is not None:
            unknown.add(encoded.ids, encoded.numbers, batch)
        logits.append(model.scorer.score(encoded.ids, encoded.numbers))
    return np.concatenate(logits)
