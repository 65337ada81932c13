"""Arguments and options that several subcommands share."""

from pathlib import Path
from typing import Annotated

import typer

ConfigFile = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="The YAML config.", show_default=False)
]
TrainedConfig = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG", help="The YAML config, or the run folder.", show_default=False
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a key, for example train.epochs=2 or features[0].id=null; may be repeated.",
        show_default=False,
    ),
]
Verbose = Annotated[
    int, typer.Option("--verbose", "-v", count=True, help="Say more; -vv says everything.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Results and errors only.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout, for machines.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on from the stage and step that was reached.")
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Discard earlier results in the run folder.")
]
OverwriteOutput = Annotated[
    bool, typer.Option("--overwrite", help="Replace a file that stands there.")
]
ProfileTraining = Annotated[
    bool,
    typer.Option("--profile", help="Show where the time of training goes, and what bounds it."),
]
PrepareOnly = Annotated[
    bool,
    typer.Option(
        "--prepare-only",
        help="Start no member: people do, with 'ctrpipe master', 'ctrpipe ps', 'ctrpipe worker'.",
    ),
]

Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="With --prepare-only: no TLS, though members may be on several hosts; whoever sees "
        "their network can read the job's secrets and take it over.",
    ),
]

Positive = Annotated[
    str | None,
    typer.Option(
        metavar="VALUE",
        help="What label 1 is written as, where that is not as plain as 0 and 1.",
        show_default=False,
    ),
]

Columns = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="Names of a file without a header, for example 'label,I1..I13,C1..C26'.",
        show_default=False,
    ),
]


def split_columns(columns: str | None) -> tuple[str, ...] | None:
    """The names in the text of `--columns`."""
    return tuple(name.strip() for name in columns.split(",")) if columns else None


Run = Annotated[
    Path,
    typer.Argument(
        metavar="RUN", help="The run folder, or the config it belongs to.", show_default=False
    ),
]
MemberConfig = Annotated[
    Path,
    typer.Option("--config", "-c", metavar="FILE", help="The YAML config.", show_default=False),
]
MemberIndex = Annotated[
    int,
    typer.Option(min=0, metavar="N", help="Which of its role; from 0.", show_default=False),
]
Bind = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="Serve here; port 0 takes a free one.")
]
MasterAddress = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Of the master; as announced in the run folder if not given.",
        show_default=False,
    ),
]
WaitForMaster = Annotated[
    float,
    typer.Option(
        "--wait",
        min=0,
        metavar="SECONDS",
        help="For the first master to come; one that was there is waited for in any case.",
    ),
]
Incarnation = Annotated[str | None, typer.Option(hidden=True)]
"""Name that the launcher gives a process."""

PIPELINE_PANEL = "The whole pipeline"
STAGES_PANEL = "One stage, same config, same run folder"
STARTING_PANEL = "Getting started"
TABLES_PANEL = "Knowing the data"
JOB_PANEL = "A job in several processes"
MEMBERS_PANEL = "Its members; 'ctrpipe run' starts them"
MACHINE_PANEL = "Looking around"
