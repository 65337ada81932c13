"""A master that a person starts holds the run folder, which a launcher does where there is one."""

import pytest

from ctr_pipeline.config.loader import config_from_mapping
from ctr_pipeline.distributed.master import program
from ctr_pipeline.errors import FolderInUseError
from ctr_pipeline.pipeline.job.members import run_as_master
from ctr_pipeline.pipeline.run_folder import RunFolder


@pytest.fixture
def loaded(tmp_path):
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "spec.json").write_text("{}")
    (tmp_path / ".lock").touch()
    return config_from_mapping(
        {
            "data": {"train": "rows.csv"},
            "runtime": {"mode": "processes"},
            "output": str(tmp_path),
        }
    )


def test_run_folder_is_refused_to_others_while_its_master_lives(loaded, tmp_path, monkeypatch):
    half_written = tmp_path / ".rows.arrow.tmp"
    half_written.touch()

    def run_master(folder, bind, *, pages):
        assert (folder, bind) == (tmp_path, "127.0.0.1:7000")
        with pytest.raises(FolderInUseError):
            RunFolder(tmp_path).require_unused()
        return 5

    monkeypatch.setattr(program, "run_master", run_master)
    assert run_as_master(loaded, bind="127.0.0.1:7000", launcher_address=None) == 5
    RunFolder(tmp_path).require_unused()
    assert half_written.exists()


def test_the_ledger_decides_between_two_masters(loaded, tmp_path, monkeypatch):
    monkeypatch.setattr(program, "run_master", lambda folder, bind, *, pages: 75)
    with RunFolder(tmp_path).locked():
        assert run_as_master(loaded, bind="127.0.0.1:0", launcher_address=None) == 75
