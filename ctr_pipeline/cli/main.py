"""`ctrpipe`: finds the subcommand, runs it, returns its exit code.

Each subcommand is a file of this package; what is slow to import waits until a command runs.
"""

import difflib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import TyperException

from ctr_pipeline.cli import options
from ctr_pipeline.cli.analyze import analyze
from ctr_pipeline.cli.check import check
from ctr_pipeline.cli.compare import compare
from ctr_pipeline.cli.convert import convert
from ctr_pipeline.cli.doctor import doctor
from ctr_pipeline.cli.drift import drift
from ctr_pipeline.cli.evaluate import evaluate
from ctr_pipeline.cli.export import export
from ctr_pipeline.cli.failures import exit_code_of
from ctr_pipeline.cli.init import init
from ctr_pipeline.cli.logs import logs
from ctr_pipeline.cli.master import master
from ctr_pipeline.cli.predict import predict
from ctr_pipeline.cli.profile import profile
from ctr_pipeline.cli.ps import ps
from ctr_pipeline.cli.report import report
from ctr_pipeline.cli.run import run
from ctr_pipeline.cli.runs import runs
from ctr_pipeline.cli.sample import criteo
from ctr_pipeline.cli.scale import scale
from ctr_pipeline.cli.schema import schema
from ctr_pipeline.cli.session import Session, session_of
from ctr_pipeline.cli.status import status
from ctr_pipeline.cli.stop import stop
from ctr_pipeline.cli.train import train
from ctr_pipeline.cli.tune import tune
from ctr_pipeline.cli.worker import worker
from ctr_pipeline.errors import CtrPipelineError, Interrupted

_SETTINGS = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(
    name="ctrpipe",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings=_SETTINGS,
)
sample_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="rich", help="Write rows to try things on."
)
sample_app.command("criteo")(criteo)

app.command(rich_help_panel=options.PIPELINE_PANEL)(run)
app.command(rich_help_panel=options.PIPELINE_PANEL)(check)
app.command(rich_help_panel=options.STARTING_PANEL)(init)
app.command(rich_help_panel=options.TABLES_PANEL)(profile)
app.command(rich_help_panel=options.TABLES_PANEL)(drift)
app.command(rich_help_panel=options.STARTING_PANEL)(convert)
app.add_typer(sample_app, name="sample", rich_help_panel=options.STARTING_PANEL)
app.command(rich_help_panel=options.STAGES_PANEL)(analyze)
app.command(rich_help_panel=options.STAGES_PANEL)(train)
app.command(rich_help_panel=options.STAGES_PANEL)(tune)
app.command(rich_help_panel=options.STAGES_PANEL)(evaluate)
app.command(rich_help_panel=options.STAGES_PANEL)(predict)
app.command(rich_help_panel=options.STAGES_PANEL)(export)
app.command(rich_help_panel=options.STAGES_PANEL)(report)
app.command(rich_help_panel=options.JOB_PANEL)(status)
app.command(rich_help_panel=options.JOB_PANEL)(logs)
app.command(rich_help_panel=options.JOB_PANEL)(scale)
app.command(rich_help_panel=options.JOB_PANEL)(stop)
app.command(rich_help_panel=options.MEMBERS_PANEL)(master)
app.command(rich_help_panel=options.MEMBERS_PANEL)(ps)
app.command(rich_help_panel=options.MEMBERS_PANEL)(worker)
app.command(rich_help_panel=options.MACHINE_PANEL)(runs)
app.command(rich_help_panel=options.MACHINE_PANEL)(compare)
app.command(rich_help_panel=options.MACHINE_PANEL)(schema)
app.command(rich_help_panel=options.MACHINE_PANEL)(doctor)

COMMANDS = (
    *("run", "check", "init", "sample", "profile", "drift", "convert", "analyze", "train"),
    *("tune", "evaluate", "predict", "export", "report", "status", "logs", "scale", "stop"),
    *("master", "ps", "worker", "runs", "compare", "schema", "doctor"),
)


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
    session_of(context, verbose, quiet, as_json)
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
        arguments: Of the command line, without the program's name; None reads them from the system.

    Returns:
        The exit code.
    """
    set_up_libraries()
    given = list(sys.argv[1:] if arguments is None else arguments)
    # Known before parsing, so that a usage error is told as JSON too.
    session = Session(as_json="--json" in given)
    return exit_code_of(lambda: _invoke(given, session), session)


def set_up_libraries() -> None:
    """Tells libraries that are imported later how to behave, unless the user has."""
    # TensorFlow's own chatter is about its build, not about the user's work.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    # Everything runs on CPUs; TensorFlow would put a model on a GPU that it finds.
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    # gRPC's own log says less than our messages about the same.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def _invoke(arguments: list[str], session: Session) -> int:
    command = typer.main.get_command(app)
    try:
        code = command.main(
            arguments or ["--help"], prog_name="ctrpipe", standalone_mode=False, obj=session
        )
    except TyperException as error:
        _suggest_command(arguments, error)
        raise
    if code == Interrupted(signal.SIGINT).exit_code:
        # Typer's word for a KeyboardInterrupt.
        raise Interrupted(signal.SIGINT)
    return code if isinstance(code, int) else 0


def _suggest_command(arguments: Sequence[str], error: TyperException) -> None:
    """Adds the nearest subcommand to the message about one that does not exist."""
    name = next((word for word in arguments if not word.startswith("-")), "")
    if name in COMMANDS or not error.message.startswith("No such command"):
        return
    near = difflib.get_close_matches(name, COMMANDS, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(COMMANDS)}"
    error.message = f"No such command '{name}' ({hint})"
