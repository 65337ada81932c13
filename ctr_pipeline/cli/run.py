"""`ctrpipe run`: the whole pipeline."""

import typer

from ctr_pipeline.cli.options import (
    AsJson,
    ConfigFile,
    Overrides,
    Overwrite,
    ProfileTraining,
    Quiet,
    Resume,
    Verbose,
)
from ctr_pipeline.cli.session import session_of


def run(
    context: typer.Context,
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    resume: Resume = False,
    overwrite: Overwrite = False,
    profile: ProfileTraining = False,
    verbose: Verbose = 0,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run every stage: from raw rows to a trained, evaluated, exported and explained model.

    For example:

    ctrpipe run configs/quickstart.yaml

    ctrpipe run config.yaml --set train.epochs=2 --set output=runs/two-epochs

    ctrpipe run config.yaml --resume
    """
    session = session_of(context, verbose, quiet, as_json)
    loaded = session.read(config, overrides, resumed_by="run")
    from ctr_pipeline.cli.tables import print_run, run_payload
    from ctr_pipeline.pipeline import run_pipeline
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
