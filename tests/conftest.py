"""What all tests start from."""

import functools
import gc
import os
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from hypothesis import settings

from ctr_pipeline.export import proving_process
from ctr_pipeline.export.proving_process import ProvingProcess

# A shell that runs the tests in the background has them ignore Ctrl-C, and all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The command line sets it before it imports TensorFlow, which reads it once. A test of a command
# may run where an earlier one has imported TensorFlow already, and would read its warnings.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# XLA compiles models quickly, not well: compiling took most of a test that trains, whose few steps
# win nothing back. Slow tests and demonstrations train as users do: `make e2e` sets it to nothing.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
)

# How long an example takes tells how busy the machine is. `make nightly` tries many examples.
settings.register_profile("quick", deadline=None, max_examples=25)
settings.register_profile("thorough", deadline=None, max_examples=300)
settings.load_profile("quick")

# What is made until all tests are known stays: looking it over for cycles takes seconds.
gc.disable()


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def unsynced_files():
    """No file is forced to the disk, which takes a test longer than all else and is for power cuts.

    Tests of what is forced, and of disks that refuse it, put another function in its place. What
    tests start in processes of its own forces its files.
    """

    def check_descriptor(file):
        os.fstat(file if isinstance(file, int) else file.fileno())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", check_descriptor)
        yield


FORKED = Path(__file__).parent / "export" / "forked_interpreter.py"


@contextmanager
def forked_interpreter():
    """An interpreter for the script that proves exports; it has TensorFlow already."""
    script = Path(proving_process.__file__).with_name("parity_process.py")
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        address, interpreter = Path(folder) / "socket", Path(folder) / "python"
        listener.bind(str(address))
        listener.listen()
        start = f"#!/bin/sh\nexec '{sys.executable}' -IS '{FORKED}' ask '{address}'\n"
        interpreter.write_text(start)
        interpreter.chmod(0o700)
        # What TensorFlow says as it loads is no part of what a test reads from standard error.
        log = Path(folder) / "log"
        with (
            log.open("wb") as said,
            subprocess.Popen(
                [sys.executable, "-I", FORKED, "serve", str(listener.fileno()), script],
                stdin=subprocess.PIPE,
                stderr=said,
                pass_fds=[listener.fileno()],
            ) as server,
        ):
            yield str(interpreter)
        if server.returncode:
            sys.stderr.write(log.read_text())


@pytest.fixture(scope="session", autouse=True)
def forked_proofs():
    """Runs in this process prove their exports without importing TensorFlow for each."""
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        interpreter = functools.cache(lambda: stack.enter_context(forked_interpreter()))
        patch.setattr(proving_process, "ProvingProcess", lambda: ProvingProcess(interpreter()))
        yield
