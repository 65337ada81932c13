"""A Spark cluster of one machine: a master and, if wanted, a worker, on the loopback address."""

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.distributed.waiting import end_process

SECONDS = 120
_ENVIRONMENT = {
    "SPARK_LOCAL_IP": "127.0.0.1",
    "SPARK_DAEMON_MEMORY": "256m",
    "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "SPARK_NO_DAEMONIZE": "1",
}


@contextmanager
def _process(folder: Path, role: str, *arguments: str) -> Iterator[Path]:
    """One process of the cluster; gives its log."""
    import pyspark

    program = Path(pyspark.__file__).parent / "bin" / "spark-class"
    log = folder / f"{role}.log"
    call = [str(program), f"org.apache.spark.deploy.{role.lower()}.{role}", *arguments]
    with log.open("wb") as output:
        process = subprocess.Popen(
            call, stdout=output, stderr=output, cwd=folder, env={**os.environ, **_ENVIRONMENT}
        )
    try:
        yield log
    finally:
        end_process(process)


def _await(log: Path, pattern: str) -> str:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        if match := re.search(pattern, log.read_text(errors="replace")):
            return match[0]
        time.sleep(0.2)
    raise TimeoutError(f"'{pattern}' did not come:\n{log.read_text(errors='replace')[-2000:]}")


@contextmanager
def running_cluster(folder: Path, *, has_worker: bool) -> Iterator[str]:
    """The master's address."""
    own = ("--host", "127.0.0.1", "--webui-port", "0")
    with ExitStack() as stack:
        master = stack.enter_context(_process(folder, "Master", *own, "--port", "0"))
        address = _await(master, r"spark://127\.0\.0\.1:\d+")
        if has_worker:
            stack.enter_context(
                _process(folder, "Worker", *own, "--cores", "1", "--memory", "1g", address)
            )
            _await(master, "Registering worker")
        yield address
