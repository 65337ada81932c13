"""Fixtures of tests of what is built on the pipeline."""

import pytest

from ctr_pipeline.storage.opening import STORAGES


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder of its own, and a disk in the place of the object store."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "store").mkdir()
    disk = STORAGES["file"]
    monkeypatch.setitem(STORAGES, "s3", lambda address: disk(str(tmp_path / "store")))
    return tmp_path
