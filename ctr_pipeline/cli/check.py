"""`ctrpipe check`: the resolved plan, before all data is read."""

from ctr_pipeline.cli.command import Panel, command
from ctr_pipeline.cli.options import ConfigFile, Overrides
from ctr_pipeline.cli.session import CommandSession


@command(Panel.PIPELINE)
def check(
    session: CommandSession,
    config: ConfigFile,
    overrides: Overrides = None,
) -> None:
    """Validate a config and show what becomes of each column, without reading all data.

    For example:

    ctrpipe check config.yaml

    ctrpipe check config.yaml -v      # with the reason for each decision

    ctrpipe check config.yaml --json | jq '.rows[].feature'

    """
    loaded = session.read(config, overrides)
    from ctr_pipeline.apps.check import check_config
    from ctr_pipeline.cli.tables import check_payload, print_check

    result = check_config(loaded, progress=session.progress)
    session.show(check_payload(result), lambda: print_check(result, reasons=session.verbosity > 0))
