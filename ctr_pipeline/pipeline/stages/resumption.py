"""What an interrupted training rests on must not be replaced by what other rows say."""

from collections.abc import Callable

from ctr_pipeline.config.models import Config
from ctr_pipeline.errors import CheckpointError, PreprocessingError
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.pipeline.stages.encode import encoded_fingerprint
from ctr_pipeline.preprocessing.plan import load_plan
from ctr_pipeline.training.checkpoint import Checkpoints


def same_rows_as_before(config: Config, run: RunFolder) -> Callable[[str], None]:
    """A check of the fingerprint of rows, before statistics and transforms are made of them.

    It raises CheckpointError if the newest whole checkpoint is one of other rows; all models of an
    ensemble have the same ones, so that the first's will do. Transforms that cannot be read are
    made again from the same rows, and training checks what comes out.
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
