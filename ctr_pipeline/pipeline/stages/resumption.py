"""What a resumed training keeps of the one before: its rows, and all but the course of steps."""

from collections.abc import Callable

from ctr_pipeline.config.models import Config
from ctr_pipeline.errors import CheckpointError, PreprocessingError, RunFolderError
from ctr_pipeline.pipeline.context import RunContext
from ctr_pipeline.pipeline.run_folder import RunFolder, changed_course, differing_keys
from ctr_pipeline.pipeline.sessions import ChangedKey
from ctr_pipeline.pipeline.stages.encode import encoded_fingerprint
from ctr_pipeline.preprocessing.plan import load_plan
from ctr_pipeline.training import checkpoint
from ctr_pipeline.training.checkpoint import Checkpoints
from ctr_pipeline.training.history import load_history
from ctr_pipeline.training.stopping import decide_stop


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
        newest = Checkpoints(trained[0].checkpoint_storage).load_newest(lambda _: None)
        if newest is None:
            return
        try:
            plan = load_plan(run.preprocessing)
        except PreprocessingError:
            return
        fingerprint = encoded_fingerprint(plan, rows_fingerprint, config)
        if newest.state["rows_fingerprint"] != fingerprint:
            raise CheckpointError(
                "the data changed since the model was trained",
                place=str(run.path),
                remedy="Run 'ctrpipe run' with --overwrite to train on it from the start",
            )

    return require


def claim_to_train(
    context: RunContext, newest_step: Callable[[], int | None], *, resumes: bool
) -> None:
    """Makes the folder the config's: drops earlier results, or notes what changes in their course.

    Args:
        context: Context of the run.
        newest_step: Steps of the checkpoint that training goes on from; None: from the start.
        resumes: What was trained is kept.

    Raises:
        RunFolderError: Other learning rates are asked for, and no step is left to follow them.
        CtrPipelineError: The earlier config or the checkpoints cannot be read.
    """
    loaded, run = context.loaded, context.run
    if not resumes:
        run.discard_results()
    else:
        earlier = run.earlier_config()
        changed = changed_course(earlier, loaded.config)
        step = newest_step() if changed else None
        if step is not None:
            _require_steps_left(loaded.config, run, differing_keys(earlier, loaded.config))
            model = len(run.trained_folders()) if loaded.config.train.ensemble > 1 else None
            context.changes.extend(
                ChangedKey(key=key, before=before, after=after, step=step, model=model)
                for key, (before, after) in changed.items()
            )
            for change in context.changes:
                context.progress.log(change.sentence)
    if not loaded.config.runtime.has_members:
        run.leave_job()
    run.keep_config(loaded)


def newest_step(run: RunFolder) -> int | None:
    """Steps of the newest checkpoint; None: there is none.

    Of an ensemble, that of the model that was trained last.
    """
    return checkpoint.newest_step(_last_trained(run).checkpoint_storage)


def _last_trained(run: RunFolder) -> RunFolder:
    """The folder of an ensemble's model that was trained last, or that of the run."""
    return (run.trained_folders() or [run])[-1]


def _require_steps_left(config: Config, run: RunFolder, rates: list[str]) -> None:
    history = load_history(_last_trained(run).history)
    if not rates or not history or len(run.trained_folders()) < config.train.ensemble:
        return
    decision = decide_stop(history, config.train.early_stopping, config.train.epochs)
    if decision.stop:
        raise RunFolderError(
            f"its training has ended ({decision.reason}), so {', '.join(rates)} would change "
            "nothing",
            place=run.place,
            remedy="Set it back; or let training go on, by train.epochs or train.early_stopping; "
            "or give --overwrite to start anew",
        )
