"""The examples in the docstrings of the public layers, run as they stand."""

import doctest

import keras
import pytest
import tensorflow as tf

from ctr_pipeline.preprocessing import layers


@pytest.mark.parametrize("name", sorted(layers.public_layers()))
def test_the_example_of_a_layer(name):
    layer = getattr(layers, name)
    names = {"tf": tf, "keras": keras, name: layer}
    (example,) = doctest.DocTestFinder(recurse=False).find(layer, name, globs=names)
    assert example.examples, f"{name} needs an Example in its docstring"
    runner = doctest.DocTestRunner(verbose=False)
    runner.run(example)
    assert runner.summarize().failed == 0
