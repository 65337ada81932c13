import errno
import json

import pytest

from ctr_pipeline.errors import CheckpointError, ModelError, RunFolderError
from ctr_pipeline.training.checkpoint import CheckpointFolder

STATE = {"step": 3, "history": [{"loss": 0.1234567890123456}], "finished": ""}


@pytest.fixture
def folder(tmp_path):
    return CheckpointFolder(tmp_path / "checkpoints")


def save(folder, step, content=b"some rows"):
    def write(target):
        (target / "rows.bin").write_bytes(content + str(step).encode())
        (target / "dense.bin").write_bytes(b"")

    return folder.save(step, STATE | {"step": step}, write)


def test_round_trip(folder):
    saved = save(folder, 12)
    loaded = folder.load(12)
    assert loaded == saved
    assert loaded.state == STATE | {"step": 12}
    assert (loaded.folder / "rows.bin").read_bytes() == b"some rows12"


def test_steps_sort_as_numbers(folder):
    for step in (9, 100, 20):
        save(folder, step)
    assert folder.steps() == [9, 20, 100]
    assert folder.load_newest(pytest.fail).step == 100


def test_none_at_all(folder):
    assert folder.steps() == []
    assert folder.load_newest(pytest.fail) is None
    with pytest.raises(CheckpointError, match="no readable manifest"):
        folder.load(1)


def test_same_step_is_replaced(folder):
    save(folder, 5, b"old")
    save(folder, 5, b"new")
    assert (folder.load(5).folder / "rows.bin").read_bytes() == b"new5"
    assert folder.steps() == [5]


def test_temporary_folders_do_not_count(folder):
    save(folder, 5)
    (folder.folder / ".step-000000000009.tmp").mkdir()
    assert folder.steps() == [5]
    assert folder.load_newest(pytest.fail).step == 5
    assert save(folder, 9).step == 9
    assert not list(folder.folder.glob(".*"))


def lose_file(path):
    (path / "rows.bin").unlink()


def cut_short(path):
    (path / "rows.bin").write_bytes((path / "rows.bin").read_bytes()[:-1])


def flip_bit(path):
    content = bytearray((path / "rows.bin").read_bytes())
    content[2] ^= 0b100
    (path / "rows.bin").write_bytes(content)


def lose_manifest(path):
    (path / "manifest.json").unlink()


def break_manifest(path):
    (path / "manifest.json").write_text('{"version": 1, "st')


def empty_manifest(path):
    (path / "manifest.json").write_text("{}")


def list_manifest(path):
    (path / "manifest.json").write_text("[1, 2]")


def edit_manifest(path, **values):
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | values))


def other_files(path):
    edit_manifest(path, files=["rows.bin"])


def other_version(path):
    edit_manifest(path, version=99)


def flip_bit_of_state(path):
    text = (path / "manifest.json").read_text()
    assert "0.1234567890123456" in text
    (path / "manifest.json").write_text(text.replace("0.1234567890123456", "0.1234567880123456"))


DAMAGE = {
    lose_file: "'rows.bin' is missing or cut short",
    cut_short: "'rows.bin' is missing or cut short",
    flip_bit: "'rows.bin' is damaged",
    lose_manifest: "no readable manifest",
    break_manifest: "no readable manifest",
    empty_manifest: "no readable manifest",
    list_manifest: "no readable manifest",
    other_files: "manifest is damaged",
    other_version: "has format 99, this program reads",
    flip_bit_of_state: "manifest is damaged",
}


@pytest.mark.parametrize(
    ("damage", "message"), DAMAGE.items(), ids=[damage.__name__ for damage in DAMAGE]
)
def test_damage_is_detected_and_the_previous_one_used(folder, damage, message):
    save(folder, 1)
    damage(save(folder, 2).folder)
    with pytest.raises(CheckpointError, match=message):
        folder.load(2)
    said = []
    assert folder.load_newest(said.append).step == 1
    (line,) = said
    assert line.startswith("Skipping a checkpoint: ")
    assert "step-000000000002" in line


def test_all_damaged_is_an_error_with_a_remedy(folder):
    for step in (1, 2):
        cut_short(save(folder, step).folder)
    said = []
    with pytest.raises(CheckpointError, match=r"all checkpoints are damaged.*without --resume"):
        folder.load_newest(said.append)
    assert len(said) == 2


def test_retention_keeps_the_newest_and_the_pinned(folder):
    for step in range(1, 7):
        save(folder, step)
    folder.retain(2, pinned=3)
    assert folder.steps() == [3, 5, 6]
    folder.retain(1, pinned=6)
    assert folder.steps() == [6]
    folder.retain(1, pinned=None)
    assert folder.steps() == [6]


@pytest.mark.parametrize(
    ("raised", "seen", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), RunFolderError, "the disk is full"),
        (PermissionError(errno.EACCES, "denied"), RunFolderError, "cannot be written"),
        (ModelError("no"), ModelError, "no"),
    ],
)
def test_failed_save_leaves_earlier_ones_and_nothing_of_its_own(folder, raised, seen, message):
    save(folder, 1)

    def write(target):
        (target / "rows.bin").write_bytes(b"half")
        raise raised

    with pytest.raises(seen, match=message):
        folder.save(2, STATE, write)
    assert [path.name for path in folder.folder.iterdir()] == ["step-000000000001"]
    assert folder.load_newest(pytest.fail).step == 1


def test_failed_replacement_leaves_the_old_one(folder):
    save(folder, 1, b"old")

    def write(_target):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(RunFolderError):
        folder.save(1, STATE, write)
    assert (folder.load(1).folder / "rows.bin").read_bytes() == b"old1"


def test_what_was_passed_over_does_not_count_as_the_newest(folder):
    save(folder, 1)
    cut_short(save(folder, 9).folder)
    folder.discard_after(folder.load_newest(str).step)
    save(folder, 5)
    folder.retain(1, pinned=None)
    assert folder.load_newest(pytest.fail).step == 5


def test_clear(folder):
    save(folder, 1)
    folder.clear()
    folder.clear()
    assert folder.steps() == []
