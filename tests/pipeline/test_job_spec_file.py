from types import SimpleNamespace

import pytest

from ctr_pipeline.errors import RunFolderError
from ctr_pipeline.pipeline.job import spec_file as job_spec
from ctr_pipeline.pipeline.job.spec_file import require_same_partitions
from ctr_pipeline.pipeline.run_folder import RunFolder


def asks_for(partitions):
    return SimpleNamespace(runtime=SimpleNamespace(partitions=partitions))


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Of a job whose rows lie in 128 partitions."""
    monkeypatch.setattr(job_spec, "load_spec", lambda folder: SimpleNamespace(num_partitions=128))
    return RunFolder(tmp_path)


@pytest.mark.parametrize("asked", [64, 256])
def test_another_number_alone_is_refused_with_both_and_the_way_back(run, asked):
    require_same_partitions(asks_for(128), run)
    with pytest.raises(RunFolderError) as caught:
        require_same_partitions(asks_for(asked), run)
    assert caught.value.place == str(run.path)
    assert f"runtime.partitions is {asked} now and was 128" in str(caught.value)
    assert "--set runtime.partitions=128" in str(caught.value)
    assert "--overwrite" in str(caught.value)
