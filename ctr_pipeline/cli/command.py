"""Makes subcommands of plain functions: `@command(…)` gives a function its session and its place.

A file of a subcommand holds one such function; `main.COMMANDS` lists the files.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

import typer

from ctr_pipeline.cli.options import AsJson, Quiet, Verbose
from ctr_pipeline.cli.session import CommandSession


class Panel(StrEnum):
    """The headings of `ctrpipe --help`."""

    PIPELINE = "The whole pipeline"
    STARTING = "Getting started"
    TABLES = "Examine data"
    STAGES = "Single stages (same config, same run folder)"
    JOB = "Jobs of several processes"
    MEMBERS = "Members of a job ('ctrpipe run' starts them)"
    CLUSTER = "Jobs on Kubernetes"
    ELASTIC = "Elastic runs of any TensorFlow script"
    MACHINE = "Runs and environment"


_Function = TypeVar("_Function", bound=Callable[..., int | None])


@dataclass(frozen=True)
class Group:
    """A command that only has commands of its own, such as `ctrpipe sample criteo`."""

    name: str
    help: str
    panel: Panel
    commands: list[Callable[..., int | None]] = field(default_factory=list)


@dataclass(frozen=True)
class _Command:
    panel: Panel
    function: Callable[..., int | None]


_registry: dict[str, _Command | Group] = {}


def command(place: Panel | Group, *, has_json: bool = True) -> Callable[[_Function], _Function]:
    """Registers a function as the subcommand that has its name, and returns it unchanged.

    In the name of the subcommand, `_` becomes `-`.

    The function takes the session, then its own arguments. On the command line, the options
    `--verbose`, `--quiet` and `--json` take the place of the session, which they set up.

    Args:
        place: The heading in `ctrpipe --help`, or the group.
        has_json: Whether there is a `--json`.
    """

    def register(function: _Function) -> _Function:
        with_options = _with_session_options(function, has_json)
        if isinstance(place, Group):
            place.commands.append(with_options)
            _registry[place.name] = place
        else:
            _registry[function.__name__.replace("_", "-")] = _Command(place, with_options)
        return function

    return register


def add_command(app: typer.Typer, name: str) -> None:
    """Adds a registered command, or group of commands, to the command line."""
    registered = _registry[name]
    if isinstance(registered, Group):
        group = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help=registered.help)
        for function in registered.commands:
            group.command()(function)
        app.add_typer(group, name=name, rich_help_panel=registered.panel)
    else:
        app.command(name, rich_help_panel=registered.panel)(registered.function)


def _with_session_options(
    function: Callable[..., int | None], has_json: bool
) -> Callable[..., int | None]:
    """The function as Typer calls it."""

    @functools.wraps(function, assigned=("__module__", "__name__", "__doc__"))
    def with_options(
        context: typer.Context,
        *,
        verbose: Verbose = 0,
        quiet: Quiet = False,
        as_json: AsJson = False,
        **arguments: Any,
    ) -> int | None:
        session = CommandSession.of_call(context)
        session.add_options(verbose=verbose, quiet=quiet, as_json=as_json)
        return function(session, **arguments)

    # Typer reads the arguments from the signature.
    own = list(inspect.signature(function).parameters.values())[1:]
    context, *options, _ = inspect.signature(with_options, follow_wrapped=False).parameters.values()
    shared = [one for one in options if has_json or one.name != "as_json"]
    with_options.__signature__ = inspect.Signature([context, *own, *shared])  # type: ignore[attr-defined]
    return with_options
