"""`ctrpipe export`: the servable model of a trained run."""

from ctr_pipeline.cli.command import Panel, command
from ctr_pipeline.cli.options import Overrides, TrainedConfig
from ctr_pipeline.cli.session import CommandSession


@command(Panel.STAGES)
def export(
    session: CommandSession,
    config: TrainedConfig,
    overrides: Overrides = None,
) -> None:
    """Export a SavedModel that takes raw rows, and prove that it scores as the trainer does.

    For example:

    ctrpipe export config.yaml

    ctrpipe export config.yaml --set export.model_version=2

    """
    loaded = session.read(config, overrides)
    from ctr_pipeline.cli.tables import print_run, run_payload
    from ctr_pipeline.pipeline.run import export_model

    result = export_model(loaded, progress=session.progress)
    session.show(run_payload(result), lambda: print_run(result))
