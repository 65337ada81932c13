"""Whatever is wrong in a config is one error with the place, the key and the remedy."""

from pathlib import Path

import pytest

from ctr_pipeline.config import load_config
from ctr_pipeline.errors import ConfigError
from ctr_pipeline.pipeline.stages.header import find_header
from tests.mistakes import (
    config_mistakes,
    feature_mistakes,
    general_mistakes,
    job_mistakes,
    query_mistakes,
    tune_mistakes,
)
from tests.mistakes.spoiled_world import Case, good_world

MISTAKES = (
    *general_mistakes.CONFIG_MISTAKES,
    *config_mistakes.CONFIG_MISTAKES,
    *feature_mistakes.CONFIG_MISTAKES,
    *job_mistakes.CONFIG_MISTAKES,
    *tune_mistakes.CONFIG_MISTAKES,
    *query_mistakes.CONFIG_MISTAKES,
)


@pytest.fixture
def world(tmp_path, monkeypatch):
    with good_world(tmp_path, monkeypatch) as world:
        yield world


@pytest.mark.parametrize("case", MISTAKES, ids=lambda case: case.name)
def test_mistake_is_refused_with_its_place(case: Case, world):
    case.spoil(world)

    with pytest.raises(ConfigError) as raised:
        load_config(Path("c.yaml"), case.overrides, find_header=find_header)

    case.check(str(raised.value))
    places = ("c.yaml", "--set")
    assert all(problem.place.startswith(places) for problem in raised.value.problems)
    assert all(problem.message for problem in raised.value.problems)
