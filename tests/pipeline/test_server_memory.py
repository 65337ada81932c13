import numpy as np
import pytest

from ctr_pipeline.config.loader import config_from_mapping
from ctr_pipeline.embeddings.counts import IdCounts
from ctr_pipeline.embeddings.store import EmbeddingStore
from ctr_pipeline.pipeline.context import RunContext
from ctr_pipeline.pipeline.job.server_memory import count_rows, server_bytes, warning_of_memory
from ctr_pipeline.pipeline.model.embedding_rows import segment_specs
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.pipeline.stages.analyze import run_analysis
from ctr_pipeline.pipeline.stages.encode import run_encoding
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.specs.table import TableSpec
from tests.pipeline.clicks import settings_of, write_clicks


@pytest.fixture(scope="module")
def encoded(tmp_path_factory):
    """The settings of a run, and its encoded rows."""
    folder = tmp_path_factory.mktemp("encoded")
    write_clicks(folder / "rows.tsv", 1000)
    settings = settings_of(folder / "rows.tsv", folder / "out")
    run = RunFolder(folder / "out")
    with run.locked():
        context = RunContext(config_from_mapping(settings), run, SilentProgress())
        return settings, run_encoding(context, run_analysis(context))


@pytest.mark.parametrize(("memory", "set_to"), [("2Gi", ""), ("300Mi", ""), ("200M", "1Gi")])
def test_servers_that_are_too_small_are_told_a_size(encoded, memory, set_to):
    settings, encoding = encoded
    overrides = [f"kubernetes.parameter_servers.memory={memory}", "runtime.mode=kubernetes"]
    warning = warning_of_memory(config_from_mapping(settings, overrides).config, encoding)
    if set_to:
        assert f"kubernetes.parameter_servers.memory is {memory}" in warning
        assert warning.endswith(f"set it to {set_to}")
    else:
        assert warning == ""


@pytest.mark.parametrize("mode", ["processes", "local"])
def test_servers_with_the_memory_of_their_host_are_told_none(encoded, mode):
    settings, encoding = encoded
    overrides = ["kubernetes.parameter_servers.memory=200M", f"runtime.mode={mode}"]
    assert warning_of_memory(config_from_mapping(settings, overrides).config, encoding) == ""


def test_rows_are_made_for_ids_that_occur_often_enough():
    counts = [IdCounts.of_all(np.array(one)) for one in ([0, 1, 5], [2, 0, 0, 3], [0] * 9)]
    assert count_rows(counts, admit_after=0) == count_rows(counts, admit_after=1) == 4
    assert count_rows(counts, admit_after=3) == 2


def test_memory_estimate_is_what_a_store_takes_and_little_more(encoded):
    config = config_from_mapping(encoded[0]).config
    num_rows = 200_000
    segments = segment_specs(config.model, config.train)
    store = EmbeddingStore([TableSpec("t", num_rows)], segments, seed=1, threads=1)
    store.read_rows(np.arange(num_rows), create=True)
    sizes = {"record_bytes": store.layout.record_bytes, "most_record_bytes": None}
    empty = server_bytes(0, num_servers=1, **sizes)
    needed = server_bytes(num_rows, num_servers=1, **sizes) - empty
    assert store.rows.num_bytes <= needed < 1.5 * store.rows.num_bytes
    assert server_bytes(num_rows, num_servers=4, **sizes) - empty == needed / 4
    sizes["most_record_bytes"] = 1_000_000
    bounded = server_bytes(num_rows, num_servers=1, **sizes) - empty
    assert bounded == needed - num_rows * store.layout.record_bytes + 1_000_000
