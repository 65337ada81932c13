"""Members of an ensemble and their rows, without training."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.config.loader import config_from_mapping
from ctr_pipeline.embeddings.store import RowBlock
from ctr_pipeline.errors import ConfigError
from ctr_pipeline.pipeline.model.ensemble import EnsembleRows, member_configs, num_rows_made

WIDTH = 2


def config_of(**sections):
    mapping = {"data": {"train": "a"}, **sections}
    return config_from_mapping(mapping).config


def problem_of(**sections):
    with pytest.raises(ConfigError) as caught:
        config_of(**sections)
    (problem,) = caught.value.problems
    return f"{problem.key}: {problem.message}"


def test_one_model_has_no_members():
    assert member_configs(config_of()) == ()
    assert member_configs(config_of(train={"ensemble": 1})) == ()


def test_members_differ_by_seed_and_kind_alone():
    config = config_of(
        model={"name": "deepfm", "embedding_dim": 4},
        train={
            "seed": 5,
            "ensemble": 5,
            "ensemble_models": [{"name": "xdeepfm", "cin_layers": [8]}, "dcn"],
            "epochs": 3,
        },
    )
    members = member_configs(config)
    assert [member.train.seed for member in members] == [5, 6, 7, 8, 9]
    kinds = [member.model.name for member in members]
    assert kinds == ["xdeepfm", "dcn", "xdeepfm", "dcn", "xdeepfm"]
    for member in members:
        assert member_configs(member) == ()
        assert (member.model.embedding_dim, member.train.epochs) == (4, 3)
    first = config_of(
        model={"name": "xdeepfm", "embedding_dim": 4, "cin_layers": [8]},
        train={"seed": 5, "epochs": 3},
    )
    assert members[0].model_dump() == first.model_dump()


def test_seeds_wrap_around():
    config = config_of(train={"seed": 2**63 - 1, "ensemble": 2})
    assert [member.train.seed for member in member_configs(config)] == [2**63 - 1, 0]


def test_ensemble_members_are_of_the_model_without_kinds():
    members = member_configs(config_of(model={"name": "dcn"}, train={"ensemble": 2}))
    assert [member.model.name for member in members] == ["dcn", "dcn"]


@pytest.mark.parametrize(
    ("train", "sections", "expected"),
    [
        (
            {"ensemble_models": ["dcn"]},
            {},
            "train.ensemble_models: belongs to an ensemble; set train.ensemble: 4",
        ),
        (
            {"ensemble": 2, "ensemble_models": ["dcn", "deepfm", "dcnv2"]},
            {},
            "train.ensemble_models: names 3 kinds for 2 models",
        ),
        (
            {"ensemble": 2, "ensemble_models": ["dcn", "dcnv3"]},
            {},
            "train.ensemble_models[1]: unknown model 'dcnv3'; known: deepfm",
        ),
        (
            {"ensemble": 2, "ensemble_models": ["custom"]},
            {},
            "train.ensemble_models[0].file: is required and not given: Python file that defines",
        ),
        (
            {"ensemble": 2, "ensemble_models": [{"name": "dcn", "cin_layers": [4]}]},
            {},
            "train.ensemble_models[0].cin_layers: 'dcn' has no key 'cin_layers'; it belongs to",
        ),
        (
            {"ensemble": 2, "ensemble_models": ["deepfm", {"name": "dcn", "embedding_dim": 4}]},
            {"model": {"embedding_dim": 8}},
            "train.ensemble_models[1].embedding_dim: all models of an ensemble have model.embed",
        ),
        (
            {"ensemble": 2, "ensemble_models": [{"name": "finalmlp", "fusion_heads": 2}]},
            {"model": {"hidden_units": [9]}},
            "train.ensemble_models: with the keys of model: fusion_heads 2 does not divide",
        ),
        (
            {"ensemble": 2},
            {"runtime": {"mode": "processes"}},
            "train.ensemble: an ensemble is trained in one process",
        ),
        (
            {"ensemble": 2},
            {"tune": {"space": {"train.ensemble": {"low": 1, "high": 4}}}},
            "tune.space.train.ensemble: cannot be searched: a trial trains one model",
        ),
    ],
)
def test_ensemble_config_is_refused_at_its_key_when_impossible(train, sections, expected):
    assert problem_of(train=train, **sections).startswith(expected)


class Rows:
    """Rows in memory, given out in blocks."""

    def __init__(self, values):
        self.values = dict(sorted(values.items()))
        self.released = False
        self.width = WIDTH

    @property
    def num_rows(self):
        return len(self.values)

    def memory_bytes(self):
        return len(self.values)

    def spilled_bytes(self):
        return 2 * len(self.values)

    def iterate_rows(self, block_rows):
        keys = list(self.values)
        for first in range(0, len(keys), block_rows):
            some = keys[first : first + block_rows]
            yield RowBlock(
                np.array(some, np.int64),
                np.array([self.values[key] for key in some], np.float32).reshape(-1, WIDTH),
            )
        yield RowBlock(np.empty(0, np.int64), np.empty((0, WIDTH), np.float32))

    def release(self):
        self.released = True


ROWS = st.dictionaries(
    st.integers(0, 30) | st.integers(0, 2**60),
    st.tuples(*[st.floats(-4, 4, width=32)] * WIDTH),
    max_size=25,
)


@given(st.lists(ROWS, min_size=1, max_size=4), st.integers(1, 12))
def test_ensemble_rows_are_those_of_a_dictionary(members, block_rows):
    rows = EnsembleRows([Rows(member) for member in members])
    blocks = list(rows.iterate_rows(block_rows))
    keys = sorted({key for member in members for key in member})
    assert rows.num_rows == len(keys)
    assert rows.width == WIDTH * len(members)
    assert num_rows_made(rows) == sum(map(len, members))
    assert num_rows_made(rows.members[0]) == len(members[0])
    assert rows.memory_bytes() == sum(map(len, members))
    assert rows.spilled_bytes() == 2 * sum(map(len, members))
    assert [key for block in blocks for key in block.keys.tolist()] == keys
    assert all(0 < len(block.keys) <= max(block_rows, len(members)) for block in blocks)
    expected = [
        [value for member in members for value in member.get(key, (0.0,) * WIDTH)] for key in keys
    ]
    found = np.concatenate([block.values for block in blocks]) if blocks else np.empty((0, 0))
    assert found.tolist() == expected


def test_release_releases_all():
    members = [Rows({1: (0.0, 1.0)}), Rows({})]
    EnsembleRows(members).release()
    assert all(member.released for member in members)
