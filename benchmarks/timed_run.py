"""`ctrpipe` in several processes whose members write down when they do what.

The product is as always; a few of its methods are wrapped before a member begins. Each member
writes a file `ROLE-PID.jsonl` into a folder, one JSON object a line, times in Unix seconds:

- a worker, whenever it hands in the gradients of a batch: `{"epoch": 1, "at": …}`;
- a parameter server, for each cut: `{"cut": 3, "begin": …, "end": …, "pause": …, "kind": "delta",
  "rows": …, "bytes": …}`;
- the master, for each cut, from the first server asked until its manifest is durable:
  `{"cut": 3, "begin": …, "end": …}`.

    python benchmarks/timed_run.py FOLDER train config.yaml
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctr_pipeline.cli.main import main as ctrpipe
from ctr_pipeline.pipeline.job.launchers import CommandLines

if TYPE_CHECKING:
    from ctr_pipeline.distributed.coordination.launching import MemberStart

_FOLDER = "CTRPIPE_TIMED_RUN"


@dataclass(frozen=True)
class TimedCommandLines(CommandLines):
    """Members are this program; none is forked, so that each is wrapped in time."""

    def fork_server(self) -> None:
        """There is none."""
        return

    def member(self, start: "MemberStart") -> Sequence[str]:
        """Arguments of `python` for a member."""
        return [__file__, "member", *self.from_fork_server(start)]


def open_notes(role: str) -> Callable[[dict[str, Any]], None]:
    """A function that writes a line."""
    path = Path(os.environ[_FOLDER]) / f"{role}-{os.getpid()}.jsonl"
    file = path.open("a", encoding="utf-8", buffering=1)

    def note(line: dict[str, Any]) -> None:
        file.write(json.dumps(line) + "\n")

    return note


def wrap_worker(note: Callable[[dict[str, Any]], None]) -> None:
    """Notes when a batch's gradients are handed in; the next batch begins then."""
    from ctr_pipeline.distributed.worker.ps_client import PsClient

    start_push = PsClient.start_push

    def noted(
        self: PsClient, pull: Any, gradients: Any, dense: Any, batch: Any, **more: Any
    ) -> Any:
        push = start_push(self, pull, gradients, dense, batch, **more)
        note({"epoch": batch.epoch, "at": time.time()})
        return push

    PsClient.start_push = noted  # type: ignore[method-assign]


def wrap_server(note: Callable[[dict[str, Any]], None]) -> None:
    """Notes a server's part of each cut."""
    from ctr_pipeline.distributed.ps.checkpoints import Checkpoints

    snapshot = Checkpoints.snapshot

    def noted(self: Checkpoints, request: Any) -> Any:
        begin = time.time()
        reply = snapshot(self, request)
        files = [file for file in reply.files if file.kind != "dense"]
        note(
            {
                "cut": request.cut,
                "begin": begin,
                "end": time.time(),
                "pause": reply.pause_seconds,
                "kind": files[0].kind if files else "none",
                "rows": sum(file.num_rows for file in files),
                "bytes": sum(file.num_bytes for file in files),
            }
        )
        return reply

    Checkpoints.snapshot = noted  # type: ignore[method-assign]


def wrap_master(note: Callable[[dict[str, Any]], None]) -> None:
    """Notes each cut as a whole."""
    from ctr_pipeline.distributed.master.cuts import CutKeeper

    take = CutKeeper.take

    def noted(self: CutKeeper, action: Any, *more: Any, **named: Any) -> Any:
        begin = time.time()
        outcome = take(self, action, *more, **named)
        note({"cut": action.cut, "begin": begin, "end": time.time()})
        return outcome

    CutKeeper.take = noted  # type: ignore[method-assign]


WRAPPERS = {"worker": wrap_worker, "ps": wrap_server, "master": wrap_master}


def main() -> None:
    """Runs `ctrpipe` in this process, as a member or as who starts them."""
    first, *arguments = sys.argv[1:]
    if first == "member":
        role = arguments[0]
        WRAPPERS[role](open_notes(role))
    else:
        from ctr_pipeline.pipeline.job import launchers

        os.environ[_FOLDER] = first
        launchers.CommandLines = TimedCommandLines  # type: ignore[misc]
    sys.argv = ["ctrpipe", *arguments]
    sys.exit(ctrpipe(arguments))


if __name__ == "__main__":
    main()
