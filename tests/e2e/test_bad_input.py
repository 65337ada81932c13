"""Whatever users get wrong ends with exit code 1 and one clear message, and spoils nothing."""

import json
import shutil
from pathlib import Path

import pytest
from artefact_mistakes import ARTEFACT_CASES
from comparison_mistakes import COMPARISON_CASES
from config_mistakes import CONFIG_CASES
from daily_mistakes import DAILY_CASES
from data_mistakes import DATA_CASES
from database_mistakes import DATABASE_CASES
from feature_mistakes import FEATURE_CASES
from general_mistakes import CASES, Case
from hostile_mistakes import HOSTILE_CASES
from job_mistakes import JOB_CASES, MEMBER_CASES
from maxcompute_mistakes import MAXCOMPUTE_CASES
from object_mistakes import OBJECT_CASES
from partition_mistakes import PARTITION_CASES
from recordio_mistakes import RECORDIO_CASES
from spark_mistakes import SPARK_CASES
from spoiled_world import World, lines
from table_mistakes import TABLE_CASES
from tune_mistakes import TUNE_CASES

from ctr_pipeline.cli.main import main
from ctr_pipeline.pipeline.sessions import load_sessions

ALL_CASES = (
    *CASES,
    *CONFIG_CASES,
    *FEATURE_CASES,
    *HOSTILE_CASES,
    *DATA_CASES,
    *ARTEFACT_CASES,
    *JOB_CASES,
    *MAXCOMPUTE_CASES,
    *RECORDIO_CASES,
    *OBJECT_CASES,
    *PARTITION_CASES,
    *DATABASE_CASES,
    *TABLE_CASES,
    *COMPARISON_CASES,
    *TUNE_CASES,
    *SPARK_CASES,
    *DAILY_CASES,
)
JARGON = ("Traceback", "pydantic", "ArrowInvalid", "duckdb.", "errors.pydantic.dev", "<class")
SESSIONS = "run/sessions.json"
RESULTS = {"metrics.json", "report.html", "predictions.parquet", "p.parquet", "new.yaml"}


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory):
    """The run folder of a training that went well."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        world = World(folder, patch)
        world.rows(lines())
        world.config()
        assert main(["train", "c.yaml", "-q"]) == 0
    return folder / "run"


@pytest.fixture
def world(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    world = World(tmp_path, monkeypatch)
    world.rows(lines())
    world.config()
    yield world
    for cleanup in world.cleanups:
        cleanup()


@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: case.name)
def test_mistake_is_one_clear_message(case: Case, world, capfd, request):
    if case.trained:
        shutil.copytree(request.getfixturevalue("trained_run"), world.folder / "run")
    case.spoil(world)
    before = world.contents()
    sessions = load_sessions(world.folder / SESSIONS)
    capfd.readouterr()

    code = main([*case.call, "-q", "--json"])

    out, err = capfd.readouterr()
    assert code == 1, err
    assert err.startswith("error: ")
    for text in case.says:
        assert text in err, err
    for jargon in JARGON:
        assert jargon not in err
    assert json.loads(out)["exit_code"] == 1
    # Only a config may have several problems; anything else is one sentence or two.
    assert len(err.splitlines()) == 1 or " in the config:" in err, err
    world.monkeypatch.undo()
    after = world.contents()
    # A command that was refused is a session, too: their log may grow.
    assert load_sessions(world.folder / SESSIONS)[: len(sessions)] == sessions
    before.pop(SESSIONS, None)
    assert {name: after.get(name) for name in before} == before
    new = set(after) - set(before)
    assert not [name for name in new if name.endswith(".tmp")]
    assert not [name for name in new if Path(name).name in RESULTS]


@pytest.mark.parametrize("case", MEMBER_CASES, ids=lambda case: case.name)
def test_mistake_about_a_member_is_one_clear_message(case: Case, world, capfd, request):
    if case.trained:
        shutil.copytree(request.getfixturevalue("trained_run"), world.folder / "run")
    case.spoil(world)
    before = world.contents()
    capfd.readouterr()

    code = main([*case.call, "-q"])

    out, err = capfd.readouterr()
    assert code == 1, err
    assert out == ""
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1, err
    for text in case.says:
        assert text in err, err
    assert not [jargon for jargon in JARGON if jargon in err]
    assert world.contents() == before


def test_there_are_enough_kinds_of_mistakes():
    assert len({case.name for case in ALL_CASES}) == len(ALL_CASES) >= 80
