"""`ctrpipe run` whose parameter servers are as busy as their share of the keys.

A server says that it had its core to itself for the part of the time that its part of a batch's
keys is: so on any machine, however fast and whatever else runs there, one with nearly all keys is
hot. All else is real: processes, keys, counters of partitions, the master's decision, the move.

    python hot_run.py run config.yaml
"""

import dataclasses
import os
import sys
import time

from ctr_pipeline.cli.main import main as ctrpipe
from ctr_pipeline.pipeline.job import launchers
from ctr_pipeline.pipeline.job.launchers import CommandLines

KEYS_A_BATCH = "CTRPIPE_TEST_KEYS_A_BATCH"
_AS_MEMBER = "member"


class HotCommandLines(CommandLines):
    """Parameter servers are started by this program."""

    def member(self, start):
        if start.role != "ps":
            return super().member(start)
        return [__file__, _AS_MEMBER, *self.from_fork_server(start)]


def measure_by_keys():
    """Has the servers of this process tell a processor time made of the keys that they serve."""
    from ctr_pipeline.distributed.ps.metrics import PsFigures

    of_process, keys_a_batch = PsFigures.of_process, int(os.environ[KEYS_A_BATCH])
    seen = {"at": time.monotonic(), "keys": 0, "version": 0, "seconds": 0.0}

    def of_keys(figures):
        now, stats = time.monotonic(), of_process(figures)
        loads = figures.core.state.partition_loads()
        keys = max(sum(loads.pulled_keys) + sum(loads.pushed_keys), seen["keys"])
        batches = stats.version - seen["version"]
        if batches > 0:
            share = (keys - seen["keys"]) / (2 * keys_a_batch * batches)
            seen["seconds"] += (now - seen["at"]) * min(share, 1.0)
            seen.update(at=now, keys=keys, version=stats.version)
        return dataclasses.replace(stats, cpu_seconds=seen["seconds"], cores=1.0, dense_bytes=0)

    PsFigures.of_process = of_keys


def main():
    """Runs `ctrpipe` in this process."""
    arguments = sys.argv[1:]
    if arguments[0] == _AS_MEMBER:
        arguments = arguments[1:]
        measure_by_keys()
    else:
        launchers.CommandLines = HotCommandLines
    sys.argv = ["ctrpipe", *arguments]
    sys.exit(ctrpipe(arguments))


if __name__ == "__main__":
    main()
