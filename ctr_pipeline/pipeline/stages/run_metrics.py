"""`metrics.json`: what a finished run achieved, for people, programs and other runs."""

import json
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from ctr_pipeline import durable
from ctr_pipeline.dataset.bad_rows import BadRows
from ctr_pipeline.evaluation.importance import ImportanceRow
from ctr_pipeline.evaluation.metrics import MeasuredRows
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.pipeline.run_places import metrics_damaged, read_metrics
from ctr_pipeline.pipeline.sessions import ChangedKey
from ctr_pipeline.pipeline.stages.warm_start import WarmStartRecord
from ctr_pipeline.reporting.findings import Finding
from ctr_pipeline.training.history import ModelSummary, RefitRecord, WorldRecord


class _Figures(BaseModel):
    # A run of another version may hold more.
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class TrainingMetrics(_Figures):
    """How the training went.

    Attributes:
        epochs: Epochs trained, of all models of an ensemble.
        best_epoch: The epoch whose parameters were kept, from 1; None of an ensemble, or where none
            was the best.
        steps: Steps trained in these epochs.
        stopped_because: Why it ended.
        worlds: The replicas that trained together, if several did.
        refit: The training on training and validation rows, if there was one.
        members: The models of an ensemble.
        embedding_rows: Embedding rows that training made; 0 where parameter servers held them.
        embedding_bytes: Memory that they took, optimizer state and index included.
        embedding_spilled_bytes: Bytes of them in files, beyond a memory limit.
        dense_parameters: Dense parameters of the network, of all models of an ensemble.
        changes: What a resumed training did otherwise than before.
        init_from: The earlier run that it began from.
    """

    epochs: int | None = None
    best_epoch: int | None = None
    steps: int = 0
    stopped_because: str = ""
    worlds: tuple[WorldRecord, ...] = ()
    refit: RefitRecord | None = None
    members: tuple[ModelSummary, ...] = ()
    embedding_rows: int | None = None
    embedding_bytes: int | None = None
    embedding_spilled_bytes: int = 0
    dense_parameters: int | None = None
    changes: tuple[ChangedKey, ...] = ()
    init_from: WarmStartRecord | None = None

    def num_refit_rows(self) -> int | None:
        """Training and validation rows of a refit, equal for all models; None without a refit."""
        refits = (self.refit, *(one.refit for one in self.members))
        return next((one.num_rows for one in refits if one is not None), None)


class RunMetrics(_Figures):
    """What a finished run achieved.

    Attributes:
        valid: Metrics of the validation rows.
        test: Metrics of the test rows, if there are some.
        findings: The sentences that the report begins with.
        training: How the training went.
        importance: Importance of features, if it was measured.
        unknown_values: Shares of values of the test rows that are in no vocabulary, by column.
        missing_values: Shares of those that are missing, by column.
        drift: How far the other splits are from the training rows, by split.
        planted: The best possible figures of sample rows; None for others.
        bad_rows: Rows that were left out.
        num_rows: Rows by split.
        timings_seconds: Seconds of each stage, in the order in which they ran.
        num_sessions: Commands that the run took.
        start_up_seconds: Seconds until the first step, by part; None where this process had none.
        peak_memory_bytes: Memory that a process of the run took, at most.
        runtime: Records, restarts and members of a run in several processes.
    """

    valid: MeasuredRows | None = None
    test: MeasuredRows | None = None
    findings: tuple[Finding, ...] = ()
    training: TrainingMetrics = TrainingMetrics()
    importance: tuple[ImportanceRow, ...] = ()
    unknown_values: dict[str, float] = {}
    missing_values: dict[str, float] = {}
    drift: dict[str, dict[str, Any]] = {}
    planted: dict[str, Any] | None = None
    bad_rows: BadRows = BadRows()
    num_rows: dict[str, int] = {}
    timings_seconds: dict[str, float] = {}
    num_sessions: int = 1
    start_up_seconds: dict[str, float] | None = None
    peak_memory_bytes: int | None = None
    runtime: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """The content of the file: splits, and other parts, that the run has."""
        return {
            key: value for key, value in self.model_dump(mode="json").items() if value is not None
        }

    def save(self, run: RunFolder) -> None:
        """Writes the file, whole or not at all.

        Raises:
            RunFolderError: The folder cannot be written.
        """
        text = json.dumps(self.to_json(), indent=2, allow_nan=False)
        durable.write_text(run.metrics, text + "\n")

    @classmethod
    def load(cls, run: RunFolder) -> "RunMetrics":
        """The metrics of a finished run.

        Raises:
            RunFolderError: The file is damaged, or a run did not write it.
        """
        try:
            return cls.model_validate(read_metrics(run))
        except ValidationError as error:
            raise metrics_damaged(run) from error
