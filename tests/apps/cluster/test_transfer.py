"""Files between this machine and a pod: what goes on, and what a hostile pod cannot."""

import io
import tarfile

import pytest

from ctr_pipeline.apps.cluster.transfer import (
    OF_THE_CLUSTER,
    DamagedStreamError,
    FoundFile,
    Piece,
    PodFolder,
    find_missing,
    list_folder,
    pack,
    unpack,
)
from ctr_pipeline.errors import CtrPipelineError

FILES = {
    "report.html": b"<html>",
    "export/1/saved_model.pb": b"\0" * 300_000,
    "vocabularies/C1.txt": "clé\n".encode(),
    "empty": b"",
}
STAY = {
    "job/token": b"secret",
    "scores/x/job/tls/worker.key": b"secret",
    "cache/encoded/part-0": b"rows",
}


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    for name, content in {**FILES, **STAY}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "linked").symlink_to("/etc")
    return folder


def packed(run, pieces=None):
    stream = io.BytesIO()
    pack(run, find_missing(run / "nowhere", listed(run)) if pieces is None else pieces, stream)
    return stream.getvalue()


def listed(run):
    return list_folder(run, left_out=OF_THE_CLUSTER)


def found_in(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("size", [1 << 20, 512, 7])
def test_files_arrive_and_secrets_rows_and_links_stay(run, tmp_path, size):
    stream = packed(run)
    blocks = [stream[start : start + size] for start in range(0, len(stream), size)]
    counted = []
    unpack(blocks, tmp_path / "here", on_bytes=counted.append)
    assert found_in(tmp_path / "here") == FILES
    assert sum(counted) == sum(map(len, FILES.values()))
    assert (tmp_path / "here").stat().st_mode & 0o077 == 0
    assert find_missing(tmp_path / "here", listed(run)) == []


def test_a_file_of_the_same_size_that_is_newer_is_missing(run, tmp_path):
    unpack([packed(run)], tmp_path / "here")
    (run / "report.html").write_bytes(b"<HTML>")
    assert [one.file.name for one in find_missing(tmp_path / "here", listed(run))] == [
        "report.html"
    ]


@pytest.mark.parametrize("cut", [1, 700, 200_000, 302_000])
def test_a_stream_that_ends_early_leaves_no_partial_file_and_the_next_one_goes_on(
    run, tmp_path, cut
):
    here, came, sent = tmp_path / "here", [], []
    with pytest.raises(DamagedStreamError):
        unpack([packed(run)[:cut]], here, on_bytes=came.append)
    whole = {name for name in found_in(here) if not name.endswith(".part")}
    assert whole <= FILES.keys()
    pieces = find_missing(here, listed(run))
    unpack([packed(run, pieces)], here, on_bytes=sent.append)
    assert found_in(here) == FILES
    assert sum(came) + sum(sent) == sum(map(len, FILES.values()))


def test_a_file_that_changed_meanwhile_comes_whole(run, tmp_path):
    here, name = tmp_path / "here", "export/1/saved_model.pb"
    with pytest.raises(DamagedStreamError):
        unpack([packed(run)[:200_000]], here)
    pieces = find_missing(here, listed(run))
    assert next(one for one in pieces if one.file.name == name).offset > 0
    (run / name).write_bytes(b"new" * 90_000)
    unpack([packed(run, pieces)], here)
    assert found_in(here) == FILES | {name: b"new" * 90_000}


class TestPod:
    """The program that runs in a pod, as a process of this machine."""

    def test_files_are_fetched(self, run, tmp_path, pods):
        folder = PodFolder(pods, "driver", str(run))
        files = folder.list_files()
        assert {one.name for one in files} == FILES.keys()
        here = tmp_path / "here"
        folder.fetch(find_missing(here, files), here, on_bytes=lambda _: None)
        assert found_in(here) == FILES

    def test_pod_folder_may_be_absent(self, tmp_path, pods):
        assert PodFolder(pods, "driver", str(tmp_path / "none")).list_files() is None

    def test_files_are_uploaded_and_the_same_ones_once(self, run, tmp_path, pods):
        folder, told = PodFolder(pods, "upload", str(tmp_path / "claim")), []
        for expected in (len(FILES), 0):
            pieces = folder.find_missing(listed(run))
            assert len(pieces) == expected
            folder.upload(run, pieces, on_bytes=told.append)
        assert found_in(tmp_path / "claim") == FILES
        assert sum(told) == sum(map(len, FILES.values()))

    def test_upload_names_the_path_that_the_pod_cannot_write(self, run, tmp_path, pods):
        (tmp_path / "claim").mkdir()
        (tmp_path / "claim" / "export").write_text("a file")
        folder = PodFolder(pods, "upload", str(tmp_path / "claim"))
        pieces = [Piece(one, 0) for one in listed(run)]
        with pytest.raises(CtrPipelineError, match=r"of the claim: .*/claim/export"):
            folder.upload(run, pieces, on_bytes=lambda _: None)


def archive_of(*entries):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for entry in entries:
            archive.addfile(entry, io.BytesIO(b"x" * entry.size))
    return stream.getvalue()


def entry(name, kind=tarfile.REGTYPE, target=""):
    made = tarfile.TarInfo(name)
    made.pax_headers = {"CTRPIPE.offset": "0", "CTRPIPE.modified": "5"}
    made.type, made.linkname, made.size = kind, target, 1 if kind == tarfile.REGTYPE else 0
    return made


@pytest.mark.parametrize(
    "hostile",
    [
        entry("../outside"),
        entry("/tmp/outside"),  # noqa: S108
        entry("a/../../outside"),
        entry("link", tarfile.SYMTYPE, "/etc"),
        entry("link", tarfile.LNKTYPE, "/etc/passwd"),
        entry("device", tarfile.CHRTYPE),
        entry("pipe", tarfile.FIFOTYPE),
        entry("linked/outside"),
        entry("."),
    ],
    ids=lambda one: f"{one.name}-{one.type.decode()}",
)
def test_unpacking_writes_nothing_outside_of_the_folder(tmp_path, hostile):
    here, outside = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    outside.mkdir()
    (here / "linked").symlink_to(outside)
    with pytest.raises(CtrPipelineError, match="no file of the folder"):
        unpack([archive_of(entry("first"), hostile)], here)
    assert {path.name for path in here.iterdir()} == {"first", "linked"}
    assert not list(outside.iterdir())
    assert {path.name for path in tmp_path.iterdir()} == {"here", "elsewhere"}


def test_a_link_in_place_of_a_part_is_not_followed(tmp_path):
    here = tmp_path / "here"
    here.mkdir()
    outside = tmp_path / "outside"
    outside.write_bytes(b"")
    (here / FoundFile("first", 1, 5).part_name).symlink_to(outside)
    with pytest.raises(OSError, match="symbolic links"):
        unpack([archive_of(entry("first"))], here)
    assert outside.read_bytes() == b""


@pytest.mark.parametrize(
    ("offset", "message"), [("7", "the middle of first lacks"), ("-1", "lacks"), ("x", "facts")]
)
def test_a_pod_cannot_say_that_more_came_than_did(tmp_path, offset, message):
    hostile = entry("first")
    hostile.pax_headers["CTRPIPE.offset"] = offset
    with pytest.raises(DamagedStreamError, match=message):
        unpack([archive_of(hostile)], tmp_path / "here")
    assert not (tmp_path / "here" / "first").exists()
