"""Addresses of storages, and disks that refuse."""

import builtins
import errno
import os

import pytest

from ctr_pipeline.errors import RunFolderError, StorageError
from ctr_pipeline.storage.local_disk import LocalDisk
from ctr_pipeline.storage.object_store import ObjectStore
from ctr_pipeline.storage.opening import open_storage
from ctr_pipeline.storage.protocol import StorageAwayError, StorageDeniedError


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_a_folder_is_a_storage(tmp_path, prefix):
    storage = open_storage(f"{prefix}{tmp_path}/run")
    assert isinstance(storage, LocalDisk)
    storage.write("a/b", b"x")
    assert (tmp_path / "run/a/b").read_bytes() == b"x"


@pytest.mark.parametrize("address", ["s3://bucket/runs/one", "gs://bucket/runs", "az://box/runs"])
def test_buckets_are_storages(address, monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    storage = open_storage(f"{address}/")
    assert isinstance(storage, ObjectStore)
    assert storage.address == address


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("s4://bucket/a", "'s4://' is no storage of runs. Did you mean 's3://'?"),
        ("ftp://host/a", "is no storage of runs. Write a folder, or one of file://, s3://"),
        ("s3://", "names no place. Write s3://, then where it is"),
        ("az://box/runs", "cannot be opened"),
    ],
)
def test_an_address_that_is_none_is_refused(address, message, monkeypatch):
    for name in [one for one in os.environ if one.startswith("AZURE_")]:
        monkeypatch.delenv(name)
    with pytest.raises(StorageError) as caught:
        open_storage(address)
    assert message in str(caught.value)


def test_the_package_that_is_missing_is_named(monkeypatch):
    real = builtins.__import__

    def refuse(name, *rest, **named):
        if name == "ctr_pipeline.storage.object_store":
            raise ModuleNotFoundError("No module named 'obstore'", name="obstore")
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(StorageError, match=r"pip install 'ctrpipe\[objectstore\]'"):
        open_storage("s3://bucket/run")


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EACCES, StorageDeniedError),
        (errno.EROFS, StorageDeniedError),
        (errno.ESTALE, StorageAwayError),
        (errno.EIO, StorageAwayError),
        (errno.ENOSPC, RunFolderError),
    ],
)
def test_disk_refusal_is_told_by_its_kind_and_leaves_nothing(tmp_path, monkeypatch, number, kind):
    storage = LocalDisk(str(tmp_path))
    storage.write("kept", b"before")

    def fail(_descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    for call in (
        lambda: storage.write("kept", b"after"),
        lambda: storage.put_if_absent("new", b"x"),
    ):
        with pytest.raises(kind):
            call()
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert storage.read("kept") == b"before"


def test_a_disk_without_hard_links_is_refused_and_not_trusted(tmp_path, monkeypatch):
    def fail(*_names, **_more):
        raise OSError(errno.EOPNOTSUPP, "no links")

    monkeypatch.setattr(os, "link", fail)
    with pytest.raises(RunFolderError, match="the file system has no hard links"):
        LocalDisk(str(tmp_path)).put_if_absent("a", b"x")
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_killed_writers_are_deleted_where_nobody_writes_any_more(tmp_path):
    storage = LocalDisk(str(tmp_path))
    storage.write("f/done", b"x")
    for name in (".old.4711abcd.tmp", ".new.4711abcd.tmp", ".notes"):
        (tmp_path / "f" / name).write_bytes(b"half")
    storage.delete_unfinished(lambda key: key == "f/old")
    names = sorted(path.name for path in (tmp_path / "f").iterdir())
    assert names == [".new.4711abcd.tmp", ".notes", "done"]


def test_a_file_in_the_place_of_the_folder_is_told(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    storage = LocalDisk(str(tmp_path / "file"))
    for call in (
        lambda: storage.write("a", b""),
        lambda: storage.put_if_absent("a", b""),
    ):
        with pytest.raises(RunFolderError, match="cannot be written"):
            call()
    with pytest.raises(StorageAwayError, match="cannot be read"):
        storage.read("a")


def test_files_that_are_being_written_are_not_listed(tmp_path):
    storage = LocalDisk(str(tmp_path))

    with storage.create("f/a") as file:
        file.write(b"x")
        assert storage.list("f") == []
        assert any(path.name.endswith(".tmp") for path in (tmp_path / "f").iterdir())
    assert [one.key for one in storage.list("f")] == ["f/a"]
