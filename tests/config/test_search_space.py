import pytest

from ctr_pipeline.config import config_from_mapping, load_config
from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.config.search_space import current_values, is_whole, values_with, yaml_with
from ctr_pipeline.errors import ConfigError
from ctr_pipeline.pipeline.run_folder import model_fingerprint

SPACE = {
    "train.optimizer.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True},
    "model.hidden_units": {"choices": [[128, 64], [256, 128]]},
    "model.dropout": {"low": 0, "high": 0.5},
    "model.embedding_dim": {"low": 4, "high": 16},
}
BASE = {"data": {"train": "rows.csv"}, "output": "run"}


def load(space=SPACE, **sections) -> LoadedConfig:
    settings = {**BASE, **sections, "tune": {"space": space}}
    return config_from_mapping(settings)


def problems(space, **sections):
    with pytest.raises(ConfigError) as caught:
        load(space, **sections)
    return {problem.key: problem.message for problem in caught.value.problems}


def test_resolved_config_gives_the_same_search(tmp_path):
    loaded = load()
    path = tmp_path / "c.yaml"
    path.write_text(loaded.resolved_yaml())
    assert load_config(path).config == loaded.config
    assert loaded.config.tune.space["model.hidden_units"].choices == ((128, 64), (256, 128))


def test_a_search_changes_no_model():
    plain = config_from_mapping(BASE)
    assert model_fingerprint(load().config) == model_fingerprint(plain.config)
    assert "tune: null\n" in plain.resolved_yaml()


def test_all_problems_at_once_at_the_lines_they_stand_on(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(
        "data: {train: rows.csv, labl: x}\n"
        "tune:\n"
        "  space:\n"
        "    model.dropout: {low: 0,\n"
        "      high: 1}\n"
        "    model.hidden_unit: {choices: [[8]]}\n"
        "    output: {choices: [a, b]}\n"
        "    model.embedding_dim: {low: 4.5, high: 8}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    found = {one.place.rpartition(":")[2]: one for one in caught.value.problems}
    assert set(found) == {"1", "5", "6", "7", "8"}
    assert found["5"].message == "expected less than 1.0, found the number 1.0"
    assert found["6"].suggestion == "model.hidden_units"
    assert "does not change what a model learns" in found["7"].message
    assert "expected a whole number, found the number 4.5" in found["8"].message


@pytest.mark.parametrize(
    ("key", "entry", "message"),
    [
        ("train.epochs", {"low": 3}, "needs low and high, or choices"),
        ("train.epochs", {"choices": [3, 3]}, "given twice"),
        ("train.epochs", {"choices": []}, "at least 1"),
        ("model.hidden_units", {"low": 1, "high": 2}, "no range; give its values as choices"),
        ("model.name", {"choices": ["deepfm", "dccn"]}, "unknown model 'dccn'"),
        ("model.options.depth", {"low": 1, "high": 2}, "no range"),
        ("train.optimizer.name", {"choices": ["adam", "adma"]}, "expected sgd"),
        ("train.epochs.many", {"choices": [1]}, "unknown key"),
        ("evaluation.calibration_bins", {"low": 2, "high": 9}, "cannot be searched"),
        ("runtime.threads", {"low": 1, "high": 2}, "run in this process"),
        ("data.sample.negatives", {"low": 0.1, "high": 1}, "prepared rows"),
        ("no key", {"choices": [1]}, "unknown key"),
    ],
)
def test_search_space_refuses_what_cannot_be_searched(key, entry, message):
    (found,) = problems({key: entry}).items()
    assert found[0].startswith(f"tune.space.{key}")
    assert message in found[1]


def test_values_of_two_keys_must_go_together():
    found = problems(
        {
            "model.name": {"choices": ["dcn", "deepfm"]},
            "model.cross_layers": {"low": 1, "high": 3},
        },
        model={"name": "dcn"},
    )
    ((key, message),) = found.items()
    assert key == "tune.space.model.cross_layers.low"
    assert message.startswith("with model.name: deepfm, ")
    assert "has no key 'cross_layers'" in message


def test_a_key_inside_another_is_refused():
    found = problems(
        {
            "train.optimizer": {"choices": [{"name": "sgd", "learning_rate": 0.1}]},
            "train.optimizer.beta_1": {"low": 0.8, "high": 0.9},
        }
    )
    assert found == {
        "tune.space.train.optimizer.beta_1": "lies inside train.optimizer, which is searched too; "
        "keep one"
    }


def test_parts_of_a_default_can_be_searched_beside_what_is_given():
    strength, patience = "train.embeddings.vector.l2.strength", "train.early_stopping.patience"
    beside_a_default = load({strength: {"low": 1, "high": 1e5, "log": True}})
    beside_null = load({patience: {"low": 1, "high": 3}}, train={"early_stopping": None})
    for loaded, name in ((beside_a_default, strength), (beside_null, patience)):
        changed = config_from_mapping(values_with(loaded.resolved_yaml(), {name: 2})).config
        value = changed
        for part in name.split("."):
            value = value[part] if isinstance(value, dict) else getattr(value, part)
        assert value == 2


def test_values_are_put_into_the_config():
    resolved = load().resolved_yaml()
    assigned = {"model.hidden_units": [8], "train.optimizer.learning_rate": 0.5}
    changed = config_from_mapping(values_with(resolved, assigned)).config
    assert changed.model.hidden_units == (8,)
    assert changed.train.optimizer.learning_rate == 0.5
    assert changed.tune is None
    others = config_from_mapping(BASE).config
    assert changed.model_copy(update={"model": others.model, "train": others.train}) == others
    assert "learning_rate: 0.5" in yaml_with(resolved, assigned)
    assert current_values(resolved, ["model.hidden_units"]) == {"model.hidden_units": [128, 64]}


def test_whole_numbers_are_known():
    assert is_whole("model.embedding_dim")
    assert is_whole("train.learning_rate_schedule.decay_steps")
    assert not is_whole("model.dropout")
    assert not is_whole("train.gradient_clip_norm")
    assert not is_whole("train.shuffle")
