"""`ctrpipe elastic-run` with real processes: command line, the environment, exit codes."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

CTRPIPE = [sys.executable, "-m", "ctr_pipeline"]


def _run(*arguments, **options):
    return subprocess.run(
        [*CTRPIPE, *arguments], capture_output=True, text=True, timeout=120, check=False, **options
    )


def test_standalone_runs_all_nodes_and_keeps_the_environment():
    environment = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    text = (
        "import os, sys; print(os.environ['TF_CONFIG']);"
        "sys.exit('CUDA_VISIBLE_DEVICES' in os.environ or sys.argv[1:] != ['--json'])"
    )
    found = _run(
        *("elastic-run", "--standalone", "--nodes", "2:3", "--monitor-interval", "0.1"),
        *("--", sys.executable, "-c", text, "--json"),
        env=environment,
    )
    assert found.returncode == 0, found.stderr
    configs = [json.loads(line) for line in found.stdout.splitlines()]
    assert sorted(config["task"]["index"] for config in configs) == [0, 1, 2]
    assert len({tuple(config["cluster"]["worker"]) for config in configs}) == 1
    assert "world 1 of 2:3 formed: 3 nodes" in found.stderr


def test_the_exit_code_is_that_of_the_script():
    found = _run(
        *("elastic-run", "--standalone", "--nodes", "1", "--max-restarts", "0", "-q"),
        *("--", sys.executable, "-c", "raise SystemExit(42)"),
    )
    assert (found.returncode, found.stderr) == (42, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nodes", "4:2", "--standalone"], "Write MIN:MAX"),
        (["--nodes", "1:2"], "--rendezvous and --access are needed"),
        (["--nodes", "1:2", "--standalone", "--rendezvous", "a:1"], "Leave out --rendezvous"),
        (["--nodes", "1:2", "--rendezvous", "a", "--access", "nowhere"], "Write HOST:PORT"),
        (["--nodes", "1:2", "--rendezvous", "a:1", "--access", "nowhere"], "nowhere/token"),
    ],
)
def test_bad_options_are_explained(arguments, message):
    found = _run("elastic-run", *arguments, "--", "true")
    assert found.returncode == 1
    assert message in found.stderr
    assert found.stderr.count("\n") == 1
