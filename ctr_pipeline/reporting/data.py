"""The data that pages show, collected by the pipeline; no layout."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict

from ctr_pipeline.dataset.bad_rows import BadRows
from ctr_pipeline.dataset.ingested import SplitRows
from ctr_pipeline.distributed.coordination.job.status import MemberStatus
from ctr_pipeline.distributed.master.status import JobEvent, JobView
from ctr_pipeline.evaluation.auc import RocPoint
from ctr_pipeline.evaluation.bootstrap import PairedDifference
from ctr_pipeline.evaluation.calibration import CalibrationBin
from ctr_pipeline.evaluation.importance import ImportanceRow
from ctr_pipeline.evaluation.metrics import EvaluationResult, MeasuredRows
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.specs.parity import ParityProof
from ctr_pipeline.statistics import RowsDrift, Statistics
from ctr_pipeline.training.history import EpochRecord, ModelSummary, WorldRecord
from ctr_pipeline.training.profile import TrainingProfile


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True)
class PlanRow:
    """What becomes of one column.

    Attributes:
        feature: Column name.
        column_type: How it is read.
        number: The chain that ends in a dense input, as text; None if there is none.
        id: The chain that ends in an embedded field, as text; None if there is none.
        statistics: Names of the statistics that the chains need.
        vocabulary_size: Values kept; None without a vocabulary.
        num_ids: Ids of the field; None if it has none or that is not known before the analysis.
        dimension: Length of the embedding; None without a field.
        max_bytes: Memory of its embedding rows with optimizer state, at most; None if unknown, 0
            if an earlier feature shares the rows.
        reason: Reason of the chains, and who decided on them.
        place: Where the config decides it; by key where several entries do.
        suspicion: Why the column may hold what is known only after the click, as the end of a
            sentence that begins with its name; None if nothing speaks for that.
        sensitive: Whether the values of this column must not be shown.
    """

    feature: str
    column_type: ColumnType
    number: str | None = None
    id: str | None = None
    statistics: tuple[str, ...] = ()
    vocabulary_size: int | None = None
    num_ids: int | None = None
    dimension: int | None = None
    max_bytes: int | None = None
    reason: str = ""
    place: str = ""
    suspicion: str | None = None
    sensitive: bool = False


class ReportData(_Frozen):
    """Everything one report shows.

    Attributes:
        model: Name of the architecture, as in the config.
        created: When the run ended, with a time zone.
        run_folder: Path of the run folder, as the user gave it.
        config_yaml: The resolved config.
        test: Metrics of the test rows; None if there are none.
        valid: Metrics of the validation rows; None if there are none.
        splits: Splits, in the order train, valid, test.
        history: Epochs, in their order.
        learning_rate: Learning rate of the dense optimizer, without the schedule's factor.
        best_step: Step of the checkpoint that was kept.
        statistics: Statistics of the training rows.
        plan: One row per feature, in the order of the config.
        left_out: Columns of the data without a feature, and why.
        bad_rows: Rows that were left out.
        timings: Seconds of the stages, in the order in which they ran.
        start_up: When the first training step was done, and what it waited for; empty if unknown.
        training_profile: Stages of the training, with `--profile`.
        environment: Names and values, such as `Python` and `3.11.9`.
        importance: Importance of features, if it was measured.
        importance_num_rows: Rows it was measured on.
        parity: Proof of the export; None if nothing was exported.
        num_embedding_rows: Embedding rows that training made.
        embedding_bytes: Their memory, optimizer state and index included.
        spilled_bytes: Bytes in files, beyond a memory limit.
        export_path: Path of the servable model.
        job: The job of a run in several processes, as its master told of it last; None in one
            process.
        worlds: The replicas that trained together, in their order; empty otherwise.
        replicas: The processes of such a training while it goes on; empty otherwise.
        replica_events: What happened to them last.
        ensemble: Models of an ensemble, whose first one has the learning curves; else empty.
        num_refit_rows: Training and validation rows, if the model was refitted on both.
        is_finished: Whether the run has finished; metrics are missing otherwise.
        notes: Further sentences.
    """

    name: str
    model: str
    created: datetime
    run_folder: str
    config_yaml: str
    test: EvaluationResult | None = None
    valid: EvaluationResult | None = None
    splits: dict[str, SplitRows] = {}
    history: tuple[EpochRecord, ...] = ()
    learning_rate: float | None = None
    best_step: int | None = None
    statistics: Statistics | None = None
    plan: tuple[PlanRow, ...] = ()
    left_out: dict[str, str] = {}
    bad_rows: BadRows = BadRows()
    timings: dict[str, float] = {}
    start_up: str = ""
    training_profile: TrainingProfile | None = None
    environment: dict[str, str] = {}
    importance: tuple[ImportanceRow, ...] = ()
    importance_num_rows: int | None = None
    parity: ParityProof | None = None
    num_dense_parameters: int | None = None
    num_embedding_rows: int | None = None
    embedding_bytes: int | None = None
    spilled_bytes: int = 0
    export_path: str | None = None
    job: JobView | None = None
    worlds: tuple[WorldRecord, ...] = ()
    replicas: tuple[MemberStatus, ...] = ()
    replica_events: tuple[JobEvent, ...] = ()
    ensemble: tuple[ModelSummary, ...] = ()
    num_refit_rows: int | None = None
    is_finished: bool = True
    notes: tuple[str, ...] = ()

    @property
    def sensitive_columns(self) -> frozenset[str]:
        """Columns whose values are never shown."""
        return frozenset(row.feature for row in self.plan if row.sensitive)


class LiveData(ReportData):
    """Everything the page of a run shows while it goes on.

    Attributes:
        state: What the run does, such as `running: training`.
        is_over: Whether it will change no more.
        epochs: Most epochs; None before training.
        warnings: What whoever looks should know first.
    """

    state: str
    is_over: bool = False
    epochs: int | None = None
    warnings: tuple[str, ...] = ()
    is_finished: bool = False


class ProfileData(_Frozen):
    """Everything the page of a table shows.

    Attributes:
        source: Its files, as the user named them.
        created: With a time zone.
        label: The label column; None: nothing is known of clicks.
        statistics: Statistics of all rows; without a label, click rates are not shown.
        plan: One row for each column that could be a feature, with what it would become.
        left_out: Columns that would not be features, and why.
        bad_rows: Rows that were left out; they are in no statistic.
    """

    name: str
    source: str
    format: str
    created: datetime
    label: str | None = None
    statistics: Statistics
    plan: tuple[PlanRow, ...]
    left_out: dict[str, str] = {}
    bad_rows: BadRows = BadRows()
    seconds: float


class DriftData(_Frozen):
    """Everything the page of a comparison shows.

    Attributes:
        old: The rows to compare with, as the user named them.
        new: The other rows, as the user named them.
        created: With a time zone.
        num_old_rows: Rows of `old`.
        drift: Drift of the new rows.
        sensitive: Columns whose values are not shown.
        notes: What could not be compared.
    """

    old: str
    new: str
    created: datetime
    num_old_rows: int
    drift: RowsDrift
    sensitive: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()


class ComparedRun(_Frozen):
    """One finished run beside others.

    Attributes:
        name: Tells it from the others.
        folder: Its path, as the user gave it.
        model: Name of the architecture, as in the config.
        test: Metrics of its test rows; None if it has none.
        valid: Metrics of its validation rows; None if it has none.
        history: Its epochs, in their order.
        num_training_rows: Rows of its training split, and of validation if it was refitted.
        num_epochs: Passes over them.
        best_epoch: Which was kept; counts from 1.
        training_seconds: Seconds of the stage, all epochs and their validation.
        num_dense_parameters: Dense parameters of the network, of all models of an ensemble.
        num_embedding_rows: Made by training, of all models of an ensemble; None if they lay with
            other processes.
        not_compared: Why its test rows are not compared with those of the first run, as the end of
            a sentence that begins with its name; None if they are.
        auc_difference: To the first run; None for the first, and where nothing can be compared.
        logloss_difference: The same of logloss.
        roc: On the rows that are compared; empty without.
        calibration_bins: On the same rows, by ascending prediction.
    """

    name: str
    folder: str
    model: str
    test: MeasuredRows | None = None
    valid: MeasuredRows | None = None
    history: tuple[EpochRecord, ...] = ()
    num_training_rows: int | None = None
    num_epochs: int | None = None
    best_epoch: int | None = None
    training_seconds: float | None = None
    num_dense_parameters: int | None = None
    num_embedding_rows: int | None = None
    not_compared: str | None = None
    auc_difference: PairedDifference | None = None
    logloss_difference: PairedDifference | None = None
    roc: tuple[RocPoint, ...] = ()
    calibration_bins: tuple[CalibrationBin, ...] = ()


class ConfigDifference(_Frozen):
    """A key that runs do not share: its value in each, in their order; None where it is absent."""

    key: str
    values: tuple[Any, ...]


class ComparisonData(_Frozen):
    """Everything the page of a comparison of runs shows.

    Attributes:
        created: With a time zone.
        runs: At least two; the others are held against the first.
        repeats: Times that rows were drawn for the intervals.
        config_differences: In the order of the config.
        notes: More sentences for the reader.
    """

    created: datetime
    runs: tuple[ComparedRun, ...]
    repeats: int
    config_differences: tuple[ConfigDifference, ...] = ()
    notes: tuple[str, ...] = ()
