"""The Python API for notebooks: `run` a config, `load` a run and `predict`."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctr_pipeline.config.loader import LoadedConfig, config_from_mapping, load_config
from ctr_pipeline.errors import DataError, RunFolderError
from ctr_pipeline.models.registry import check_model
from ctr_pipeline.pipeline import run_pipeline
from ctr_pipeline.pipeline.results import RunResult
from ctr_pipeline.pipeline.workspace import RunFolder
from ctr_pipeline.progress import Progress, SilentProgress

if TYPE_CHECKING:
    import pandas as pd

    from ctr_pipeline.pipeline.trained_model import TrainedModel


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
        progress: Who is told; nobody by default.

    Raises:
        CtrPipelineError: Something the caller can mend.
    """
    if isinstance(config, Mapping):
        loaded = config_from_mapping(config, overrides, check_model=check_model)
    else:
        loaded = load_config(Path(config), overrides, check_model=check_model)
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
    run_folder = RunFolder(Path(folder))
    if not run_folder.config.is_file():
        raise RunFolderError(
            "holds no run", place=str(folder), remedy="Give the 'output' folder of a finished run"
        )
    return LoadedRun(load_config(run_folder.config), run_folder)


class _Warnings(SilentProgress):
    """Says what a notebook must not miss, such as a checkpoint that was passed over."""

    def say(self, text: str) -> None:
        warnings.warn(text, stacklevel=2)


class LoadedRun:
    """A trained model, ready to score rows in memory.

    Args:
        config: Of the run.
        folder: Of the run.
    """

    def __init__(self, config: LoadedConfig, folder: RunFolder) -> None:
        from ctr_pipeline.pipeline.loading import open_trained

        self.config = config.config
        self.folder = folder.path
        self._run = folder
        self._model: TrainedModel = open_trained(config, folder, _Warnings())

    def predict(self, rows: "pd.DataFrame") -> "pd.Series[float]":
        """Click probabilities of raw rows.

        Args:
            rows: The columns that the features read, as in the file: texts as strings, numbers as
                numbers; None and NaN are missing. Other columns are ignored.

        Returns:
            float32, named `probability`, with the index of `rows`.

        Raises:
            DataError: A column is missing or of another type.
        """
        import pandas as pd
        import pyarrow as pa

        from ctr_pipeline.dataset.lists import as_texts, find_bad_vectors, is_list
        from ctr_pipeline.evaluation.likelihood import probabilities_of
        from ctr_pipeline.features import ColumnType
        from ctr_pipeline.pipeline.unseen import score_table

        columns = {}
        for name, kind in self._model.plan.inputs.items():
            if name not in rows:
                raise DataError(
                    f"the rows have no column '{name}'", remedy="Add it, or NaN for all"
                )
            wanted = pa.float64() if kind is ColumnType.NUMBER else pa.string()
            try:
                values = pa.array(rows[name], from_pandas=True)
                vector = self._model.plan.vectors.get(name)
                if vector is not None and is_list(values.type):
                    values, _, _ = as_texts(values, vector)
                if pa.types.is_floating(values.type) and kind is ColumnType.TEXT:
                    # 7.0 is not the text 7 or 007 that the model was trained on.
                    if values.null_count < len(values):
                        raise DataError(
                            f"column '{name}' holds floats, and the model reads it as text",
                            remedy="Read it as text, as in pandas.read_csv(…, dtype=str)",
                        )
                    values = pa.nulls(len(values), wanted)
                # Integers beyond 2**53 are rounded, as they are when a file is read.
                columns[name] = values.cast(wanted, safe=False)
            except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
                raise DataError(
                    f"column '{name}' is not {'numbers' if kind is ColumnType.NUMBER else 'text'}",
                    remedy="Convert it to what the training data has",
                ) from error
            if vector is not None:
                for fault in find_bad_vectors(columns[name], vector):
                    if len(fault.rows):
                        raise DataError(
                            fault.reason.value,
                            place=f"row {rows.index[fault.rows[0]]}, column '{name}'",
                            remedy=f"Give {vector.length} finite numbers, or nothing at all",
                        )
        logits = score_table(pa.table(columns), self._run, self._model)
        return pd.Series(
            probabilities_of(logits).astype("float32"), index=rows.index, name="probability"
        )
