"""The Python API for notebooks: `run` a config, `load` a run, `predict` and `evaluate`."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from ctr_pipeline.config.label_values import LabelValues, as_written
from ctr_pipeline.config.loader import LoadedConfig, config_from_mapping, load_config
from ctr_pipeline.config.models import DataConfig
from ctr_pipeline.errors import DataError, RunFolderError
from ctr_pipeline.pipeline.results import RunResult, headline, metrics_html
from ctr_pipeline.pipeline.run_folder import RunFolder, find_run
from ctr_pipeline.pipeline.run_places import load_metrics
from ctr_pipeline.progress import Progress, SilentProgress
from ctr_pipeline.storage.opening import address_of

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import pyarrow as pa
    from numpy.typing import NDArray

    from ctr_pipeline.pipeline.model.trained_model import TrainedModel
    from ctr_pipeline.preprocessing.unknown_values import Shares

Rows: TypeAlias = Union["pd.DataFrame", Sequence[Mapping[str, Any]]]
"""A DataFrame, or a list of dictionaries, a row each."""


def run(
    config: str | Path | Mapping[str, Any],
    *,
    overrides: Sequence[str] = (),
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> RunResult:
    """Runs the whole pipeline.

    Args:
        config: Path of a YAML file, or its content as nested dictionaries and lists.
        overrides: Texts such as `train.epochs=2`, as `--set` takes them.
        resume: Go on from what an interrupted run of the same folder reached.
        overwrite: Replace results of another config in the run folder.
        progress: Shows the progress; silent by default.

    Raises:
        CtrPipelineError: Something the caller can mend.
    """
    from ctr_pipeline.pipeline.run import run_pipeline

    if isinstance(config, Mapping):
        loaded = config_from_mapping(config, overrides)
    else:
        loaded = load_config(Path(config), overrides)
    return run_pipeline(
        loaded, resume=resume, overwrite=overwrite, progress=progress or SilentProgress()
    )


def load(folder: str | Path) -> "LoadedRun":
    """Opens a finished run.

    A run is a program: a model file that its config names is executed. Open those of people you
    trust alone.

    Raises:
        RunFolderError: There is no run in the folder.
        CheckpointError: Nothing was trained in it yet.
    """
    is_stored = address_of(Path(folder)) is not None
    run_folder = find_run(Path(folder)) if is_stored else RunFolder(Path(folder))
    if not run_folder.config.is_file():
        raise RunFolderError(
            "holds no run", place=str(folder), remedy="Give the 'output' folder of a finished run"
        )
    loaded = load_config(run_folder.config)
    return LoadedRun(loaded, RunFolder.of(loaded.config))


class _Warnings(SilentProgress):
    """Says what a notebook must not miss, such as a checkpoint that was passed over."""

    def log(self, text: str) -> None:
        warnings.warn(text, stacklevel=2)


class LoadedRun:
    """A trained model, ready to score and to be looked at.

    Attributes:
        metrics: As in `metrics.json`: "valid", "test", "findings", …; empty before the evaluation.
    """

    def __init__(self, config: LoadedConfig, folder: RunFolder) -> None:
        from ctr_pipeline.pipeline.model.loading import open_trained

        self.config = config.config
        self.folder = folder.path
        self.metrics = load_metrics(folder)
        self._run = folder
        self._model: TrainedModel = open_trained(config, folder, _Warnings())
        self._held_out: Shares | None = None

    @property
    def importance(self) -> "pd.DataFrame":
        """What shuffling each feature costs, costliest first; empty where it was not measured.

        `report.importance: true` has it measured. Columns: `feature`, `auc_drop`, `logloss_rise`,
        `auc_drop_std`, `logloss_rise_std`, `repeats`.
        """
        import pandas as pd

        from ctr_pipeline.evaluation.importance import ImportanceRow

        rows = self.metrics.get("importance") or []
        return pd.DataFrame(rows, columns=list(ImportanceRow.model_fields))

    def predict(self, rows: Rows) -> "pd.Series[float]":
        """Click probabilities of raw rows.

        Args:
            rows: A DataFrame, or a list of dictionaries, a row each. They have the columns that the
                features read, as in the file; None and NaN are missing. A value is the same in
                whatever type it comes: 1084, 1084.0 and "1084" are one id, True and "true" are.
                Other columns are ignored.

        Returns:
            float32, named `probability`, with the index of `rows`.

        Raises:
            DataError: A column is missing or of another type, or a value is none of it.
        """
        import pandas as pd

        from ctr_pipeline.evaluation.likelihood import probabilities_of

        frame = _as_frame(rows)
        logits = self._score(frame)
        return pd.Series(
            probabilities_of(logits).astype("float32"), index=frame.index, name="probability"
        )

    def evaluate(self, rows: Rows, *, by: Sequence[str] = ()) -> dict[str, Any]:
        """Metrics of the model on labelled rows.

        Args:
            rows: As for `predict`; with the label, and with the weight and the columns to measure
                by where the config names some.
            by: Columns by whose values the rows are measured as well; empty: as the config says.

        Returns:
            As `test` in `metrics`.

        Raises:
            DataError: A column is missing or of another type, a label is none, or all are equal.
        """
        import numpy as np
        import pyarrow as pa

        from ctr_pipeline.pipeline.stages.evaluate import findings_on, measure
        from ctr_pipeline.training.scoring import ScoredRows

        frame, config = _as_frame(rows), self.config
        if by:
            evaluation = config.evaluation.model_copy(update={"group_by": tuple(by)})
            config = config.model_copy(update={"evaluation": evaluation})
        weight = [] if config.data.weight is None else [config.data.weight]
        wanted = [config.data.label, *weight, *config.evaluation.columns]
        for name in wanted:
            if name not in frame:
                raise DataError(f"the rows have no column '{name}'", remedy="Add it")
        if frame.empty:
            raise DataError("there are no rows", remedy="Give some of both labels")
        labels = _labels_of(frame, config.data).astype(np.float32)
        carried = {name: _as_array(frame[name]) for name in config.evaluation.columns}
        for name in weight:
            carried[name] = pa.array(_weights_of(frame, name))
        scored = ScoredRows(labels, self._score(frame))
        result = measure(config, scored, pa.table(carried), place="the rows")
        return result.to_metrics() | {"findings": findings_on(result, "given")}

    def __repr__(self) -> str:
        return f"<LoadedRun {self.folder}: {self.config.model.name}, {headline(self.metrics)}>"

    def _repr_html_(self) -> str:
        return metrics_html(f"{self.folder}: {self.config.model.name}", self.metrics)

    def _score(self, rows: "pd.DataFrame") -> "NDArray[np.float32]":
        """Logits of raw rows."""
        import numpy as np
        import pyarrow as pa

        from ctr_pipeline.apps.scoring.files import unknown_counter
        from ctr_pipeline.dataset.arrow_columns import check_type, convert_column
        from ctr_pipeline.dataset.bad_rows import BadRow, BlockFaults
        from ctr_pipeline.dataset.columns import plan_columns
        from ctr_pipeline.pipeline.model.trained_model import score_table
        from ctr_pipeline.pipeline.stages.evaluate import held_out_shares

        if not len(rows):
            return np.empty(0, np.float32)
        plan, config = self._model.plan, self.config
        reading = plan_columns(
            config.data,
            plan.inputs,
            label_required=False,
            carried=(),
            sensitive=plan.inputs if config.has_sensitive_columns else (),
            lists=plan.list_columns,
        )
        faults, places = BlockFaults(len(rows), reading.sensitive), np.arange(len(rows))
        columns = {}
        for name in reading.names:
            if name not in rows:
                raise DataError(
                    f"the rows have no column '{name}'", remedy="Add it, or NaN for all"
                )
            values = _as_array(rows[name])
            check_type("the rows", values.type, name, reading)
            columns[name] = convert_column(values, name, reading, faults, places)
        for fault in faults.first():
            bad = BadRow.of(fault, "the rows", fault.record + 1)
            raise DataError(
                bad.as_error().message,
                place=f"row {rows.index[fault.record]}, column '{fault.column}'",
                remedy=bad.remedy,
            )
        unknown = unknown_counter(config, plan)
        logits = score_table(pa.table(columns), self._run, self._model, unknown)
        if self._held_out is None:
            # Of a run that is not finished, its encoded rows are read.
            self._held_out = held_out_shares(self._run, plan, self.metrics)
        for sentence in unknown.compare(self._held_out):
            warnings.warn(f"{sentence}: are they written as in training?", stacklevel=3)
        return logits


def _as_frame(rows: Rows) -> "pd.DataFrame":
    """Rows of a list keep the types of their values: a missing number makes no float of others."""
    import pandas as pd

    if isinstance(rows, pd.DataFrame):
        return rows
    if isinstance(rows, Sequence) and all(isinstance(row, Mapping) for row in rows):
        names = dict.fromkeys(name for row in rows for name in row)
        columns = {name: [row.get(name) for row in rows] for name in names}
        return pd.DataFrame(columns, dtype=object, index=range(len(rows)))
    raise DataError(
        f"{type(rows).__name__} is neither a DataFrame nor a list of dictionaries, a row each",
        remedy="Give [row] for one row",
    )


def _labels_of(rows: "pd.DataFrame", data: DataConfig) -> "NDArray[np.float64]":
    import numpy as np

    values = data.label_values or LabelValues("1", "0")
    written = [
        as_written(bool(value) if isinstance(value, np.bool_) else value)
        for value in rows[data.label].tolist()
    ]
    found = [values.read(str(value)) for value in written]
    if None in found:
        place = found.index(None)
        raise DataError(
            f"the label is {written[place]!r}, neither {values.positive} nor {values.negative}",
            place=f"row {rows.index[place]}, column '{data.label}'",
            remedy="Leave the row out, or mend it",
        )
    return np.array(found, np.float64)


def _weights_of(rows: "pd.DataFrame", name: str) -> "NDArray[np.float64]":
    import numpy as np
    import pandas as pd

    weights = np.asarray(pd.to_numeric(rows[name], errors="coerce"), np.float64)
    wrong = np.flatnonzero(~((weights >= 0) & (weights < np.inf)))
    if wrong.size:
        raise DataError(
            "the weight is no number of 0 or more",
            place=f"row {rows.index[wrong[0]]}, column '{name}'",
            remedy="Leave the row out, or mend it",
        )
    return weights


def _as_array(column: "pd.Series[Any]") -> "pa.Array":
    """Values of whatever type; as texts where they have none in common, or none is wide enough.

    Raises:
        DataError: A text is no Unicode.
    """
    import pyarrow as pa

    try:
        try:
            return pa.array(column, from_pandas=True)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            pairs = zip(column.tolist(), column.notna(), strict=True)
            return pa.array([_as_text(value) if is_there else None for value, is_there in pairs])
    except (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeEncodeError) as error:
        raise DataError(
            f"cannot be read: {error}",
            place=f"column '{column.name}'",
            remedy="Give values of one type, numbers, texts or lists of these",
        ) from error


def _as_text(value: Any) -> Any:
    if hasattr(value, "__len__") and not isinstance(value, str | bytes):
        return [None if one is None else str(one) for one in value]
    return str(value)
