"""Protects the statistics and transforms of an interrupted training from other rows."""

from collections.abc import Callable

from ctr_pipeline.config.models import Config
from ctr_pipeline.errors import CheckpointError, PreprocessingError
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.pipeline.stages.encode import encoded_fingerprint
from ctr_pipeline.preprocessing.plan import load_plan
from ctr_pipeline.training.checkpoint import Checkpoints


def same_rows_as_before(config: Config, run: RunFolder) -> Callable[[str], None]:
    """Returns a check of the rows' fingerprint, to be called before statistics are computed.

    It raises CheckpointError if the newest whole checkpoint was trained on other rows; the models
    of an ensemble share their rows, so the first one is asked. If the transforms cannot be read,
    nothing is checked here: they are fitted again, and training compares the fingerprints.
    """

    def require(rows_fingerprint: str) -> None:
        trained = run.trained_folders()
        if not trained:
            return
        checkpoint = Checkpoints(trained[0].checkpoint_storage).load_newest(lambda _: None)
        if checkpoint is None:
            return
        try:
            plan = load_plan(run.preprocessing)
        except PreprocessingError:
            return
        fingerprint = encoded_fingerprint(plan, rows_fingerprint, config)
        if checkpoint.state["rows_fingerprint"] != fingerprint:
            raise CheckpointError(
                "the data changed since the model was trained",
                place=str(run.path),
                remedy="Run 'ctrpipe run' with --overwrite to train on it from the start",
            )

    return require
