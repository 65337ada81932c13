"""Mistakes about searches."""

import importlib.util
import json
from collections.abc import Callable

from tests.mistakes.spoiled_world import Case, World, nothing, setting

_TUNE = ("tune", "c.yaml")
_DROPOUT = {"model.dropout": {"low": 0, "high": 0.5}}


def _space(**entry: object) -> Callable[[World], None]:
    return setting(tune={"space": {"model.dropout": entry}})


def _key(key: str, **entry: object) -> Callable[[World], None]:
    return setting(tune={"space": {key: entry}})


def _without_optuna(world: World) -> None:
    world.config(tune={"space": _DROPOUT})
    find = importlib.util.find_spec
    world.monkeypatch.setattr(
        importlib.util, "find_spec", lambda *name: None if name[0] == "optuna" else find(*name)
    )


def _earlier_search(world: World) -> None:
    world.config(tune={"space": _DROPOUT})
    world.write("run/.lock", "")
    world.write("run/trials/search.json", json.dumps({"rows": "other"}))


def _model_of_other_features(world: World) -> None:
    world.config(tune={"space": _DROPOUT}, data__missing_values=["none"])


CONFIG_MISTAKES = (
    Case("tune_empty_space", setting(tune={"space": {}}), ("tune.space", "at least 1"), _TUNE),
    Case(
        "tune_unknown_key",
        _key("train.optimizer.learning_rat", low=1, high=2),
        ("c.yaml:", "unknown key", "did you mean 'train.optimizer.learning_rate'"),
        _TUNE,
    ),
    Case(
        "tune_key_of_a_feature",
        _key("features[0].id", choices=["hash"]),
        ("features[0].id", "entry of a list"),
        _TUNE,
    ),
    Case("tune_seed", _key("train.seed", choices=[1, 2]), ("train.seed", "luck"), _TUNE),
    Case("tune_low_above_high", _space(low=0.5, high=0.1), ("0.5 is not below high 0.1",), _TUNE),
    Case("tune_log_of_zero", _space(low=0, high=0.1, log=True), ("log needs a low above",), _TUNE),
    Case("tune_choices_and_range", _space(low=0, high=0.1, choices=[0.2]), ("stand alone",), _TUNE),
    Case("tune_out_of_bounds", _space(low=0, high=1), ("dropout.high", "less than 1"), _TUNE),
    Case(
        "tune_key_of_another_model",
        _key("model.cross_layers", low=1, high=3),
        ("model.cross_layers.low", "has no key 'cross_layers'"),
        _TUNE,
    ),
    Case(
        "tune_the_size_of_an_ensemble",
        _key("train.ensemble", low=1, high=3),
        ("train.ensemble", "one model"),
        _TUNE,
    ),
    # The other commands say what is wrong with a search, too: they read the same config.
    Case("space_of_a_run", _space(low=2, high=1), ("tune.space.model.dropout", "not below")),
)

COMMAND_MISTAKES = (
    Case("tune_without_section", nothing, ("c.yaml: tune", "needs a section", "low: 1e-4"), _TUNE),
    Case(
        "tune_without_space",
        setting(tune={"trials": 3}),
        ("tune.space", "is required and not given"),
        _TUNE,
    ),
    Case(
        "tune_key_of_the_data",
        _key("data.split.valid", low=0.1, high=0.2),
        ("data.split.valid", "share the prepared rows"),
        _TUNE,
    ),
    Case(
        "tune_in_processes",
        setting(tune={"space": _DROPOUT}, runtime={"mode": "processes"}),
        ("runtime.mode", "--set runtime.mode=local"),
        _TUNE,
    ),
    Case(
        "tune_an_ensemble",
        setting(tune={"space": _DROPOUT}, train={"ensemble": 2}),
        ("train.ensemble", "--set train.ensemble=1"),
        _TUNE,
    ),
    Case("tune_without_optuna", _without_optuna, ("Optuna", "ctrpipe[tune]"), _TUNE),
    Case(
        "tune_beside_a_search",
        _earlier_search,
        ("earlier search", "--resume"),
        _TUNE,
        unfollowed="the search is made up",
    ),
    Case(
        "tune_beside_a_model_of_other_rows",
        _model_of_other_features,
        ("run:", "data.missing_values differ", "another 'output'"),
        _TUNE,
        trained=True,
    ),
)
