"""`ctrpipe analyze`: statistics and vocabularies of the training rows."""

from ctr_pipeline.cli.command import Panel, command
from ctr_pipeline.cli.options import ConfigFile, FiguresOutput, Overrides, OverwriteOutput
from ctr_pipeline.cli.session import CommandSession


@command(Panel.STAGES)
def analyze(
    session: CommandSession,
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    output: FiguresOutput = None,
    overwrite: OverwriteOutput = False,
) -> None:
    """Compute the statistics and vocabularies of the training rows.

    For example:

    ctrpipe analyze config.yaml

    ctrpipe analyze config.yaml --json > statistics.json

    ctrpipe analyze config.yaml --output odps://ads/statistics/ds=20240101 --overwrite

    """
    loaded = session.read(config, overrides)
    from ctr_pipeline.cli.tables import print_statistics
    from ctr_pipeline.pipeline.run import analyze as analyze_data

    table = None
    if output is not None:
        from ctr_pipeline.apps.results.figures import FigureTable, figures_of_statistics

        table = FigureTable(output, loaded.config.data, overwrite=overwrite)
    statistics = analyze_data(loaded, progress=session.progress).shown()
    payload = statistics.model_dump(mode="json")
    if table is not None:
        table.write(figures_of_statistics(payload))
    session.show(
        payload,
        lambda: print_statistics(statistics, loaded.config.run_folder),
    )
