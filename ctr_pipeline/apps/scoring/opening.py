"""Opens what scores new rows."""

from ctr_pipeline.apps.scoring.files import (
    FileScorer,
    ModelScorer,
    scores_by_job,
    unknown_counter,
)
from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.errors import CtrPipelineError, FolderInUseError
from ctr_pipeline.pipeline.resources import bound_libraries
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.progress import Progress


def file_scorer(loaded: LoadedConfig, run: RunFolder, progress: Progress) -> FileScorer:
    """What scores new rows: members of a job, or the model opened in this process.

    Raises:
        FolderInUseError: The model cannot be opened, and another run replaces it at this moment.
        CtrPipelineError: It cannot be opened for another reason.
    """
    bound_libraries(loaded.config.runtime)
    if scores_by_job(loaded, run):
        from ctr_pipeline.apps.scoring.job import JobScorer
        from ctr_pipeline.pipeline.job.trained_cut import find_trained_cut

        cut = find_trained_cut(loaded, run, progress)
        return JobScorer(loaded, run, cut, progress, unknown_counter(loaded.config, cut.plan))
    from ctr_pipeline.pipeline.model.loading import open_trained

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
    unknown = unknown_counter(loaded.config, model.plan)
    return ModelScorer(loaded, run, model, progress, unknown)
