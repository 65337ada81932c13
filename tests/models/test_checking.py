import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ctr_pipeline import models
from ctr_pipeline.config.models import ModelConfig
from ctr_pipeline.models.checking import check_model, member_model
from ctr_pipeline.specs.model_kinds import MODELS, names_with, nearest_model_name


def test_names_need_no_keras() -> None:
    code = (
        "import sys, ctr_pipeline.models.checking; "
        "assert not {'keras', 'tensorflow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_model_is_a_module_that_builds_it() -> None:
    for kind in MODELS.values():
        module = ast.parse((Path(models.__file__).parent / f"{kind.name}.py").read_text())
        functions = [node for node in module.body if isinstance(node, ast.FunctionDef)]
        (build,) = [function for function in functions if function.name == "build"]
        assert [argument.arg for argument in build.args.args] == ["inputs", "config", "seed"]


def test_every_key_exists_in_the_config() -> None:
    for kind in MODELS.values():
        assert kind.keys <= set(ModelConfig.model_fields)


def test_each_key_of_some_models_says_which() -> None:
    shared = MODELS["deepfm"].keys
    for key, field in ModelConfig.model_fields.items():
        if key not in shared:
            assert (field.description or "").startswith(f"{names_with(key)}: "), key


def test_defaults_of_unused_keys_are_no_problem() -> None:
    assert check_model(ModelConfig()) == []
    assert check_model(ModelConfig(name="dcn", cross_layers=3, hidden_units=(8,))) == []


def test_unused_keys_that_were_set_are_named_with_their_owners() -> None:
    problems = check_model(ModelConfig(name="deepfm", cin_layers=(8,), cross_layers=3))
    assert problems == [
        "'deepfm' has no key 'cin_layers'; it belongs to xdeepfm",
        "'deepfm' has no key 'cross_layers'; it belongs to dcn, dcnv2",
    ]
    assert check_model(ModelConfig(name="custom", file="m.py", dropout=0.1)) == [
        f"'custom' has no key 'dropout'; it belongs to {names_with('dropout')}"
    ]


def test_din_needs_a_target() -> None:
    assert check_model(ModelConfig(name="din", target="item")) == []
    (problem,) = check_model(ModelConfig(name="din"))
    assert "'din' needs the key 'target'" in problem
    assert check_model(ModelConfig(target="item")) == [
        "'deepfm' has no key 'target'; it belongs to din"
    ]


def test_heads_of_finalmlp_have_to_divide_its_streams() -> None:
    def problems(**keys: Any) -> list[str]:
        return check_model(ModelConfig(name="finalmlp", **keys))

    assert problems(hidden_units=(9, 6), fusion_heads=3) == []
    assert problems(hidden_units=(6,), second_hidden_units=(9, 4), fusion_heads=3) == [
        "fusion_heads 3 does not divide the last layer's 4 units"
    ]
    assert problems(hidden_units=()) == [
        "'finalmlp' needs at least one layer in hidden_units and second_hidden_units"
    ]


def test_an_ensemble_may_use_the_keys_of_all_of_its_kinds() -> None:
    config = ModelConfig(name="deepfm", cin_layers=(8,))
    assert check_model(config, ["xdeepfm", "deepfm"]) == []
    assert check_model(config, ["dcn"]) == [
        "'deepfm' and 'dcn' have no key 'cin_layers'; it belongs to xdeepfm"
    ]
    (unknown,) = check_model(config, ["dcn", "xdeepmf"])
    assert unknown.startswith("unknown model 'xdeepmf' (did you mean 'xdeepfm'?)")
    (file,) = check_model(ModelConfig(), ["custom"])
    assert "set model.name to custom" in file
    assert check_model(ModelConfig(name="custom", file="m.py", dropout=0.1), ["deepfm"]) == []
    heads = ModelConfig(hidden_units=(9,), fusion_heads=2)
    assert "does not divide" in check_model(heads, ["finalmlp"])[0]


def test_a_member_takes_the_keys_that_its_kind_uses() -> None:
    config = ModelConfig(name="custom", file="m.py", embedding_dim=4, cin_layers=(8,))
    member = member_model(config, "xdeepfm")
    assert member == ModelConfig(name="xdeepfm", embedding_dim=4, cin_layers=(8,))
    assert check_model(member) == []
    assert member_model(config, "custom").file == "m.py"
    assert member_model(member, "deepfm") == ModelConfig(embedding_dim=4)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("DeepFM", "deepfm"),
        ("Wide&Deep", "wide_and_deep"),
        ("wide-deep", "wide_and_deep"),
        ("DCN-v2", "dcnv2"),
        ("xdeep_fm", "xdeepfm"),
        ("FiBiNET", "fibinet"),
        ("Final-MLP", "finalmlp"),
        ("zzz", None),
    ],
)
def test_nearest_name(written: str, meant: str | None) -> None:
    assert nearest_model_name(written) == meant


def test_unknown_model_names_the_nearest_and_all() -> None:
    (problem,) = check_model(ModelConfig(name="deepmf"))
    assert "did you mean 'deepfm'?" in problem
    assert "wide_and_deep" in problem
