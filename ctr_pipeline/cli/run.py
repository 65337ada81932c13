"""`ctrpipe run`: the whole pipeline."""

from ctr_pipeline.cli.command import Panel, command
from ctr_pipeline.cli.options import ConfigFile, Overrides, Overwrite, ProfileTraining, Resume
from ctr_pipeline.cli.session import CommandSession


@command(Panel.PIPELINE)
def run(
    session: CommandSession,
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    resume: Resume = False,
    overwrite: Overwrite = False,
    profile: ProfileTraining = False,
) -> None:
    """Run every stage: from raw rows to a trained, evaluated, exported and explained model.

    For example:

    ctrpipe run configs/quickstart.yaml

    ctrpipe run config.yaml --set train.epochs=2 --set output=runs/two-epochs

    ctrpipe run config.yaml --resume
    """
    loaded = session.read(config, overrides, resumed_by="run")
    from ctr_pipeline.cli.tables import print_run, run_payload
    from ctr_pipeline.pipeline.run import run_pipeline
    from ctr_pipeline.pipeline.timing import process_age_seconds

    result = run_pipeline(
        loaded,
        resume=resume,
        overwrite=overwrite,
        profile=profile,
        seconds_before=process_age_seconds(),
        progress=session.progress,
    )
    session.show(run_payload(result), lambda: print_run(result))
