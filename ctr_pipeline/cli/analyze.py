"""`ctrpipe analyze`: statistics and vocabularies of the training rows."""

from ctr_pipeline.cli.command import Panel, command
from ctr_pipeline.cli.options import ConfigFile, Overrides
from ctr_pipeline.cli.session import CommandSession


@command(Panel.STAGES)
def analyze(
    session: CommandSession,
    config: ConfigFile,
    overrides: Overrides = None,
) -> None:
    """Compute the statistics and vocabularies of the training rows.

    For example:

    ctrpipe analyze config.yaml

    ctrpipe analyze config.yaml --json > statistics.json

    """
    loaded = session.read(config, overrides)
    from ctr_pipeline.cli.tables import print_statistics
    from ctr_pipeline.pipeline.run import analyze as analyze_data

    statistics = analyze_data(loaded, progress=session.progress).shown()
    session.show(
        statistics.model_dump(mode="json"),
        lambda: print_statistics(statistics, loaded.config.run_folder),
    )
