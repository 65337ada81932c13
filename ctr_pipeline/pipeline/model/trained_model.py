"""A model with its parameters: as it is trained in this process, opened again, and used."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.config.models import Config
from ctr_pipeline.embeddings.dense import DenseParameters
from ctr_pipeline.embeddings.store import EmbeddingStore
from ctr_pipeline.embeddings.stored_rows import StoredRows
from ctr_pipeline.errors import CheckpointError
from ctr_pipeline.pipeline.job.score_files import ScoreFiles
from ctr_pipeline.pipeline.model.dense_model import compile_model
from ctr_pipeline.pipeline.model.embedding_rows import (
    TrainedRows,
    build_store,
    lookup_of,
    memory_limit_of,
)
from ctr_pipeline.pipeline.model.ensemble import TrainedMember, num_rows_made
from ctr_pipeline.pipeline.resources import thread_shares
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.preprocessing.encode import ColumnEncoder
from ctr_pipeline.preprocessing.plan import PreprocessingPlan
from ctr_pipeline.training.compiled import CompiledModel
from ctr_pipeline.training.ensemble import EnsembleNetwork, EnsembleScorer
from ctr_pipeline.training.lookup import DenseValues, RowReader, SavedRows
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
        rows: Embedding rows; None without fields.
        dense: Dense parameters.
        scorer: Ids and numbers → logits.
        state: How training went; of an ensemble, how that of its first model went.
        row_width: Values of an embedding row.
        scores: Logits of the splits, where they are known already.
        runtime: How members of a job fared, for `metrics.json`.
        members: The models of an ensemble; empty for one model.
    """

    plan: PreprocessingPlan
    compiled: CompiledModel | EnsembleNetwork
    rows: TrainedRows | None
    dense: DenseValues
    scorer: Scorer | EnsembleScorer
    state: TrainingState
    row_width: int
    scores: ScoreFiles | None = None
    runtime: dict[str, Any] | None = None
    members: tuple[TrainedMember, ...] = ()

    def count_rows(self) -> RowCounts:
        """How many rows there are and what they take; asked before they are released."""
        if self.rows is None:
            return RowCounts(0, 0, 0)
        return RowCounts(
            num_rows_made(self.rows), self.rows.memory_bytes(), self.rows.spilled_bytes()
        )

    def release_rows(self) -> None:
        """Frees the memory or the files of the rows; the model scores no more."""
        if self.rows is not None:
            self.rows.release()


@dataclass(frozen=True)
class LocalModel:
    """A model whose parameters live in this process.

    Attributes:
        plan: Fitted transforms.
        compiled: The dense part.
        store: Embedding rows; None without fields.
        dense: Dense parameters.
        lookup: The rows as trainer and scorer see them.
        row_width: Values of an embedding row: the linear weight and the vector.
    """

    plan: PreprocessingPlan
    compiled: CompiledModel
    store: EmbeddingStore | None
    dense: DenseParameters
    lookup: SavedRows
    row_width: int

    def opened(self, state: TrainingState) -> "OpenedModel":
        """The model after training."""
        return OpenedModel(
            self.plan,
            self.compiled,
            self.store,
            self.lookup,
            self.dense,
            state,
            self.row_width,
        )

    def opened_with(self, rows: StoredRows, state: TrainingState) -> "OpenedModel":
        """The model with rows that are on the disk."""
        return replace(self.opened(state), rows=rows, lookup=rows)


@dataclass(frozen=True)
class OpenedModel:
    """One trained model, wherever its rows are.

    Attributes:
        plan: Fitted transforms.
        compiled: The dense part.
        rows: Embedding rows, to export; None without fields.
        lookup: The same, to score with.
        dense: Dense parameters.
        state: How training went.
        row_width: Values of an embedding row.
    """

    plan: PreprocessingPlan
    compiled: CompiledModel
    rows: TrainedRows | None
    lookup: RowReader
    dense: DenseParameters
    state: TrainingState
    row_width: int

    @property
    def scorer(self) -> Scorer:
        """Ids and numbers → logits."""
        return Scorer(self.compiled, self.lookup, self.dense)

    def trained(self) -> TrainedModel:
        """The model as the stages after training take it."""
        return TrainedModel(
            self.plan,
            self.compiled,
            self.rows,
            self.dense,
            self.scorer,
            self.state,
            self.row_width,
        )


def assemble_local(
    loaded: LoadedConfig,
    run: RunFolder,
    plan: PreprocessingPlan,
    counts: Sequence[NDArray[np.int64]] | None,
) -> LocalModel:
    """The model of a config with initial parameters.

    Args:
        loaded: The config.
        run: The run folder.
        plan: Fitted transforms.
        counts: Occurrences of each id in the training rows; None where nothing is trained.
    """
    config = loaded.config
    threads = thread_shares(config.runtime).tensorflow
    compiled = compile_model(config, run, plan, threads=threads, trains=counts is not None)
    return with_initial_parameters(config, run, plan, counts, compiled)


def with_initial_parameters(
    config: Config,
    run: RunFolder,
    plan: PreprocessingPlan,
    counts: Sequence[NDArray[np.int64]] | None,
    compiled: CompiledModel,
) -> LocalModel:
    """The same, around a dense part that is compiled already."""
    store = build_store(
        plan,
        counts,
        config=config,
        threads=thread_shares(config.runtime).rows,
        memory_limit=memory_limit_of(config, run.path),
    )
    dense = DenseParameters(compiled.initial_parameters(), config.train.optimizer.to_spec())
    lookup = lookup_of(store, config.model)
    return LocalModel(plan, compiled, store, dense, lookup, 1 + config.model.embedding_dim)


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


def training_figures(model: TrainedModel) -> dict[str, Any]:
    """What training took and why it ended, for `metrics.json`; of an ensemble, in all and each."""
    if not model.members:
        return _figures(model.state)
    members = [
        {"model": one.model, "seed": one.seed, **_figures(one.state)} for one in model.members
    ]
    return {
        "epochs": sum(one["epochs"] for one in members),
        "best_epoch": None,
        "steps": sum(one["steps"] for one in members),
        "stopped_because": f"all {len(members)} models are trained",
        "members": members,
    }


def _figures(state: TrainingState) -> dict[str, Any]:
    best = next((record for record in state.history if record.step == state.best_step), None)
    figures: dict[str, Any] = {
        "epochs": len(state.history),
        "best_epoch": None if best is None else best.epoch + 1,
        "steps": state.history[-1].step if state.history else 0,
        "stopped_because": state.finished,
    }
    if state.refit is not None:
        figures["refit"] = asdict(state.refit)
    return figures


def score_table(rows: pa.Table, run: RunFolder, model: TrainedModel) -> NDArray[np.float32]:
    """The trainer's logits of rows as they are read: float64 and text columns."""
    encoder = ColumnEncoder(model.plan, run.path)
    logits = [np.empty(0, np.float32)]
    for batch in rows.combine_chunks().to_batches():
        encoded = encoder.encode(batch)
        logits.append(model.scorer.score(encoded.ids, encoded.numbers))
    return np.concatenate(logits)
