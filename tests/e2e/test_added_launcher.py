"""A launcher that is one more file and one more line runs a job, on a copy of the package.

The file is `tests/distributed/launchers/plain_launcher.py`. The line says that its members may be
on other machines, so that they listen on all addresses and talk by TLS.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ctr_pipeline

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(600)]

PACKAGE = Path(ctr_pipeline.__file__).parent
LAUNCHER = Path(__file__).parents[1] / "distributed" / "launchers" / "plain_launcher.py"
MODULE = "ctr_pipeline.distributed.launchers.plain"
CODE = "distributed/launchers/plain.py"
REGISTRY = "specs/launchers.py"
LINE = f'    LauncherKind("plain", "{MODULE}:PlainLauncher", "children", 4, spans_hosts=True),\n'
CONFIG = """
data:
  train: rows.tsv
  format: tsv
  columns: [label, I1..I13, C1..C26]
  label: label
model: {name: deepfm, embedding_dim: 4, hidden_units: [16]}
train: {epochs: 1, batch_size: 256}
runtime:
  mode: plain
  parameter_servers: 2
  workers: {min: 1, max: 1}
output: run
"""


def copy_package(tree):
    """The package as links, but for the folders that something is added to."""
    opened = {
        PACKAGE,
        *(PACKAGE / file for name in (CODE, REGISTRY) for file in Path(name).parents),
    }
    for folder in sorted(opened):
        target = tree / "ctr_pipeline" / folder.relative_to(PACKAGE)
        target.mkdir(parents=True)
        for entry in folder.iterdir():
            if entry not in opened and entry.name != "__pycache__":
                (target / entry.name).symlink_to(entry)
    return tree / "ctr_pipeline"


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Where a package with one more launcher is imported from."""
    tree = tmp_path_factory.mktemp("tree")
    package = copy_package(tree)
    (package / CODE).write_text(LAUNCHER.read_text())
    registry = (package / REGISTRY).read_text()
    end = "\n)\n\nLAUNCHERS"
    assert registry.count(end) == 1
    (package / REGISTRY).unlink()
    (package / REGISTRY).write_text(registry.replace(end, f"\n{LINE}{end[1:]}"))
    return tree


@pytest.fixture(scope="module")
def ctrpipe(tree, tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    (folder / "config.yaml").write_text(CONFIG)

    def call(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "ctr_pipeline", *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(tree)},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    call.folder = folder
    assert call("sample", "criteo", "--rows", "3000", "--output", "rows.tsv").returncode == 0
    return call


@pytest.fixture(scope="module")
def run(ctrpipe):
    done = ctrpipe("run", "config.yaml")
    assert done.returncode == 0, done.stderr[-4000:]
    return ctrpipe.folder / "run"


def test_launcher_runs_a_job_to_its_end(run):
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["runtime"]["mode"] == "plain"
    assert metrics["runtime"]["records"]["trained"] == metrics["runtime"]["records"]["total"] > 0
    members = {(one["role"], one["index"]) for one in metrics["runtime"]["members"]}
    assert members == {("master", 0), ("ps", 0), ("ps", 1), ("worker", 0)}
    assert set(metrics["runtime"]["restarts"].values()) == {0}


def test_members_talk_by_tls_from_wherever_they_are(run):
    assert (run / "job" / "token").read_text().startswith("tls-")
    endpoint = json.loads((run / "job" / "endpoint.json").read_text())
    assert not endpoint["address"].startswith("127.")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["check", "config.yaml", "--set", "runtime.mode=plane"],
            "processes | kubernetes | plain",
        ),
        (["check", "config.yaml", "--set", "runtime.tls=off"], "are on several hosts"),
        (["check", "config.yaml", "--set", "train.ensemble=2"], "in one process"),
    ],
)
def test_launcher_mode_is_known_to_all_that_asks_for_modes(ctrpipe, run, arguments, words):
    done = ctrpipe(*arguments)
    assert done.returncode == 1
    assert words in done.stderr


def test_the_schema_describes_it(ctrpipe):
    schema = json.loads(ctrpipe("schema").stdout)
    mode = schema["$defs"]["RuntimeConfig"]["properties"]["mode"]
    assert mode["enum"] == ["local", "processes", "kubernetes", "plain"]
    assert "plain: children" in mode["description"]
