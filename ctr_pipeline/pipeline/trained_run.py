"""A trained run folder: how it is opened, and probabilities of new rows.

Apart from `run.py`, so that `ctrpipe predict` does not wait for the libraries of the statistics.
"""

import io
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ctr_pipeline import durable, interruption
from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.errors import CheckpointError, CtrPipelineError, FolderInUseError, Interrupted
from ctr_pipeline.pipeline.logged_progress import LoggedProgress
from ctr_pipeline.pipeline.resources import bound_libraries
from ctr_pipeline.pipeline.results import PredictResult
from ctr_pipeline.pipeline.workspace import RunFolder
from ctr_pipeline.progress import Progress
from ctr_pipeline.tracebacks import LogFormatter

if TYPE_CHECKING:
    from ctr_pipeline.pipeline.unseen import FileScorer

_LOGGER = logging.getLogger("ctr_pipeline")


def predict(
    loaded: LoadedConfig,
    *,
    data: str,
    output: Path,
    keep: Sequence[str] = (),
    overwrite: bool = False,
    progress: Progress,
) -> PredictResult:
    """Probabilities of the rows of `data`, which need no label.

    They may be computed while the model still trains in several processes. The key columns of the
    config, and those of `keep`, stand beside them as texts.
    """
    progress = LoggedProgress(progress)
    with opened_trained(loaded, beside_training=True) as run:
        from ctr_pipeline.pipeline.unseen import predict_file

        scorer = file_scorer(loaded, run, progress)
        return predict_file(
            loaded,
            scorer,
            data=data,
            output=output,
            keep=keep,
            overwrite=overwrite,
            progress=progress,
        )


def scores_by_job(loaded: LoadedConfig, run: RunFolder) -> bool:
    """Whether members of a job score: the config says so, and the model is one of theirs."""
    return loaded.config.runtime.mode == "processes" and (run.job / "spec.json").exists()


def file_scorer(loaded: LoadedConfig, run: RunFolder, progress: Progress) -> "FileScorer":
    """What scores new rows: members of a job, or the model opened in this process.

    Raises:
        FolderInUseError: The model cannot be opened, and another run replaces it at this moment.
        CtrPipelineError: It cannot be opened for another reason.
    """
    bound_libraries(loaded.config.runtime)
    if scores_by_job(loaded, run):
        from ctr_pipeline.pipeline.job_model import find_trained_cut
        from ctr_pipeline.pipeline.scoring_job import JobScorer

        return JobScorer(loaded, run, find_trained_cut(loaded, run, progress), progress)
    from ctr_pipeline.pipeline.loading import open_trained
    from ctr_pipeline.pipeline.unseen import ModelScorer

    process = run.user_process()
    try:
        model = open_trained(loaded, run, progress)
    except CtrPipelineError as error:
        if process is None:
            raise
        raise FolderInUseError(
            f"another run (process {process or 'unknown'}) replaces the model at this moment "
            f"({error.message})",
            place=str(run.path),
            remedy="Try again once it has trained an epoch, or train in another 'output' and score "
            "with this folder meanwhile",
        ) from error
    if process is not None:
        progress.log(
            f"Another run (process {process or 'unknown'}) uses this folder: the model is that of "
            "its best epoch until now"
        )
    return ModelScorer(loaded, run, model)


@contextmanager
def opened_trained(loaded: LoadedConfig, *, beside_training: bool = False) -> Iterator[RunFolder]:
    """The folder of an earlier training; one without any is left as it is.

    Args:
        loaded: The config.
        beside_training: Nothing of the run is changed: no lock is taken, the run may go on, others
            may score as well, and the folder may be one that cannot be written.

    Raises:
        CheckpointError: Nothing was trained in it.
        FolderInUseError: Another run holds the lock, and it is needed or nothing is trained yet.
        RunFolderError: The folder cannot be written, and has to be.
    """
    run = RunFolder(loaded.config.run_folder)
    if not run.trained_folders():
        run.require_unused()
        raise CheckpointError(
            "holds no trained model",
            place=str(run.path),
            remedy="Run 'ctrpipe train' (or 'ctrpipe run') with this config first",
        )
    with ExitStack() as stack:
        if not beside_training:
            stack.enter_context(run.locked())
        if not beside_training or os.access(run.log, os.W_OK):
            stack.enter_context(logged(run))
        stack.enter_context(interruption.handle_signals())
        run.require_same_model(
            loaded,
            "was trained with another config",
            "Use the config it was trained with, or set the keys back",
        )
        yield run


class _RunLog(logging.FileHandler):
    def _open(self) -> io.TextIOWrapper:
        with durable.os_errors_explained(Path(self.baseFilename)):
            opener = durable.not_through_links
            return open(self.baseFilename, "a", encoding=self.encoding, opener=opener)


class _ToRoot(logging.Handler):
    """Hands records to the handlers of the root logger."""

    def emit(self, record: logging.LogRecord) -> None:
        logging.getLogger().handle(record)


@contextmanager
def logged(run: RunFolder) -> Iterator[None]:
    """Writes what happens into `run.log`, what ended it included.

    Others get what they got before: TensorFlow gives the root logger a handler, by which a notebook
    would show each line of the file.
    """
    handler = _RunLog(run.log, encoding="utf-8")
    handler.setFormatter(LogFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    previous, propagates = _LOGGER.level, _LOGGER.propagate
    to_root = _ToRoot(_LOGGER.getEffectiveLevel())
    if propagates:
        _LOGGER.propagate = False
        _LOGGER.addHandler(to_root)
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(min(previous or logging.INFO, logging.INFO))
    try:
        yield
    except (CtrPipelineError, Interrupted) as ending:
        # For the file alone: whoever catches it tells the user.
        _LOGGER.info("%s", ending)
        raise
    finally:
        _LOGGER.removeHandler(handler)
        _LOGGER.removeHandler(to_root)
        _LOGGER.propagate = propagates
        _LOGGER.setLevel(previous)
        handler.close()
