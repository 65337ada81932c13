"""The examples in the docstrings of the public layers and in the README, run as they stand."""

import doctest
import re
import runpy
from pathlib import Path

import keras
import pytest
import tensorflow as tf

from ctr_pipeline.preprocessing import layers


@pytest.mark.parametrize("name", sorted(layers.LAYER_MODULES))
def test_the_example_of_a_layer(name):
    layer = getattr(layers, name)
    names = {"tf": tf, "keras": keras, name: layer}
    (example,) = doctest.DocTestFinder(recurse=False).find(layer, name, globs=names)
    assert example.examples, f"{name} needs an Example in its docstring"
    runner = doctest.DocTestRunner(verbose=False)
    runner.run(example)
    assert runner.summarize().failed == 0


def test_the_example_of_the_readme(tmp_path, monkeypatch, capsys):
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    section = readme.split("### Layers by themselves", 1)[1]
    program = re.search(r"```python\n(.*?)```", section, re.DOTALL).group(1)
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    names = runpy.run_path("program.py")
    assert "loss" in capsys.readouterr().out
    inputs = [tf.constant([["red"]]), tf.constant([[20.0]])]
    loaded = keras.models.load_model("tags.keras")
    assert loaded(inputs).numpy().tolist() == names["model"](inputs).numpy().tolist()
