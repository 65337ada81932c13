import errno
import os
import zlib
from pathlib import Path

import pytest

from ctr_pipeline import durable
from ctr_pipeline.errors import RunFolderError


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_whole_file_and_nothing_beside_it(tmp_path):
    durable.write_text(tmp_path / "a.json", "Grüße\n")
    assert (tmp_path / "a.json").read_bytes() == "Grüße\n".encode()
    durable.write_text(tmp_path / "a.json", "new")
    assert (tmp_path / "a.json").read_text() == "new"
    assert names_in(tmp_path) == ["a.json"]


def test_no_name_is_foreseen_and_no_planted_link_is_followed(tmp_path, monkeypatch):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    names = iter(["planted", "fresh"])
    monkeypatch.setattr(durable.secrets, "token_hex", lambda _: next(names))
    for name in ("planted", os.getpid()):
        (tmp_path / f".page.html.{name}.tmp").symlink_to(victim)
    with pytest.raises(RunFolderError, match="cannot be written"):
        durable.write_text(tmp_path / "page.html", "new")
    durable.write_text(tmp_path / "page.html", "new")
    assert victim.read_text() == "precious"
    assert (tmp_path / "page.html").read_text() == "new"


def test_each_temporary_file_has_a_name_of_its_own(tmp_path):
    first, second = (durable.open_temporary(tmp_path / "rows") for _ in range(2))
    assert first[0] != second[0]
    for _, descriptor in (first, second):
        os.close(descriptor)


def test_a_link_in_the_place_of_a_growing_file_is_refused(tmp_path):
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "run.log").symlink_to(tmp_path / "victim")
    path = tmp_path / "run.log"
    with pytest.raises(RunFolderError, match="is a link"), durable.os_errors_explained(path):
        durable.not_through_links(str(path), os.O_WRONLY | os.O_APPEND)
    assert (tmp_path / "victim").read_text() == "precious"


def test_file_is_absent_before_the_end_of_the_write(tmp_path):
    with durable.durable_write(tmp_path / "rows") as file:
        file.write(b"half")
        assert not (tmp_path / "rows").exists()


@pytest.mark.parametrize("error", [ValueError("a bug"), KeyboardInterrupt()])
def test_error_leaves_the_old_file(tmp_path, error):
    path = tmp_path / "rows"
    path.write_text("old")

    def fail():
        with durable.durable_write(path) as file:
            file.write(b"half")
            raise error

    with pytest.raises(type(error)):
        fail()
    assert path.read_text() == "old"
    assert names_in(tmp_path) == ["rows"]


@pytest.mark.parametrize(
    ("number", "message", "remedy"),
    [
        (errno.ENOSPC, "the disk is full", "Free space"),
        (errno.EACCES, "cannot be written", "Choose another 'output'"),
        (errno.EPERM, "cannot be written", "Choose another 'output'"),
        (errno.EROFS, "cannot be written", "Choose another 'output'"),
        (errno.EIO, f"cannot be written \\({os.strerror(errno.EIO)}\\)", ""),
    ],
)
def test_system_errors_in_words(tmp_path, number, message, remedy):
    path = tmp_path / "rows"
    path.write_text("old")

    def fail():
        with durable.durable_write(path):
            raise OSError(number, os.strerror(number))

    with pytest.raises(RunFolderError, match=message) as raised:
        fail()
    assert raised.value.place == str(path)
    assert remedy in (raised.value.remedy or "")
    assert names_in(tmp_path) == ["rows"]


def test_files_are_on_disk_when_all_were_waited_for(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    files = [tmp_path / f"file {number}" for number in range(9)]
    with durable.FileSyncs() as syncs:
        for path in files:
            path.write_bytes(b"content")
            syncs.add(path)
        syncs.finish()
        assert sorted(synced) == sorted(path.stat().st_ino for path in files)


def test_a_file_that_cannot_be_put_on_disk_is_told_of(tmp_path, monkeypatch):
    def fail(_descriptor):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    path = tmp_path / "rows"
    path.write_bytes(b"content")
    with durable.FileSyncs() as syncs:
        syncs.add(path)
        with pytest.raises(RunFolderError, match="Input/output") as told:
            syncs.finish()
    assert told.value.place == str(path)


def test_missing_folder_is_the_users_to_mend(tmp_path):
    with pytest.raises(RunFolderError, match="cannot be written"):
        durable.write_text(tmp_path / "absent" / "rows", "x")


def test_crc_of_a_file_longer_than_a_block(tmp_path):
    content = os.urandom((1 << 20) + 17)
    (tmp_path / "rows").write_bytes(content)
    assert durable.crc32_of(tmp_path / "rows") == zlib.crc32(content)


@pytest.mark.parametrize("knows_links", [True, False])
def test_a_second_name_outlives_the_first(tmp_path, monkeypatch, knows_links):
    if not knows_links:

        def refuse(*_):
            raise OSError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(Path, "hardlink_to", refuse)
    (tmp_path / "first").write_bytes(b"rows")
    durable.link_or_copy(tmp_path / "first", tmp_path / "second")
    (tmp_path / "first").unlink()
    assert (tmp_path / "second").read_bytes() == b"rows"
    with pytest.raises(FileNotFoundError):
        durable.link_or_copy(tmp_path / "first", tmp_path / "third")
    assert not (tmp_path / "third").exists()
