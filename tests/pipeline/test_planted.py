import json

import pytest

from ctr_pipeline.apps.sample import write_criteo_sample
from ctr_pipeline.config.loader import config_from_mapping
from ctr_pipeline.pipeline.stages.planted import planted_figures, truth_path
from ctr_pipeline.progress import SilentProgress


@pytest.fixture
def sample(tmp_path):
    path = tmp_path / "rows.tsv"
    write_criteo_sample(path, num_rows=200, seed=1, progress=SilentProgress())
    return path


def figures(path, **data):
    mapping = {"data": {"train": str(path), "columns": ["label", "x"], **data}}
    return planted_figures(config_from_mapping(mapping).config)


def test_figures_of_the_sample(sample):
    found = figures(sample)
    assert found == json.loads(truth_path(sample).read_text())
    assert 0 < found["bayes_logloss"] < found["base_rate_logloss"]


@pytest.mark.parametrize(
    "data",
    [
        {"split": {"test": 0.2}},
        {"split": {"by": "random"}},
        {"test": "other.tsv"},
    ],
)
def test_planted_figures_are_absent_where_other_rows_test(sample, data):
    assert figures(sample, **data) is None


def test_planted_figures_are_absent_for_real_data_several_files_and_damage(sample, tmp_path):
    assert figures(tmp_path / "real.tsv") is None
    assert figures("x", train=[str(sample)]) is None
    for text in ("{", "{}", "[]"):
        truth_path(sample).write_text(text)
        assert figures(sample) is None
