"""Arguments and options that several subcommands share."""

from pathlib import Path
from typing import Annotated

import typer

ConfigFile = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG",
        help="The YAML config; its paths are relative to the folder the command runs in.",
        show_default=False,
    ),
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
        help="Override a key, such as train.epochs=2 or features[0].id=null. May be repeated.",
        show_default=False,
    ),
]
Uploads = Annotated[
    list[Path] | None,
    typer.Option(
        "--upload",
        metavar="PATH",
        help="Copy this file or folder to the same relative path of the claim before the job "
        "starts. Can be given several times.",
        show_default=False,
    ),
]
Verbose = Annotated[
    int, typer.Option("--verbose", "-v", count=True, help="Print more; -vv prints everything.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only results and errors.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object to stdout.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue from the stage and step that were reached.")
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace earlier results in the run folder.")
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Fail, instead of warning, where the model knows far fewer values of a column than of "
        "the rows that training held out.",
    ),
]
OverwriteOutput = Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")]
FiguresOutput = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        metavar="PLACE",
        help="Also write the figures as rows of column, value, figure and number: to a file or an "
        "address such as s3://bucket/figures.parquet, Parquet or CSV by its ending; or to a table, "
        "duckdb://shop.duckdb/figures or odps://project/figures/ds=20240101.",
    ),
]
ProfileTraining = Annotated[
    bool,
    typer.Option("--profile", help="Show where training spends its time and what bounds it."),
]
PrepareOnly = Annotated[
    bool,
    typer.Option(
        "--prepare-only",
        help="Only prepare the job; start members yourself with 'ctrpipe master', 'ctrpipe ps' and "
        "'ctrpipe worker'.",
    ),
]

Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="With --prepare-only: do not use TLS. Anyone who sees the network between members can "
        "read the job's secrets and take it over.",
    ),
]

Positive = Annotated[
    str | None,
    typer.Option(
        metavar="VALUE",
        help="The value that means label 1, if labels are not 0 and 1.",
        show_default=False,
    ),
]

Columns = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="Column names of a file without a header, such as 'label,I1..I13,C1..C26'.",
        show_default=False,
    ),
]


ReadingSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Say how the files are read, such as data.delimiter=';'. May be repeated.",
        show_default=False,
    ),
]


def split_columns(columns: str | None) -> tuple[str, ...] | None:
    """Splits the value of `--columns` into names."""
    return tuple(name.strip() for name in columns.split(",")) if columns else None


ClusterRun = Annotated[
    Path,
    typer.Argument(
        metavar="JOB", help="k8s:NAME or k8s:NAMESPACE/NAME of the job.", show_default=False
    ),
]
Run = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="The run folder, its config, or k8s:NAME of a job on Kubernetes.",
        show_default=False,
    ),
]
MemberConfig = Annotated[
    Path,
    typer.Option("--config", "-c", metavar="FILE", help="The YAML config.", show_default=False),
]
MemberIndex = Annotated[
    int,
    typer.Option(
        min=0,
        metavar="N",
        help="Number of this member within its role, from 0.",
        show_default=False,
    ),
]


def _address(text: str | None) -> str | None:
    """The option as it is, if it is a host and a port."""
    host, _, port = (text or "host:0").rpartition(":")
    if host and port.isdecimal() and int(port) < 1 << 16:
        return text
    wanted = text if port.isdecimal() and not host else 7000
    raise typer.BadParameter(f"'{text}' is no HOST:PORT: write one such as 127.0.0.1:{wanted}")


Bind = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT",
        callback=_address,
        help="Address to listen on; port 0 takes a free port.",
    ),
]
Advertise = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        callback=_address,
        help="Address for other members, if it differs from --bind (containers, proxies).",
    ),
]
MasterAddress = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        callback=_address,
        help="Address of the master. Default: as announced in the run folder.",
        show_default=False,
    ),
]
WaitForMaster = Annotated[
    float,
    typer.Option(
        "--wait",
        min=0,
        metavar="SECONDS",
        help="Time to wait for the first master. A master that is lost later is always waited for.",
    ),
]
Incarnation = Annotated[str | None, typer.Option(hidden=True)]
"""The launcher names each process that it starts."""
