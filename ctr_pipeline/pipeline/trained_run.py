"""Opens the folder of a trained run, and writes its log.

It loads none of the libraries of the statistics, so that `ctrpipe predict` starts quickly.
"""

import io
import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ctr_pipeline import durable, interruption
from ctr_pipeline.errors import CheckpointError, CtrPipelineError, Interrupted
from ctr_pipeline.pipeline.context import RunContext
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.tracebacks import LogFormatter

_LOGGER = logging.getLogger("ctr_pipeline")


@contextmanager
def opened_trained(context: RunContext, *, beside_training: bool = False) -> Iterator[None]:
    """Opens the folder of a trained run: lock, log, signals, and the check of its config.

    Args:
        context: Context of the run.
        beside_training: To score rows of other files: takes no lock, so that the run may train and
            others may score at the same time, and the folder may be read-only.

    Raises:
        CheckpointError: Nothing was trained in it.
        FolderInUseError: Another run holds the lock, and it is needed or nothing is trained yet.
        RunFolderError: The folder cannot be written, and has to be.
    """
    loaded, run = context.loaded, context.run
    run.fetch()
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
            for_new_rows=beside_training,
        )
        yield


class _RunLog(logging.FileHandler):
    def _open(self) -> io.TextIOWrapper:
        with durable.os_errors_explained(Path(self.baseFilename)):
            opener = durable.not_through_links
            return open(self.baseFilename, "a", encoding=self.encoding, opener=opener)


class _ToRoot(logging.Handler):
    """Passes records to the handlers of the root logger."""

    def emit(self, record: logging.LogRecord) -> None:
        logging.getLogger().handle(record)


@contextmanager
def logged(run: RunFolder) -> Iterator[None]:
    """Writes the log of the package to `run.log`, the error that ends it included.

    Other handlers receive what they did before: TensorFlow adds one to the root logger, which would
    otherwise show each line of the file in a notebook.
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
        # Only for the file: the caller shows the error to the user.
        _LOGGER.info("%s", ending)
        raise
    finally:
        _LOGGER.removeHandler(handler)
        _LOGGER.removeHandler(to_root)
        _LOGGER.propagate = propagates
        _LOGGER.setLevel(previous)
        handler.close()
