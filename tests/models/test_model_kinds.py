import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ctr_pipeline import models
from ctr_pipeline.specs.model_kinds import (
    MODELS,
    DCNConfig,
    DeepFMConfig,
    FinalMLPConfig,
    XDeepFMConfig,
    member_model,
    nearest_model_name,
)


def test_sections_need_no_keras() -> None:
    code = (
        "import sys, ctr_pipeline.specs.model_kinds; "
        "assert not {'keras', 'tensorflow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_model_is_a_module_that_builds_it() -> None:
    for name, kind in MODELS.items():
        module = ast.parse((Path(models.__file__).parent / f"{name}.py").read_text())
        functions = [node for node in module.body if isinstance(node, ast.FunctionDef)]
        (build,) = [function for function in functions if function.name == "build"]
        assert [argument.arg for argument in build.args.args] == ["inputs", "config", "seed"]
        annotation = build.args.args[1].annotation
        assert annotation is not None
        assert ast.unparse(annotation) == kind.__name__


def test_heads_of_finalmlp_have_to_divide_its_streams() -> None:
    def problem(**keys: Any) -> str:
        with pytest.raises(ValidationError) as caught:
            FinalMLPConfig(**keys)
        return str(caught.value)

    FinalMLPConfig(hidden_units=(9, 6), fusion_heads=3)
    assert "fusion_heads 3 does not divide the last layer's 4 units" in problem(
        hidden_units=(6,), second_hidden_units=(9, 4), fusion_heads=3
    )
    assert "'finalmlp' needs at least one layer" in problem(hidden_units=())


def test_member_of_an_ensemble_takes_what_it_leaves_open_from_the_model() -> None:
    shared = XDeepFMConfig(embedding_dim=4, cin_layers=(8,), dropout=0.5)
    assert member_model(shared, XDeepFMConfig()) == shared
    assert member_model(shared, DeepFMConfig()) == DeepFMConfig(embedding_dim=4, dropout=0.5)
    own = DCNConfig(cross_layers=3, dropout=0.1)
    assert member_model(shared, own) == DCNConfig(embedding_dim=4, cross_layers=3, dropout=0.1)
    with pytest.raises(ValidationError, match="does not divide"):
        member_model(DeepFMConfig(hidden_units=(9,)), FinalMLPConfig(fusion_heads=2))


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
