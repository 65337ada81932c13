"""Waiting for other threads and processes."""

import subprocess
import time


def end_process(process):
    """Asks a process to end, and kills it if it has not done so within 30 s."""
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_until(condition, seconds=60.0):
    """The condition's value once it is true; fails if that takes longer than `seconds`."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := condition():
            return found
        time.sleep(0.005)
    raise AssertionError(f"did not happen within {seconds} s")
