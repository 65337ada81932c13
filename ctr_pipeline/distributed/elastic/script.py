"""The script of a node as a process: start, watch, end."""

import json
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from pathlib import Path

from ctr_pipeline.distributed.coordination.rendezvous import World
from ctr_pipeline.distributed.elastic.client import RendezvousClient
from ctr_pipeline.distributed.elastic.secrets import load_access
from ctr_pipeline.distributed.launchers.processes.spawning import ProcessHandle, spawn
from ctr_pipeline.errors import CtrPipelineError

VERSION_VARIABLE = "CTRPIPE_WORLD_VERSION"
_RENDEZVOUS_VARIABLE = "CTRPIPE_RENDEZVOUS"
_ACCESS_VARIABLE = "CTRPIPE_RENDEZVOUS_ACCESS"


class ScriptState(Enum):
    """What a script does at this moment."""

    HEALTHY = auto()
    SUCCEEDED = auto()
    FAILED = auto()


def world_environment(world: World) -> dict[str, str]:
    """The environment variables by which TensorFlow and the script know the world."""
    config = {
        "cluster": {"worker": list(world.addresses)},
        "task": {"type": "worker", "index": world.rank},
    }
    return {"TF_CONFIG": json.dumps(config), VERSION_VARIABLE: str(world.version)}


def rendezvous_environment(rendezvous: str, access: Path) -> dict[str, str]:
    """The environment variables by which the script finds the rendezvous.

    Args:
        rendezvous: `host:port`.
        access: Its access folder.
    """
    return {_RENDEZVOUS_VARIABLE: rendezvous, _ACCESS_VARIABLE: str(access.absolute())}


def world_of_script() -> World:
    """The world that this process, a script, is a member of; one of its own if nobody says so.

    Raises:
        CtrPipelineError: `TF_CONFIG` is damaged.
    """
    config = os.environ.get("TF_CONFIG")
    if not config:
        return World(0, ("",), 0)
    try:
        read = json.loads(config)
        addresses, rank = tuple(read["cluster"]["worker"]), read["task"]["index"]
        addresses[rank]
        return World(int(os.environ.get(VERSION_VARIABLE, "0")), addresses, rank)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise CtrPipelineError(
            f"names no workers and the index of this one ({type(error).__name__})",
            place="TF_CONFIG",
            remedy="Start the script by 'ctrpipe elastic-run', or without TF_CONFIG",
        ) from error


def rendezvous_of_script(world: World) -> RendezvousClient | None:
    """The rendezvous that the script was started by; None without one.

    Raises:
        CtrPipelineError: The access folder is gone.
    """
    rendezvous, folder = (os.environ.get(key) for key in (_RENDEZVOUS_VARIABLE, _ACCESS_VARIABLE))
    if rendezvous is None or folder is None or not world.version:
        return None
    address = world.addresses[world.rank]
    return RendezvousClient(rendezvous, address, load_access(Path(folder), "worker"))


def find_program(name: str) -> str:
    """The absolute path of a program that is named as in a shell.

    Raises:
        CtrPipelineError: There is none that may be executed.
    """
    path = shutil.which(name)
    if path is None:
        raise CtrPipelineError(
            "is not a program that can be run",
            place=name,
            remedy="Write the command after --, such as: -- python script",
        )
    return os.path.abspath(path)  # noqa: PTH100  links stay: a virtual environment is one


class ScriptProcess:
    """A running script, in a process group of its own that dies with the calling thread.

    Args:
        command: An absolute path and its arguments.
        environment: All of its environment variables.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        sys.stdout.flush()
        pid = spawn(command, environment=environment, output=1, errors=2)
        self._handle = ProcessHandle(pid)
        self._exit_code: int | None = None

    @property
    def pid(self) -> int:
        """Also the number of its process group."""
        return self._handle.pid

    @property
    def exit_code(self) -> int:
        """As a shell has it, 128 + the signal that killed it; 0 while it runs."""
        code = self._exit_code or 0
        return code if code >= 0 else 128 - code

    @property
    def state(self) -> ScriptState:
        """What it does; the rest of its process group is ended with it."""
        if self._exit_code is None and self._has_ended(0.0):
            self._kill_group()
        if self._exit_code is None:
            return ScriptState.HEALTHY
        return ScriptState.FAILED if self._exit_code else ScriptState.SUCCEEDED

    def wait(self, seconds: float, stop_descriptor: int) -> None:
        """Returns when the script has ended, the descriptor is readable, or the time is over."""
        descriptors = [] if self._exit_code is not None else [self._handle.fileno()]
        _wait_readable([*descriptors, stop_descriptor], seconds)

    def end(
        self, grace_seconds: float, *, meanwhile: Callable[[], object], interval_seconds: float
    ) -> None:
        """Ends its process group: by SIGTERM, and by SIGKILL after the grace.

        Args:
            meanwhile: Called in intervals.
            interval_seconds: Between two such calls.
        """
        if self._exit_code is not None:
            return
        deadline = time.monotonic() + grace_seconds
        os.killpg(self.pid, signal.SIGTERM)
        while (left := deadline - time.monotonic()) > 0.0:
            if self._has_ended(min(left, interval_seconds)):
                break
            meanwhile()
        self._kill_group()

    def _has_ended(self, seconds: float) -> bool:
        return _wait_readable([self._handle.fileno()], seconds)

    def _kill_group(self) -> None:
        # Before its leader is reaped, so that the number cannot be another group's by now.
        os.killpg(self.pid, signal.SIGKILL)
        self._has_ended(60.0)
        self._exit_code = self._handle.reap()
        self._handle.close()


def _wait_readable(descriptors: Sequence[int], seconds: float) -> bool:
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000.0))
