"""`ctrpipe export`: the servable model of a trained run."""

import typer

from ctr_pipeline.cli.options import AsJson, Overrides, Quiet, TrainedConfig, Verbose
from ctr_pipeline.cli.session import session_of


def export(
    context: typer.Context,
    config: TrainedConfig,
    overrides: Overrides = None,
    *,
    verbose: Verbose = 0,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Export a SavedModel that takes raw rows, and prove that it scores as the trainer does.

    For example:

    ctrpipe export config.yaml

    ctrpipe export config.yaml --set export.model_version=2

    """
    session = session_of(context, verbose, quiet, as_json)
    loaded = session.read(config, overrides)
    from ctr_pipeline.cli.tables import print_run, run_payload
    from ctr_pipeline.pipeline import export_model

    result = export_model(loaded, progress=session.progress)
    session.show(run_payload(result), lambda: print_run(result))
