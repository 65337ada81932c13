"""The processes of an elastic run: a rendezvous, and nodes that run a script."""

import subprocess
import sys
import time

from job_watch import CTRPIPE

from ctr_pipeline.distributed.elastic.local_nodes import free_addresses
from tests.distributed.waiting import end_process


class Cluster:
    """The rendezvous and nodes of one run, whose logs are in its folder.

    Args:
        stack: Ends them.
        ledger: The rendezvous keeps one, so that it may be killed and served again.
    """

    def __init__(self, folder, stack, *, ledger=False):
        self.folder = folder
        self._stack = stack
        self._ledger = ("--ledger", str(folder / "ledger.sqlite")) if ledger else ()
        (self._place,) = free_addresses("127.0.0.1", 1)
        self.serve()

    def serve(self):
        self.rendezvous = self._start(
            *("rendezvous", "elastic-rendezvous", "--bind", self._place, "--lease", "4"),
            *("--access", str(self.folder / "access"), *self._ledger),
        )
        self.wait(lambda: "Serving" in self.log("rendezvous"))

    def start_node(self, name, nodes, grace, *script):
        return self._start(
            *(name, "elastic-run", "--nodes", nodes, "--rendezvous", self._place),
            *("--access", str(self.folder / "access"), "--monitor-interval", "0.1"),
            *("--max-restarts", "0", "--grace", grace),
            *("--", sys.executable, *map(str, script)),
        )

    def _start(self, name, *arguments):
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen([*CTRPIPE, *arguments], stdout=log, stderr=log)
        self._stack.callback(end_process, process)
        return process

    def log(self, name):
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def wait(self, condition):
        end = time.monotonic() + 280.0
        while not condition():
            logs = {path.name: path.read_text()[-3000:] for path in self.folder.glob("*.log")}
            assert time.monotonic() < end, logs
            assert not any("giving up" in log for log in logs.values()), logs
            time.sleep(0.1)

    def expect_end(self, nodes):
        for node in nodes:
            assert node.wait(280) == 0, self.log("node-0")
        assert self.rendezvous.wait(60) == 0
