"""`ctrpipe train`: statistics if needed, then training."""

from ctr_pipeline.cli.command import Panel, command
from ctr_pipeline.cli.options import (
    ConfigFile,
    Insecure,
    Overrides,
    Overwrite,
    PrepareOnly,
    ProfileTraining,
    Resume,
)
from ctr_pipeline.cli.session import CommandSession
from ctr_pipeline.errors import CtrPipelineError


@command(Panel.STAGES)
def train(
    session: CommandSession,
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    resume: Resume = False,
    overwrite: Overwrite = False,
    profile: ProfileTraining = False,
    prepare_only: PrepareOnly = False,
    insecure: Insecure = False,
) -> None:
    """Train the model; earlier stages run first if their results are missing.

    For example:

    ctrpipe train config.yaml

    ctrpipe train config.yaml --resume

    ctrpipe train config.yaml --prepare-only   # members are started by hand, on any hosts
    """
    loaded = session.read(config, overrides, resumed_by="train")
    from ctr_pipeline.cli.tables import print_run, run_payload
    from ctr_pipeline.pipeline.timing import process_age_seconds

    if insecure and not prepare_only:
        raise CtrPipelineError(
            "applies only to members that you start yourself",
            place="--insecure",
            remedy="Use it with --prepare-only",
        )
    if prepare_only:
        from ctr_pipeline.pipeline.run import prepare_job

        session.resume_command = f"{session.resume_command} --prepare-only"
        result = prepare_job(
            loaded,
            resume=resume,
            overwrite=overwrite,
            profile=profile,
            insecure=insecure,
            progress=session.progress,
        )
    else:
        from ctr_pipeline.pipeline.run import train as train_model

        result = train_model(
            loaded,
            resume=resume,
            overwrite=overwrite,
            profile=profile,
            seconds_before=process_age_seconds(),
            progress=session.progress,
        )
    session.show(run_payload(result), lambda: print_run(result))
