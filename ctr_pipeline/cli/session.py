"""One call of the command line: how much it prints, as text or JSON, and its config."""

import logging
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import typer

from ctr_pipeline.apps.json_text import json_text
from ctr_pipeline.cli.first_import import (
    hide_optional_packages,
    hold_native_stderr,
    on_first_import,
    pause_garbage_collection,
)
from ctr_pipeline.progress import Progress, SilentProgress
from ctr_pipeline.storage.opening import address_of
from ctr_pipeline.tracebacks import LogFormatter, conceal_values

if TYPE_CHECKING:
    from ctr_pipeline.config import LoadedConfig


@dataclass
class CommandSession:
    """The settings of one call, from options before and after the subcommand.

    Attributes:
        verbosity: 0: log warnings; 1: information; 2: everything.
        quiet: Print results and errors only.
        as_json: Print one JSON object to stdout instead of text.
        run_folder: Set once the config is read; the traceback of a bug goes to its log.
        resume_command: Continues the work after an interruption; None if nothing can.
        preset_variables: Environment variables that ctrpipe set for itself, not the user.
    """

    verbosity: int = 0
    quiet: bool = False
    as_json: bool = False
    run_folder: Path | None = None
    resume_command: str | None = None
    preset_variables: frozenset[str] = frozenset()
    _progress: Progress | None = field(default=None, repr=False)

    @classmethod
    def of_call(cls, context: typer.Context) -> Self:
        """The session that `main` gave this call, or a new one."""
        return context.find_object(cls) or cls()

    def add_options(self, *, verbose: int, quiet: bool, as_json: bool) -> None:
        """Adds options that stand before or after the subcommand, and starts the log."""
        self.verbosity = max(self.verbosity, verbose)
        self.quiet = self.quiet or quiet
        self.as_json = self.as_json or as_json
        self.start_logging()

    @property
    def progress(self) -> Progress:
        """Bars on a terminal, plain lines elsewhere, nothing with --quiet."""
        if self._progress is None:
            self._progress = self._choose_progress()
        return self._progress

    def _choose_progress(self) -> Progress:
        if self.quiet:
            return SilentProgress()
        if sys.stderr.isatty():
            from ctr_pipeline.cli.progress_bars import BarProgress

            return BarProgress()
        from ctr_pipeline.cli.progress_lines import LineProgress

        return LineProgress()

    def read(
        self, path: Path, overrides: Sequence[str] | None, *, resumed_by: str | None = None
    ) -> "LoadedConfig":
        """Like `load`, and logs it.

        Args:
            resumed_by: The subcommand, if it can resume after an interruption.
        """
        named = address_of(path) or str(path)
        self.progress.log(f"Reading {named}")
        loaded = self.load(path, overrides)
        if resumed_by is not None:
            self.resume_command = command_line(resumed_by, named, overrides, "--resume")
        return loaded

    def load(self, path: Path, overrides: Sequence[str] | None) -> "LoadedConfig":
        """Reads the config, with all checks that need no data."""
        from ctr_pipeline.config import load_config

        if address_of(path) is not None:
            from ctr_pipeline.pipeline.run_folder import find_run

            path = find_run(path).path
        loaded = load_config(path, overrides or (), find_header=_find_header)
        self.run_folder = loaded.config.run_folder
        conceal_values(loaded.config.has_sensitive_columns)
        return loaded

    def load_for_cluster(self, path: Path, overrides: Sequence[str] | None) -> "LoadedConfig":
        """Like `load`, for a run on Kubernetes."""
        return self.load(path, [*(overrides or ()), "runtime.mode=kubernetes"])

    def show(self, payload: Any, render: Callable[[], None]) -> None:
        """Prints a result: `payload` as JSON with --json, otherwise by calling `render`."""
        if self.as_json:
            print_json(payload)
        else:
            render()

    def start_logging(self) -> None:
        """Sends the log to stderr; -v decides how much of it."""
        level = {0: logging.WARNING, 1: logging.INFO}.get(self.verbosity, logging.DEBUG)
        logger = logging.getLogger("ctr_pipeline")
        stream = logging.StreamHandler(sys.stderr)
        stream.setFormatter(LogFormatter("%(levelname)s %(name)s: %(message)s"))
        stream.setLevel(logging.ERROR if self.quiet else level)
        for old in [old for old in logger.handlers if isinstance(old, logging.StreamHandler)]:
            if not isinstance(old, logging.FileHandler):
                logger.removeHandler(old)
        logger.addHandler(stream)
        # TensorFlow gives the root logger a handler, which would print everything twice.
        logger.propagate = False
        if self.verbosity > 0:
            logger.setLevel(min(level, logger.level or level))
        quiet = [hold_native_stderr] if self.verbosity == 0 else []
        on_first_import("keras", hide_optional_packages, pause_garbage_collection)
        on_first_import("tensorflow", hide_optional_packages, pause_garbage_collection, *quiet)

    def start_member_logging(self) -> None:
        """Sends the log of a member to stderr, with times: the launcher writes it to a file."""
        logger = logging.getLogger("ctr_pipeline")
        form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
        level = logging.DEBUG if self.verbosity > 1 else logging.INFO
        for handler in logger.handlers:
            handler.setFormatter(LogFormatter(form))
            handler.setLevel(logging.ERROR if self.quiet else level)
        logger.setLevel(level)


def _find_header(data: Mapping[str, Any]) -> Sequence[str]:
    # It imports Arrow, so it is loaded only where something is wrong already.
    from ctr_pipeline.pipeline.stages.header import find_header

    return find_header(data)


def command_line(verb: str, config: str, overrides: Sequence[str] | None, *flags: str) -> str:
    """What to type for a subcommand on a config with the same overrides."""
    options = [part for override in overrides or () for part in ("--set", override)]
    return shlex.join(["ctrpipe", verb, config, *options, *flags])


def print_json(payload: Any) -> None:
    """Prints one JSON object to stdout, as `json_text` makes it."""
    sys.stdout.write(json_text(payload))
    sys.stdout.flush()
