"""What a worker does with units of work: the worker's side of `preparing`."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.dataset.ingested import load_ingested
from ctr_pipeline.dataset.source import Source
from ctr_pipeline.distributed.coordination.preparation import Phase
from ctr_pipeline.distributed.worker.preparing import work_on_units
from ctr_pipeline.errors import DataError
from ctr_pipeline.pipeline.job.analyzing import open_analysis, open_division
from ctr_pipeline.pipeline.resources import threads_of_worker
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.pipeline.stages.encode import SplitEncoder
from ctr_pipeline.pipeline.stages.header import inspect_named
from ctr_pipeline.pipeline.stages.read import open_reader
from ctr_pipeline.pipeline.stages.sharing import SharedWork
from ctr_pipeline.preprocessing.plan import load_plan


def work_for_run(loaded: LoadedConfig, folder: Path, incarnation: str) -> None:
    """Works on units of a run until none is left.

    Args:
        folder: Where the process that gives units has announced itself.

    Raises:
        CtrPipelineError: Nobody gives it units.
    """
    runtime = loaded.config.runtime
    work_on_units(
        folder,
        incarnation,
        partial(open_work, loaded, cache(partial(inspect_named, loaded))),
        report_seconds=min(runtime.heartbeat_seconds, runtime.silence_seconds / 3),
    )


def open_work(loaded: LoadedConfig, inspect: Callable[[], Source], phase: Phase) -> SharedWork:
    """What a worker does with units of a phase, by what lies in the run folder.

    Args:
        loaded: The config.
        inspect: Inspects the files, whenever a phase needs them.
        phase: The phase.

    Raises:
        DataError: The process that gives units has left nothing of it.
    """
    if phase == "finish":
        # It loads TensorFlow.
        from ctr_pipeline.pipeline.job.finishing import open_finisher

        return open_finisher(loaded)
    if phase == "divide":
        return open_division(loaded, inspect())
    if phase == "analyze":
        return open_analysis(loaded, inspect())
    config, run = loaded.config, RunFolder(loaded.config.run_folder)
    threads = threads_of_worker(config.runtime)
    if phase == "read":
        return open_reader(config, run, inspect(), threads)
    ingested = load_ingested(run.ingested)
    if ingested is None:
        raise DataError("holds no rows", place=str(run.ingested), remedy="Start the run again")
    return SplitEncoder(config, run, load_plan(run.preprocessing), ingested, threads)
