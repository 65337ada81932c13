"""What is wrong with rows, or with a config for these rows, is one clear error."""

from pathlib import Path

import pytest

from ctr_pipeline.apps.check import check_config
from ctr_pipeline.config import load_config
from ctr_pipeline.errors import CtrPipelineError
from ctr_pipeline.pipeline.run import analyze
from ctr_pipeline.pipeline.stages.header import find_header
from ctr_pipeline.progress import SilentProgress
from tests.mistakes import (
    artefact_mistakes,
    config_mistakes,
    daily_mistakes,
    data_mistakes,
    feature_mistakes,
    general_mistakes,
    hostile_mistakes,
    maxcompute_mistakes,
    object_mistakes,
    partition_mistakes,
    query_mistakes,
    recordio_mistakes,
    spark_mistakes,
)
from tests.mistakes.spoiled_world import Case, good_world

MISTAKES = (
    *general_mistakes.ROW_MISTAKES,
    *config_mistakes.ROW_MISTAKES,
    *feature_mistakes.ROW_MISTAKES,
    *hostile_mistakes.ROW_MISTAKES,
    *data_mistakes.ROW_MISTAKES,
    *artefact_mistakes.ROW_MISTAKES,
    *maxcompute_mistakes.ROW_MISTAKES,
    *recordio_mistakes.ROW_MISTAKES,
    *object_mistakes.ROW_MISTAKES,
    *partition_mistakes.ROW_MISTAKES,
    *query_mistakes.ROW_MISTAKES,
    *spark_mistakes.ROW_MISTAKES,
    *daily_mistakes.ROW_MISTAKES,
)


@pytest.fixture
def world(tmp_path, monkeypatch):
    with good_world(tmp_path, monkeypatch) as world:
        yield world


@pytest.mark.parametrize("case", MISTAKES, ids=lambda case: case.name)
def test_mistake_is_refused_and_spoils_nothing(case: Case, world):
    read = check_config if case.call[0] == "check" else analyze
    with world.mending():
        case.spoil(world)
        before = world.contents()
        with pytest.raises(CtrPipelineError) as raised:
            read(
                load_config(Path("c.yaml"), case.overrides, find_header=find_header),
                progress=SilentProgress(),
            )

    case.check(str(raised.value))
    after = world.contents()
    assert {name: after.get(name) for name in before} == before
    assert not [name for name in after if name.endswith(".tmp")]
