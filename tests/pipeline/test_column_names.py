"""Columns of any name, from `init` to the served model."""

import json

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ctr_pipeline
from ctr_pipeline.apps.init import init_config
from ctr_pipeline.progress import SilentProgress

WORDS = [
    *("self", "cls", "args", "kwargs", "None", "True", "class", "lambda", "import"),
    *("training", "inputs", "name", "dtype", "mask", "call", "layer", "variables", "captures"),
    *("serving_default", "probability", "logit", "row", "weight", "split", "number", "id"),
    *("SELECT", "select", "__index__", "_private", "null", "true", "auto"),
]
SHAPES = [
    *("2nd", "7", "-1", "user id", "a[0]", "{x}", "🙂", "日本", "größe", "x" * 300, "y/z", ".."),
    *("%s", "'", '"q"', "a,b", "a;b", "a.b", "a:b", "#c", "<b>", "&amp;", "$x", "`", "\\"),
]
LEFT_OUT = ["*", "I1..I3", "__index_level_0__", "Unnamed: 0"]


def train_and_serve(names, folder):
    """Trains by the config that `init` writes; checks the served model; returns the config."""
    rng, num_rows = np.random.default_rng(0), 300
    values = [
        lambda: rng.integers(0, 5, num_rows).astype(str),
        lambda: [f"v{one}" for one in rng.integers(0, 9, num_rows)],
        lambda: rng.normal(0.0, 1.0, num_rows).round(3).astype(str),
    ]
    rows = {name: values[place % 3]() for place, name in enumerate(names)}
    frame = pd.DataFrame({"label": rng.integers(0, 2, num_rows), **rows})
    frame.to_csv(folder / "rows.csv", index=False)
    written = init_config(
        str(folder / "rows.csv"), output=folder / "config.yaml", progress=SilentProgress()
    )
    settings = [
        f"output={folder / 'run'}",
        "train.epochs=1",
        "model.hidden_units=[4]",
        "model.embedding_dim=2",
    ]
    result = ctr_pipeline.run(str(written.output), overrides=settings)
    predicted = ctr_pipeline.load(result.folder).predict(frame)
    card = json.loads((result.folder / "export/1/model_card.json").read_text())
    inputs = {one["column"]: one["name"] for one in card["inputs"]}
    assert len(set(inputs.values())) == len(inputs)
    served = tf.saved_model.load(str(result.folder / "export/1"))
    texts = {name: tf.constant(frame[column]) for column, name in inputs.items()}
    given = served.signatures["serving_strings"](**texts)["probability"].numpy()
    np.testing.assert_allclose(given, predicted, atol=1e-6)
    return written.output.read_text(), inputs


@pytest.mark.slow
def test_names_that_mean_something_elsewhere(tmp_path):
    config, inputs = train_and_serve([*WORDS, *SHAPES, *LEFT_OUT], tmp_path)
    assert {*inputs} == {*WORDS, *SHAPES}
    assert inputs["self"] == "column_self"
    for name in LEFT_OUT:
        assert any(name in line for line in config.splitlines() if "# left out:" in line), name


@pytest.mark.slow
@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)
        .map(str.strip)
        .filter(lambda name: name and name != "label"),
        min_size=3,
        max_size=12,
        unique_by=str.lower,
    )
)
def test_any_names(tmp_path_factory, names):
    train_and_serve(names, tmp_path_factory.mktemp("names"))
