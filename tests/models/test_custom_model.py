from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from ctr_pipeline.errors import ModelError
from ctr_pipeline.models.build import build_model
from ctr_pipeline.models.inputs import ModelSignature
from ctr_pipeline.specs.model_kinds import CustomModelConfig

SIGNATURE = ModelSignature(num_fields=2, embedding_dim=3, num_numbers=1, base_rate=0.3)

GOOD = """
import keras
from ctr_pipeline.models.layers import Linear

def build_model(inputs, options):
    linear = Linear(inputs.signature.base_logit)(inputs.linear_BF, inputs.numbers_BN)
    x = keras.layers.Dense(options["units"], activation="tanh")(inputs.flat_BK)
    x = keras.layers.Dropout(0.5)(x)
    return linear + keras.ops.squeeze(keras.layers.Dense(1)(x), axis=-1)
"""


def build(folder: Path, text: str, seed: int = 0, **options: object) -> object:
    file = folder / "mine.py"
    file.write_text(text)
    config = CustomModelConfig(file=str(file), options=options)
    return build_model(config, SIGNATURE, seed=seed)


def test_a_users_file_builds_a_model(tmp_path: Path) -> None:
    batch = {
        "embeddings": tf.ones((5, 2, 3)),
        "linear": tf.ones((5, 2)),
        "numbers": tf.ones((5, 1)),
    }
    model, again = build(tmp_path, GOOD, units=4), build(tmp_path, GOOD, units=4)
    other = build(tmp_path, GOOD, seed=1, units=4)
    assert model(batch).shape == (5,)
    np.testing.assert_array_equal(model(batch), again(batch))
    assert not np.array_equal(model(batch), other(batch))


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("x = (", 1, "SyntaxError"),
        ("import keras\nimport no_such_module\n", 2, "ModuleNotFoundError: No module named"),
        ("def build_model(inputs, options):\n\n    return options['a']\n", 3, "KeyError: 'a'"),
        (
            "import keras\ndef build_model(inputs, options):\n"
            "    return keras.layers.Dense(1)(inputs.flat_BK)\n",
            2,
            r"shape \(batch, 1\), not \(batch,\).*squeeze",
        ),
        (
            "def build_model(inputs, options):\n    return 3\n",
            1,
            "returned int, not a Keras tensor",
        ),
        (
            "import keras\ndef build_model(inputs, options):\n"
            "    return keras.ops.cast(inputs.linear_BF[:, 0], 'float64')\n",
            2,
            "returned float64.*cast",
        ),
        ("def build_model(inputs):\n    return 3\n", None, "TypeError"),
        ("y = 1\n", None, "defines no function 'build_model'"),
        (
            "import keras\ndef build_model(inputs, options):\n"
            "    x = keras.layers.BatchNormalization()(inputs.flat_BK)\n"
            "    return keras.ops.sum(x, axis=-1)\n",
            None,
            "state that gradients do not train: .*moving_mean",
        ),
        (
            "import keras\ndef build_model(inputs, options):\n"
            "    return keras.ops.sum(inputs.linear_BF, axis=-1)\n",
            None,
            "nothing to train",
        ),
        (
            "import keras\ndef build_model(inputs, options):\n"
            "    return keras.ops.sum(keras.Input((2,)), axis=-1)\n",
            None,
            "the layers make no model",
        ),
    ],
)
def test_errors_of_the_users_file_name_the_line(
    tmp_path: Path, text: str, line: int | None, message: str
) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        build(tmp_path, text)
    file = str(tmp_path / "mine.py")
    assert caught.value.place == (file if line is None else f"{file}:{line}")
    assert caught.value.remedy


def test_files_that_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file"):
        build_model(CustomModelConfig(file=str(tmp_path / "none.py")), SIGNATURE, seed=0)
    text_file = tmp_path / "model.txt"
    text_file.write_text(GOOD)
    with pytest.raises(ModelError, match="not a Python file"):
        build_model(CustomModelConfig(file=str(text_file)), SIGNATURE, seed=0)
