"""Whatever users get wrong ends with exit code 1 and one clear message, and spoils nothing.

What the config or the rows alone show to be wrong is tested where it is found, in
`tests/config/test_config_mistakes.py` and `tests/pipeline/test_row_mistakes.py`.
"""

import json
import shutil
from pathlib import Path

import pytest

from ctr_pipeline.cli.main import main
from ctr_pipeline.pipeline.sessions import load_sessions
from tests.mistakes import (
    artefact_mistakes,
    comparison_mistakes,
    config_mistakes,
    daily_mistakes,
    data_mistakes,
    general_mistakes,
    hostile_mistakes,
    job_mistakes,
    maxcompute_mistakes,
    object_mistakes,
    recordio_mistakes,
    table_mistakes,
    tune_mistakes,
)
from tests.mistakes.spoiled_world import Case, good_world, told_calls, told_settings
from tests.pipeline.test_row_mistakes import MISTAKES as ROW_MISTAKES

MISTAKES = (
    *general_mistakes.COMMAND_MISTAKES,
    *config_mistakes.COMMAND_MISTAKES,
    *hostile_mistakes.COMMAND_MISTAKES,
    *data_mistakes.COMMAND_MISTAKES,
    *artefact_mistakes.COMMAND_MISTAKES,
    *job_mistakes.COMMAND_MISTAKES,
    *maxcompute_mistakes.COMMAND_MISTAKES,
    *recordio_mistakes.COMMAND_MISTAKES,
    *object_mistakes.COMMAND_MISTAKES,
    *table_mistakes.COMMAND_MISTAKES,
    *comparison_mistakes.COMMAND_MISTAKES,
    *tune_mistakes.COMMAND_MISTAKES,
    *daily_mistakes.COMMAND_MISTAKES,
)
SESSIONS = "run/sessions.json"
RESULTS = {"metrics.json", "report.html", "predictions.parquet", "p.parquet", "new.yaml"}


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory):
    """The run folder of a training that went well."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch, good_world(folder, patch):
        assert main(["train", "c.yaml", "-q"]) == 0
    return folder / "run"


@pytest.fixture
def world(tmp_path, monkeypatch):
    with good_world(tmp_path, monkeypatch) as world:
        yield world


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[pytest.mark.slow] * case.slow) for case in MISTAKES],
    ids=lambda case: case.name,
)
def test_mistake_is_one_clear_message(case: Case, world, capfd, request):
    if case.trained:
        shutil.copytree(request.getfixturevalue("trained_run"), world.folder / "run")
    with world.mending():
        case.spoil(world)
        before = world.contents()
        sessions = load_sessions(world.folder / SESSIONS)
        capfd.readouterr()
        code = main([*case.call, "-q", "--json"])

    out, err = capfd.readouterr()
    assert code == 1, err
    assert err.startswith("error: ")
    case.check(err)
    assert json.loads(out)["exit_code"] == 1
    # Only a config may have several problems; anything else is one sentence or two.
    assert len(err.splitlines()) == 1 or " in the config:" in err, err
    after = world.contents()
    # A command that was refused is a session, too: their log may grow.
    assert load_sessions(world.folder / SESSIONS)[: len(sessions)] == sessions
    before.pop(SESSIONS, None)
    assert {name: after.get(name) for name in before} == before
    new = set(after) - set(before)
    assert not [name for name in new if name.endswith(".tmp")]
    assert not [name for name in new if Path(name).name in RESULTS]


ALL_MISTAKES = (
    *MISTAKES,
    *artefact_mistakes.APP_MISTAKES,
    *comparison_mistakes.APP_MISTAKES,
    *general_mistakes.APP_MISTAKES,
    *general_mistakes.ROW_MISTAKES,
    *table_mistakes.APP_MISTAKES,
)


@pytest.fixture
def call(monkeypatch, capfd):
    """Makes a case's call in a new world, which stays as it is then: the status and the message."""

    def call(case: Case, folder: Path, *options: str):
        folder.mkdir()
        with good_world(folder, monkeypatch) as world, world.mending():
            if case.trained:
                assert main(["train", "c.yaml", "-q"]) == 0
            case.spoil(world)
            capfd.readouterr()
            return main([*case.call, "-q", *options]), capfd.readouterr().err

    return call


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [case for case in ALL_MISTAKES if case.followed], ids=lambda case: case.name
)
def test_error_message_names_commands_that_end_in_success(
    case: Case, call, tmp_path, monkeypatch, capfd
):
    def fail(folder):
        code, message = call(case, folder)
        assert code == 1
        monkeypatch.chdir(folder)
        return message

    told = told_calls(fail(tmp_path / "first"), case.call)
    assert told
    for number, words in enumerate(told):
        message = fail(tmp_path / str(number))
        if "Delete it" in message:
            Path(message.split(": ")[1]).unlink(missing_ok=True)
        assert main([*words, "-q"]) == 0, capfd.readouterr().err
        if words[0] != case.call[0]:
            assert main([*case.call, "-q"]) == 0, capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    list({case.name: case for case in (*ROW_MISTAKES, *ALL_MISTAKES)}.values()),
    ids=lambda case: case.name,
)
def test_error_message_names_settings_that_end_in_success(case: Case, call, tmp_path):
    _, first = call(case, tmp_path / "first")
    ways = told_settings(first) or [list(case.tried)] * bool(case.tried)
    for number, settings in enumerate(ways):
        options = [word for setting in settings for word in ("--set", setting)]
        code, message = call(case, tmp_path / str(number), *options)
        assert bool(code) == bool(case.unset), message
        # A way out that is told again has led nowhere.
        assert settings not in told_settings(message), message
        assert "a bug in ctrpipe" not in message


@pytest.mark.parametrize("case", job_mistakes.MEMBER_CASES, ids=lambda case: case.name)
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
    case.check(err)
    assert world.contents() == before
