import logging

import pyarrow as pa
import pytest

from ctr_pipeline.config.models import RuntimeConfig
from ctr_pipeline.machine import available_cores
from ctr_pipeline.pipeline.resources import (
    bound_libraries,
    find_huge_layers,
    num_threads,
    thread_shares,
)
from ctr_pipeline.specs.model_kinds import MODELS, DeepFMConfig


@pytest.fixture
def arrow():
    before = pa.cpu_count()
    yield
    pa.set_cpu_count(before)


def test_config_wins():
    assert num_threads(RuntimeConfig(threads=3)) == 3
    assert num_threads(RuntimeConfig()) == available_cores()
    assert thread_shares(RuntimeConfig(threads=6)).tensorflow == 5


@pytest.mark.usefixtures("arrow")
def test_arrow_is_bounded_and_the_log_says_how_cores_are_shared(caplog):
    with caplog.at_level(logging.INFO):
        bound_libraries(RuntimeConfig(threads=5))
    assert pa.cpu_count() == 5
    assert "Threads: 5" in caplog.text
    assert "TensorFlow 4, embedding rows 5" in caplog.text


@pytest.mark.parametrize(
    ("model", "num_inputs", "available", "found"),
    [
        # 40 * 30 + 30 * 20 parameters of 8 bytes.
        ({"hidden_units": (30, 20)}, 40, 14_400, None),
        ({"hidden_units": (30, 20)}, 40, 14_399, "hidden_units"),
        ({"hidden_units": (30, 20)}, 0, 4_800, None),
        ({"hidden_units": (30, 20)}, 0, 4_799, "hidden_units"),
        (
            {"name": "dlrm", "bottom_units": (100, 100), "hidden_units": (1,)},
            40,
            79_999,
            "bottom_units",
        ),
        ({"hidden_units": ()}, 40, 1, None),
        ({"name": "custom", "file": "m.py"}, 40, 1, None),
    ],
)
def test_layers_that_cannot_fit_are_found(model, num_inputs, available, found):
    section = MODELS[model.get("name", "deepfm")](**model)
    huge = find_huge_layers(section, num_inputs=num_inputs, available_bytes=available)
    assert (huge and huge[0]) == found


def test_model_is_reported_with_both_sizes_when_it_cannot_fit():
    model = DeepFMConfig(hidden_units=(1_000_000, 1_000_000))
    key, message = find_huge_layers(model, available_bytes=16_000_000_000)
    assert key == "hidden_units"
    assert "1,000,000,000,000 parameters" in message
    assert "at least 8,000.0 GB" in message
    assert "this machine has 16.0 GB" in message
