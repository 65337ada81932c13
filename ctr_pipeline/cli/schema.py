"""`ctrpipe schema`: the config explained to editors."""

from ctr_pipeline.cli.command import Panel, command
from ctr_pipeline.cli.session import CommandSession, print_json


@command(Panel.MACHINE)
def schema(session: CommandSession) -> None:
    """Print the JSON Schema of the config, for completion and help in editors.

    Save it once and name it in the first line of a config:

    ctrpipe schema > ctrpipe.schema.json

    # yaml-language-server: $schema=ctrpipe.schema.json
    """
    from ctr_pipeline.config import json_schema

    print_json(json_schema())
