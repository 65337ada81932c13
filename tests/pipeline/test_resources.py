import logging

import pyarrow as pa
import pytest

from ctr_pipeline.config.models import RuntimeConfig
from ctr_pipeline.machine import available_cores
from ctr_pipeline.pipeline.resources import bound_libraries, num_threads, thread_shares


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
