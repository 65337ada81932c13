import os
import subprocess
import sys
from pathlib import Path

import pytest

import ctr_pipeline

PROGRAM = """
import atexit, sys, threading, time, types
from ctr_pipeline.cli.process import run_process

class Tearing:
    def __del__(self):
        print("taken apart", flush=True)

tearing = Tearing()

is_said = threading.Event()

def thread():
    is_said.wait()
    time.sleep(0.2)
    print("thread")

def main():
    atexit.register(print, "at exit")
    threading.Thread(target=thread).start()
    print("command")
    is_said.set()
    {ending}

# Not patched: the real one would load what a process loads only after it has begun.
sys.modules["ctr_pipeline.cli.main"] = types.SimpleNamespace(main=main)
run_process()
"""


def run(ending, **options):
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(ending=ending)],
        **({"stdout": subprocess.PIPE} | options),
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
        text=True,
        check=False,
    )


def test_threads_are_waited_for_and_functions_run_then_it_is_over():
    done = run("return 7")
    assert done.stdout.split("\n") == ["command", "thread", "at exit", ""]
    assert done.stderr == ""
    assert done.returncode == 7


def test_an_error_nobody_expected_ends_as_in_every_program():
    done = run("raise RuntimeError('no')")
    assert "RuntimeError: no" in done.stderr
    assert "taken apart" in done.stdout
    assert done.returncode == 1


def test_output_that_cannot_be_written_is_not_lost_in_silence():
    with Path("/dev/full").open("w") as full:
        done = run("return 0", stdout=full)
    assert "No space left on device" in done.stderr
    assert done.returncode == 120


def test_process_is_over_with_a_stream_closed_as_well():
    done = run("sys.stderr.close()\n    return 7")
    assert done.stdout.split("\n") == ["command", "thread", "at exit", ""]
    assert done.returncode == 7


@pytest.mark.slow
def test_process_is_over_with_tensorflow_loaded_as_well():
    # Its logger closes the stream that it found while it was loaded, if that is no terminal.
    done = run(
        "from ctr_pipeline.cli.session import CommandSession\n"
        "    CommandSession().start_logging()\n"
        "    import tensorflow\n"
        "    return 0"
    )
    assert done.stdout.split("\n") == ["command", "thread", "at exit", ""]
    assert done.returncode == 0


def test_the_module_is_such_a_process():
    done = subprocess.run(
        [sys.executable, "-m", "ctr_pipeline", "schema", "--no-such-option"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "--no-such-option" in done.stderr


@pytest.mark.parametrize(
    "closed",
    [
        "<&- >&- 2>&-",
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("<&-", ">&-", "2>&-")),
    ],
)
def test_streams_that_were_closed_before_it_began_change_nothing(tmp_path, closed):
    command = f'"$0" -m ctr_pipeline sample criteo --rows 100 -o rows.tsv {closed}'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(ctr_pipeline.__file__).parents[1])},
        check=False,
    )
    assert done.returncode == 0
    assert len((tmp_path / "rows.tsv").read_text().splitlines()) == 100


@pytest.mark.parametrize("command", ["check ../c.yaml", "init ../c.csv", "runs"])
def test_a_deleted_working_folder_is_one_clear_sentence(tmp_path, command):
    folder = tmp_path / "gone"
    folder.mkdir()
    done = subprocess.run(
        ["sh", "-c", f'rmdir ../gone && exec "$0" -m ctr_pipeline {command}', sys.executable],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(ctr_pipeline.__file__).parents[1])},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == (
        "error: the folder that this command runs in was deleted. Change to a folder that exists\n"
    )
