"""`ctrpipe analyze`: statistics and vocabularies of the training rows."""

import typer

from ctr_pipeline.cli.options import AsJson, ConfigFile, Overrides, Quiet, Verbose
from ctr_pipeline.cli.session import session_of


def analyze(
    context: typer.Context,
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    verbose: Verbose = 0,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Compute the statistics and vocabularies of the training rows.

    For example:

    ctrpipe analyze config.yaml

    ctrpipe analyze config.yaml --json > statistics.json

    """
    session = session_of(context, verbose, quiet, as_json)
    loaded = session.read(config, overrides)
    from ctr_pipeline.cli.tables import print_statistics
    from ctr_pipeline.pipeline import analyze as analyze_data

    statistics = analyze_data(loaded, progress=session.progress).shown()
    session.show(
        statistics.model_dump(mode="json"),
        lambda: print_statistics(statistics, loaded.config.run_folder),
    )
