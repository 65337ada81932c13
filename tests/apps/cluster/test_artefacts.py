"""The files of a run as a stream: what travels, and what a hostile stream cannot do."""

import io
import subprocess
import sys
import tarfile

import pytest

from ctr_pipeline.apps.cluster.artefacts import DamagedStreamError, pack, unpack
from ctr_pipeline.errors import CtrPipelineError

FILES = {
    "report.html": b"<html>",
    "export/1/saved_model.pb": b"\0" * 100_000,
    "vocabularies/C1.txt": "clé\n".encode(),
    "empty": b"",
}
STAY = {
    "job/token": b"secret",
    "scores/x/job/tls/worker.key": b"secret",
    "cache/encoded/part-0": b"rows",
}
CHECKPOINTS = {"checkpoints/cut-1/manifest.json": b"{}"}


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    for name, content in {**FILES, **STAY, **CHECKPOINTS}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "linked").symlink_to("/etc")
    return folder


def packed(run, **options):
    stream = io.BytesIO()
    pack(run, stream, **options)
    return stream.getvalue()


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
    done = unpack(blocks, tmp_path / "here", on_bytes=counted.append)
    assert found_in(tmp_path / "here") == FILES
    assert done.num_files == len(FILES)
    assert done.num_bytes == sum(counted) == sum(map(len, FILES.values()))
    assert (tmp_path / "here").stat().st_mode & 0o077 == 0


def test_checkpoints_travel_on_request(run, tmp_path):
    unpack([packed(run, checkpoints=True)], tmp_path / "here")
    assert found_in(tmp_path / "here") == FILES | CHECKPOINTS


def test_the_program_says_when_there_is_no_folder(tmp_path):
    command = [sys.executable, "-m", "ctr_pipeline.apps.cluster.artefacts", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (66, b"")
    assert unpack([done.stdout], tmp_path / "here").num_files == 0


def archive_of(*entries):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w|") as archive:
        for entry in entries:
            archive.addfile(entry, io.BytesIO(b"x" * entry.size))
    return stream.getvalue()


def entry(name, kind=tarfile.REGTYPE, target=""):
    made = tarfile.TarInfo(name)
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
def test_nothing_is_written_outside_of_the_folder(tmp_path, hostile):
    here, outside = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    outside.mkdir()
    (here / "linked").symlink_to(outside)
    with pytest.raises(CtrPipelineError, match="no file of a run folder"):
        unpack([archive_of(entry("first"), hostile)], here)
    assert {path.name for path in here.iterdir()} == {"first", "linked"}
    assert not list(outside.iterdir())
    assert {path.name for path in tmp_path.iterdir()} == {"here", "elsewhere"}


@pytest.mark.parametrize("cut", [1, 700, 50_000])
def test_a_stream_that_ends_early_leaves_no_partial_file(run, tmp_path, cut):
    with pytest.raises(DamagedStreamError):
        unpack([packed(run)[:cut]], tmp_path / "here")
    for name, content in found_in(tmp_path / "here").items():
        assert FILES[name] == content
