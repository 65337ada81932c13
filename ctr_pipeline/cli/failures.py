"""How a command ends: the one place that turns errors into messages and exit codes.

0: done; 1: an error that the user can mend; 3: a bug; 73: no more threads; 75: try again;
130 and 143: stopped by Ctrl-C or SIGTERM.
"""

import errno
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typer import Abort
from typer.exceptions import TyperException

from ctr_pipeline.cli.session import CommandSession, print_json
from ctr_pipeline.durable import not_through_links
from ctr_pipeline.errors import ConfigError, CtrPipelineError, Interrupted, printable
from ctr_pipeline.interruption import handle_signals
from ctr_pipeline.machine import EXIT_NO_THREAD, is_refused_thread
from ctr_pipeline.tracebacks import render_traceback, summarize

EXIT_USER = 1
EXIT_BUG = 3

_MENDABLE = {
    errno.ENOSPC: "Free space, then try again",
    errno.EDQUOT: "Free space in your quota, then try again",
    errno.EACCES: "Check the permissions",
    errno.EPERM: "Check the permissions",
    errno.EROFS: "Choose a place that can be written",
    errno.EMFILE: "Raise the limit on open files: ulimit -n 4096",
}
"""Remedies for system errors that the user can mend, wherever they occur."""


def exit_code_of(action: Callable[[], int | None], session: CommandSession) -> int:
    """Runs a command, prints how it failed, and returns the exit code."""
    try:
        with handle_signals():
            return action() or 0
    except Interrupted as stop:
        return _interrupted(stop.signal_number, stop.exit_code, session)
    except KeyboardInterrupt:
        return _interrupted(signal.SIGINT, 128 + signal.SIGINT, session)
    except CtrPipelineError as error:
        return _fail(session, error, error.exit_code)
    except TyperException as error:
        return _fail(session, _usage_error(error), EXIT_USER)
    except Abort:
        return _fail(session, CtrPipelineError("aborted"), EXIT_USER)
    except BrokenPipeError:
        # The reader of the output has closed it, as `head` does.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_USER
    except Exception as error:  # noqa: BLE001  the last line of defence: everything else is a bug
        # TensorFlow has a class of its own for it, which also says that a disk is full.
        if isinstance(error, MemoryError) or "OOM when allocating" in str(error):
            remedy = "Lower train.batch_size, the sizes of the model or runtime.memory_limit_gb"
            return _fail(session, CtrPipelineError("out of memory", remedy=remedy), EXIT_USER)
        if isinstance(error, OSError) and error.errno in _MENDABLE:
            message = (error.strerror or "a system error").lower()
            place = str(error.filename) if error.filename else None
            remedy = _MENDABLE[error.errno]
            return _fail(session, CtrPipelineError(message, place=place, remedy=remedy), EXIT_USER)
        if is_refused_thread(error):
            remedy = "Raise the limit of processes (ulimit -u, or pids.max of the control group)"
            refused = CtrPipelineError("the system allows no more threads", remedy=remedy)
            return _fail(session, refused, EXIT_NO_THREAD)
        return _bug(error, session)


def _fail(session: CommandSession, error: CtrPipelineError, exit_code: int) -> int:
    _print_message(f"error: {error}")
    if session.as_json:
        print_json({"error": _as_payload(error), "exit_code": exit_code})
    return exit_code


def _as_payload(error: CtrPipelineError) -> dict[str, Any]:
    payload: dict[str, Any] = {
        "type": type(error).__name__,
        "message": error.message,
        "place": error.place,
        "remedy": error.remedy,
    }
    if isinstance(error, ConfigError):
        payload["problems"] = [
            {
                "place": problem.place,
                "key": problem.key,
                "message": problem.message,
                "suggestion": problem.suggestion,
            }
            for problem in error.problems
        ]
    return payload


def _usage_error(error: TyperException) -> CtrPipelineError:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "ctrpipe"
    message = error.format_message().rstrip(".").replace("Input should be", "it should be")
    return CtrPipelineError(message, remedy=f"'{command} --help' shows how it is used")


def _interrupted(number: int, exit_code: int, session: CommandSession) -> int:
    name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
    hint = f"; '{session.resume_command}' continues from here" if session.resume_command else ""
    _print_message(f"stopped by {name}{hint}")
    if session.as_json:
        payload = {"type": "Interrupted", "message": f"stopped by {name}"}
        print_json({"error": payload, "exit_code": exit_code})
    return exit_code


def _bug(error: Exception, session: CommandSession) -> int:
    log = _write_traceback(error, session.run_folder)
    summary = printable(summarize(error).splitlines()[0][:200])
    _print_message(
        f"error: a bug in ctrpipe, not in your config or data ({summary}); details are in {log}"
    )
    if session.as_json:
        payload = {"type": type(error).__name__, "message": summary, "log": str(log)}
        print_json({"error": payload, "exit_code": EXIT_BUG})
    return EXIT_BUG


def _write_traceback(error: Exception, run_folder: Path | None) -> Path:
    text = render_traceback(error)
    if run_folder is not None and run_folder.is_dir():
        log = run_folder / "run.log"
        try:
            with open(log, "a", encoding="utf-8", opener=not_through_links) as file:
                file.write(text)
        except OSError:
            # The folder itself may be broken; the temporary folder is tried next.
            pass
        else:
            return log
    descriptor, name = tempfile.mkstemp(prefix="ctrpipe-", suffix=".log")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    return Path(name)


def _print_message(text: str) -> None:
    """Prints a message to stderr; on a terminal, the word `error` is red."""
    if sys.stderr.isatty() and "NO_COLOR" not in os.environ and text.startswith("error:"):
        text = f"\x1b[1;31merror:\x1b[0m{text.removeprefix('error:')}"
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
