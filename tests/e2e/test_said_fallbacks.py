"""Where a damaged artefact can be made again or done without, that is done, and said."""

import json
import shutil

import pytest

from ctr_pipeline.cli.main import main
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.training.checkpoint import Checkpoints
from tests.mistakes.spoiled_world import good_world

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory):
    """The run folder of a training that went well, beside its rows and config."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch, good_world(folder, patch):
        assert main(["train", "c.yaml", "-q"]) == 0
        assert main(["evaluate", "c.yaml", "-q"]) == 0
    return folder / "run"


@pytest.fixture
def run(trained_run, monkeypatch):
    """The same; every test makes good what it damages."""
    monkeypatch.chdir(trained_run.parent)
    return trained_run


def said_by(capfd, *command):
    capfd.readouterr()
    assert main([*command]) == 0
    out, err = capfd.readouterr()
    return " ".join((out + err).split())


def contents(run):
    return {
        name: (run / name).read_bytes()
        for name in ("statistics.json", "preprocessing.json", "predictions.parquet")
    }


def damage_statistics(run):
    (run / "statistics.json").write_text("{")


def edit_statistics(run):
    path = run / "statistics.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_rows": 3}))


def remove_vocabulary(run):
    for path in (run / "vocabularies").iterdir():
        path.unlink()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (damage_statistics, "statistics.json: is damaged; the statistics are computed again"),
        (edit_statistics, "is not as it was written (CRC differs); the statistics are computed"),
        (remove_vocabulary, "is gone; the statistics are computed again"),
    ],
)
def test_statistics_are_computed_again(run, capfd, damage, said):
    before = contents(run)
    damage(run)
    assert said in said_by(capfd, "analyze", "c.yaml")
    assert contents(run) == before
    assert said_by(capfd, "evaluate", "c.yaml")


@pytest.mark.parametrize("damaged", ["preprocessing.json", "vocabularies"])
def test_resuming_makes_what_scoring_needs_again(run, capfd, damaged):
    before = contents(run)
    path = run / damaged
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    predict = ("predict", "c.yaml", "--data", "rows.csv", "-o", "p.csv", "--overwrite", "-q")
    assert main([*predict]) == 1
    assert "'ctrpipe train --resume'" in capfd.readouterr().err
    assert main(["train", "c.yaml", "--resume", "-q"]) == 0
    assert main([*predict]) == 0
    assert main(["evaluate", "c.yaml", "-q"]) == 0
    assert contents(run) == before


@pytest.mark.parametrize("damaged", ["manifests/*.json", "parts/*-rows.bin", "parts/*-dense.bin"])
def test_damaged_checkpoint_is_passed_over(run, capfd, tmp_path, damaged):
    before = contents(run)
    checkpoints = run / "checkpoints"
    shutil.copytree(checkpoints, tmp_path / "before")
    saved = Checkpoints(RunFolder(run).checkpoint_storage)
    newest = saved.load_newest(pytest.fail)
    rows, dense = (newest.commits.storage.read(part.key) for part in newest.manifest.parts)
    saved.save(
        newest.state,
        rows=lambda file: file.write(rows),
        dense=lambda file: file.write(dense),
        num_dense=newest.files.dense[0].num_rows,
    )
    path = max(checkpoints.glob(damaged))
    path.write_bytes(path.read_bytes()[:-9])
    for command in (
        ["evaluate", "c.yaml"],
        ["predict", "c.yaml", "--data", "rows.csv", "-o", "p.csv", "--overwrite"],
    ):
        assert "Skipping a checkpoint: " in said_by(capfd, *command)
    shutil.rmtree(checkpoints)
    shutil.copytree(tmp_path / "before", checkpoints)
    assert contents(run) == before
