"""`ctrpipe schema`: the config explained to editors."""

import typer

from ctr_pipeline.cli.options import AsJson
from ctr_pipeline.cli.session import print_json, session_of


def schema(context: typer.Context, *, as_json: AsJson = False) -> None:
    """Print the JSON Schema of the config, for completion and help in editors.

    Save it once and name it in the first line of a config:

    ctrpipe schema > ctrpipe.schema.json

    # yaml-language-server: $schema=ctrpipe.schema.json
    """
    session_of(context, 0, quiet=False, as_json=as_json)
    from ctr_pipeline.config import json_schema

    print_json(json_schema())
