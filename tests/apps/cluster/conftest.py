"""What takes the place of a pod."""

import contextlib
import subprocess
import sys

import pytest

from ctr_pipeline.distributed.launchers.kubernetes.api import ApiError


class Process:
    """A command of a pod as a process of this machine."""

    def __init__(self, process):
        self._process = process
        self.exit_code, self.errors = 0, ""

    def write(self, data):
        try:
            self._process.stdin.write(data)
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise ApiError(0, "the connection to the pod broke off") from error

    def __iter__(self):
        while block := self._process.stdout.read1():
            yield block
        self.exit_code = self._process.wait()
        self.errors = self._process.stderr.read().decode()


class ProcessPods:
    """Runs the commands of pods on this machine."""

    @contextlib.contextmanager
    def run(self, _pod, command, *, has_input=False):
        pipe = subprocess.PIPE
        own = [sys.executable, *command[1:]]
        stdin = pipe if has_input else subprocess.DEVNULL
        with subprocess.Popen(own, stdin=stdin, stdout=pipe, stderr=pipe) as process:
            try:
                yield Process(process)
            finally:
                process.kill()


@pytest.fixture
def pods():
    return ProcessPods()
