"""`ctrpipe run` whose members reach each other through proxies that can be told to misbehave.

The command lines of members are made as always, plus the addresses of the proxies: one before the
master, one before each parameter server. Whoever started this tells the proxies what to do over a
socket, one JSON object a line: `{"proxy": "ps-0", "do": "stall"}`.

    python benchmarks/proxied_run.py SOCKET run config.yaml
"""

import json
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))

from ctr_pipeline.cli.main import main as ctrpipe  # noqa: E402
from ctr_pipeline.distributed.rpc.endpoint import load_endpoint  # noqa: E402
from ctr_pipeline.pipeline.job import launchers  # noqa: E402
from ctr_pipeline.pipeline.job.launchers import CommandLines  # noqa: E402
from tests.distributed.faults.proxy import Direction, FaultyProxy  # noqa: E402

if TYPE_CHECKING:
    from ctr_pipeline.distributed.coordination.launching import MemberStart

_NOWHERE = "127.0.0.1:9"


class Proxies:
    """The proxies of one job, made when they are first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._proxies: dict[str, FaultyProxy] = {}
        self._ports: dict[str, int] = {}

    def before(self, name: str) -> FaultyProxy:
        """The proxy before a member."""
        with self._lock:
            if name not in self._proxies:
                self._proxies[name] = FaultyProxy(self._bind(name))
            return self._proxies[name]

    def bind(self, name: str) -> str:
        """Where a parameter server is to listen."""
        with self._lock:
            return self._bind(name)

    def _bind(self, name: str) -> str:
        if name == "master":
            return _NOWHERE
        if name not in self._ports:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self._ports[name] = probe.getsockname()[1]
        return f"127.0.0.1:{self._ports[name]}"

    def act(self, command: dict[str, Any]) -> dict[str, Any]:
        """Does what a line of the socket says."""
        proxy = self.before(command["proxy"])
        match command["do"]:
            case "half_open":
                proxy.half_open(Direction[command["dead"]])
            case "slow":
                proxy.slow(
                    bytes_per_second=command.get("bytes_per_second", 0.0),
                    delay_seconds=command.get("delay_seconds", 0.0),
                )
            case "cut" | "stall" | "heal" | "reset_once" as what:
                getattr(proxy, what)()
            case "traffic":
                pass
            case unknown:
                raise ValueError(f"no such fault: {unknown}")
        return {
            "to_target": proxy.traffic.bytes_to_target,
            "to_caller": proxy.traffic.bytes_to_caller,
        }


PROXIES = Proxies()


@dataclass(frozen=True)
class ProxiedCommandLines(CommandLines):
    """Command lines with the addresses of proxies."""

    def from_fork_server(self, start: "MemberStart") -> Sequence[str]:
        """Arguments of the command line."""
        command = list(super().from_fork_server(start))
        if start.role == "master":
            return command
        command += ["--master", PROXIES.before("master").address]
        if start.role == "ps":
            name = f"ps-{start.index}"
            command += ["--bind", PROXIES.bind(name), "--advertise", PROXIES.before(name).address]
        return command


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        for line in self.rfile:
            try:
                answer: dict[str, Any] = PROXIES.act(json.loads(line))
            except Exception as error:  # noqa: BLE001  the other side is told
                answer = {"error": f"{type(error).__name__}: {error}"}
            self.wfile.write(json.dumps(answer).encode() + b"\n")


def _follow_master(job_folder: Path) -> None:
    """Points the master's proxy to wherever the master is."""
    known = ""
    while True:
        endpoint = load_endpoint(job_folder)
        if endpoint is not None and endpoint.address != known:
            known = endpoint.address
            PROXIES.before("master").retarget(known)
        time.sleep(0.05)


def main() -> None:
    """Serves the socket and runs `ctrpipe` in this process."""
    control, *arguments = sys.argv[1:]
    server = socketserver.ThreadingUnixStreamServer(control, _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    job_folder = Path(control).parent / "run" / "job"
    threading.Thread(target=_follow_master, args=(job_folder,), daemon=True).start()
    launchers.CommandLines = ProxiedCommandLines  # type: ignore[misc]
    sys.argv = ["ctrpipe", *arguments]
    sys.exit(ctrpipe(arguments))


if __name__ == "__main__":
    main()
