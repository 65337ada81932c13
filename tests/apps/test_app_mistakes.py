"""What is wrong with the input of an application, or with the run it stands on, is one clear error.

The cases name their call as a command line; here it is a call of the function behind it.
"""

import shutil
from pathlib import Path

import pytest

from ctr_pipeline.apps.compare import compare_runs
from ctr_pipeline.apps.convert import Target, convert_rows, format_of
from ctr_pipeline.apps.scoring.evaluate import evaluate
from ctr_pipeline.apps.scoring.predict import predict
from ctr_pipeline.apps.tables import measure_drift, profile_table
from ctr_pipeline.cli.options import split_columns
from ctr_pipeline.config import load_config
from ctr_pipeline.errors import CtrPipelineError
from ctr_pipeline.pipeline.run import train
from ctr_pipeline.progress import SilentProgress
from tests.mistakes import (
    artefact_mistakes,
    comparison_mistakes,
    general_mistakes,
    recordio_mistakes,
    table_mistakes,
)
from tests.mistakes.spoiled_world import Case, good_world

MISTAKES = (
    *general_mistakes.APP_MISTAKES,
    *artefact_mistakes.APP_MISTAKES,
    *comparison_mistakes.APP_MISTAKES,
    *recordio_mistakes.APP_MISTAKES,
    *table_mistakes.APP_MISTAKES,
)
SILENT = SilentProgress()


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory):
    """The run folder of a training that went well."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch, good_world(folder, patch):
        train(load_config(Path("c.yaml")), progress=SILENT)
    return folder / "run"


@pytest.fixture
def world(tmp_path, monkeypatch):
    with good_world(tmp_path, monkeypatch) as world:
        yield world


def output_of(path):
    return None if path is None else Path(path)


def do_predict(config, *, data, output, keep=""):
    columns = keep.split(",") if keep else ()
    loaded = load_config(Path(config))
    predict(loaded, data=data, output=output, keep=columns, progress=SILENT)


def do_evaluate(config, *, data=None):
    evaluate(load_config(Path(config)), data=data, progress=SILENT)


def do_compare(*runs, html=None):
    compare_runs([Path(run) for run in runs], output=output_of(html), progress=SILENT)


def do_convert(rows, *, output, compression="none", columns=None, **options):
    target = Target(Path(output), format_of(Path(output)), compression=compression)
    names = split_columns(columns)
    convert_rows(rows, target, columns=names, settings=options.values(), progress=SILENT)


def do_profile(data, *, label=None, output=None):
    profile_table(data, label=label, output=output_of(output), progress=SILENT)


def do_drift(old, new):
    measure_drift(old, new, progress=SILENT)


APPLICATIONS = {
    "predict": do_predict,
    "evaluate": do_evaluate,
    "compare": do_compare,
    "convert": do_convert,
    "profile": do_profile,
    "drift": do_drift,
}


def call(command, *words):
    """The function behind a command, with the words after it."""
    places, options = [], {}
    rest = iter(words)
    for word in rest:
        if word.startswith("-"):
            options["output" if word == "-o" else word.removeprefix("--")] = next(rest)
        else:
            places.append(word)
    APPLICATIONS[command](*places, **options)


@pytest.mark.parametrize("case", MISTAKES, ids=lambda case: case.name)
def test_mistake_is_refused_and_spoils_nothing(case: Case, world, request):
    if case.trained:
        shutil.copytree(request.getfixturevalue("trained_run"), world.folder / "run")
    with world.mending():
        case.spoil(world)
        before = world.contents()
        with pytest.raises(CtrPipelineError) as raised:
            call(*case.call)

    case.check(str(raised.value))
    after = world.contents()
    before.pop("run/sessions.json", None)
    assert {name: after.get(name) for name in before} == before
    assert not [name for name in after if name.endswith(".tmp")]
    assert not {"p.parquet", "x.csv", "x.parquet", "out.recordio"} & (after.keys() - before.keys())
