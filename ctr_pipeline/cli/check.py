"""`ctrpipe check`: the resolved plan, before all data is read."""

import typer

from ctr_pipeline.cli.options import AsJson, ConfigFile, Overrides, Quiet, Verbose
from ctr_pipeline.cli.session import session_of


def check(
    context: typer.Context,
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    verbose: Verbose = 0,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Validate a config and show what becomes of each column, without reading all data.

    For example:

    ctrpipe check config.yaml

    ctrpipe check config.yaml -v      # with the reason for each decision

    ctrpipe check config.yaml --json | jq '.rows[].feature'

    """
    session = session_of(context, verbose, quiet, as_json)
    loaded = session.read(config, overrides)
    from ctr_pipeline.cli.tables import check_payload, print_check
    from ctr_pipeline.pipeline import check_config

    result = check_config(loaded, progress=session.progress)
    session.show(check_payload(result), lambda: print_check(result, reasons=session.verbosity > 0))
