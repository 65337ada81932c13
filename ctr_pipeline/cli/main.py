"""`ctrpipe`: finds the subcommand, runs it, returns its exit code.

Each subcommand is a file of this package. Its function imports what loads slowly, so that
`ctrpipe --help` and mistyped commands answer at once.
"""

import difflib
import itertools
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import TyperException

from ctr_pipeline.cli import options
from ctr_pipeline.cli.command import add_command
from ctr_pipeline.cli.failures import exit_code_of
from ctr_pipeline.cli.session import CommandSession
from ctr_pipeline.errors import CtrPipelineError, Interrupted

COMMANDS = (
    *("run", "check", "init", "convert", "sample", "profile", "drift", "analyze", "train"),
    *("tune", "evaluate", "predict", "export", "report", "status", "ui", "logs", "scale", "stop"),
    *("submit", "jobs", "fetch", "resume", "delete", "image", "monitoring"),
    *("master", "ps", "worker", "elastic-run", "elastic-rendezvous"),
    *("runs", "compare", "schema", "doctor"),
)
"""The subcommands in the order of `ctrpipe --help`; each is a file of this package, `_` for `-`."""

app = typer.Typer(
    name="ctrpipe",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _name in COMMANDS:
    import_module(f"ctr_pipeline.cli.{_name.replace('-', '_')}")
    add_command(app, _name)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"ctrpipe {version('ctrpipe')}")
        raise typer.Exit


@app.callback()
def _before_the_command(
    context: typer.Context,
    *,
    verbose: options.Verbose = 0,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """One YAML file takes raw click logs to a trained, explained and servable CTR model.

    Start from your own rows:

    ctrpipe init clicks.csv --label clicked

    ctrpipe run config.yaml
    """
    session = CommandSession.of_call(context)
    session.add_options(verbose=verbose, quiet=quiet, as_json=as_json)
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise CtrPipelineError(
            "the folder that this command runs in was deleted",
            remedy="Change to a folder that exists",
        ) from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: Arguments after the program's name; None: those of this process.

    Returns:
        The exit code.
    """
    preset_variables = set_up_libraries()
    given = list(sys.argv[1:] if arguments is None else arguments)
    own = itertools.takewhile(lambda word: word != "--", given)
    # Set before parsing, so that a usage error is printed as JSON too.
    session = CommandSession(as_json="--json" in own, preset_variables=preset_variables)
    return exit_code_of(lambda: _invoke(given, session), session)


_LIBRARY_VARIABLES = {
    # TensorFlow logs about its build, which is of no use to the user.
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "KERAS_BACKEND": "tensorflow",
    # Everything runs on CPUs; TensorFlow would put a model on a GPU that it finds.
    "CUDA_VISIBLE_DEVICES": "-1",
    # Our own messages say more than gRPC's log does.
    "GRPC_VERBOSITY": "NONE",
}


def set_up_libraries() -> frozenset[str]:
    """Sets environment variables for libraries that are imported later, if the user has not.

    Returns:
        Names of those that it set.
    """
    names = frozenset(_LIBRARY_VARIABLES.keys() - os.environ.keys())
    for name in names:
        os.environ[name] = _LIBRARY_VARIABLES[name]
    return names


def _invoke(arguments: list[str], session: CommandSession) -> int:
    command = typer.main.get_command(app)
    try:
        code = command.main(
            arguments or ["--help"], prog_name="ctrpipe", standalone_mode=False, obj=session
        )
    except TyperException as error:
        _suggest_command(arguments, error)
        raise
    if code == Interrupted(signal.SIGINT).exit_code:
        # Typer turns a KeyboardInterrupt into this exit code.
        raise Interrupted(signal.SIGINT)
    return code if isinstance(code, int) else 0


def _suggest_command(arguments: Sequence[str], error: TyperException) -> None:
    """Names the closest subcommand in the message about one that does not exist."""
    name = next((word for word in arguments if not word.startswith("-")), "")
    if name in COMMANDS or not error.message.startswith("No such command"):
        return
    near = difflib.get_close_matches(name, COMMANDS, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(COMMANDS)}"
    error.message = f"No such command '{name}' ({hint})"
