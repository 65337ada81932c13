import errno
import re

import pytest

from ctr_pipeline.errors import CheckpointError, ModelError, RunFolderError
from ctr_pipeline.storage.commit_log import CommitWriter, FencedError
from ctr_pipeline.storage.opening import open_storage
from ctr_pipeline.training.checkpoint import (
    Checkpoints,
    newest_number,
    newest_step,
    require_to_go_on,
)

STATE = {
    "step": 3,
    "position": {"epoch": 0, "task": 1, "batch": 2},
    "history": [{"loss": 0.1234567890123456}],
}


@pytest.fixture
def root(tmp_path):
    return tmp_path / "checkpoints"


@pytest.fixture
def checkpoints(root):
    return Checkpoints(open_storage(str(root)))


def save(checkpoints, step, content=b"some rows"):
    def write_rows(file):
        file.write(content + str(step).encode())

    return checkpoints.save(STATE | {"step": step}, rows=write_rows, dense=write_dense, num_dense=3)


def write_dense(file):
    file.write(b"dense")


def read(checkpoint, file):
    with checkpoint.storage.reading(file.name) as opened:
        return opened.read()


def rows_of(checkpoint):
    ((whole,),) = checkpoint.files.chains
    return read(checkpoint, whole)


def manifest_of(root, checkpoint):
    commit_id = checkpoint.manifest.commit_id
    return root / "manifests" / f"{commit_id.generation:06d}-{commit_id.number:012d}.json"


def rows_file(root, checkpoint):
    return root / checkpoint.manifest.parts[0].key


def test_round_trip(checkpoints, root):
    saved = save(checkpoints, 12)
    loaded = Checkpoints(open_storage(str(root))).load(12)
    assert loaded == saved
    assert (loaded.step, loaded.state) == (12, STATE | {"step": 12})
    assert rows_of(loaded) == b"some rows12"
    (dense,) = loaded.files.dense
    assert (read(loaded, dense), dense.num_rows, loaded.number) == (b"dense", 3, 1)


def test_steps_sort_as_numbers(checkpoints):
    for step in (9, 20, 100):
        save(checkpoints, step)
    assert checkpoints.steps() == [9, 20, 100]
    assert checkpoints.load_newest(pytest.fail).step == 100


def test_checkpoint_store_is_empty_before_the_first_save(checkpoints, root):
    assert checkpoints.steps() == []
    assert checkpoints.load_newest(pytest.fail) is None
    checkpoints.retain(1, pinned=None)
    with pytest.raises(CheckpointError, match="no readable manifest of step 1"):
        checkpoints.load(1)
    assert not root.exists()


def test_same_step_is_replaced(checkpoints):
    save(checkpoints, 3)
    save(checkpoints, 5, b"old")
    save(checkpoints, 5, b"new")
    assert rows_of(checkpoints.load(5)) == b"new5"
    assert checkpoints.steps() == [3, 5]
    checkpoints.retain(2, pinned=None)
    assert checkpoints.steps() == [3, 5]
    assert rows_of(checkpoints.load(5)) == b"new5"


def test_checkpoint_of_a_killed_process_does_not_count_and_goes(checkpoints, root):
    kept = save(checkpoints, 5)

    def killed(file):
        file.write(b"half")
        raise SystemExit

    with pytest.raises(SystemExit):
        checkpoints.save(STATE, rows=write_dense, dense=killed, num_dense=3)
    assert len(list((root / "parts").iterdir())) == 3
    later = Checkpoints(open_storage(str(root)))
    assert later.load_newest(pytest.fail) == kept
    save(later, 9)
    later.retain(2, pinned=None)
    assert later.steps() == [5, 9]
    assert len(list((root / "parts").iterdir())) == 4


def test_a_process_that_was_replaced_saves_nothing_more(checkpoints, root):
    save(checkpoints, 1)
    successor = Checkpoints(open_storage(str(root)))
    save(successor, 2)
    with pytest.raises(FencedError, match="another process has taken over"):
        save(checkpoints, 3)
    with pytest.raises(FencedError):
        checkpoints.retain(1, pinned=None)
    assert successor.steps() == [1, 2]
    assert len(list((root / "parts").iterdir())) == 4


def lose_file(root, checkpoint):
    rows_file(root, checkpoint).unlink()


def cut_short(root, checkpoint):
    path = rows_file(root, checkpoint)
    path.write_bytes(path.read_bytes()[:-1])


def flip_bit(root, checkpoint):
    path = rows_file(root, checkpoint)
    content = bytearray(path.read_bytes())
    content[2] ^= 0b100
    path.write_bytes(content)


def break_manifest(root, checkpoint):
    manifest_of(root, checkpoint).write_text('{"version": 1, "st')


def empty_manifest(root, checkpoint):
    manifest_of(root, checkpoint).write_text("{}")


def list_manifest(root, checkpoint):
    manifest_of(root, checkpoint).write_text("[1, 2]")


def flip_bit_of_state(root, checkpoint):
    path = manifest_of(root, checkpoint)
    text = path.read_text()
    assert "0.1234567890123456" in text
    path.write_text(text.replace("0.1234567890123456", "0.1234567880123456"))


ROWS = r"parts/.*-rows\.bin: "
MANIFEST = r"manifests/.*\.json: "
DAMAGE = {
    lose_file: ROWS + "is missing",
    cut_short: ROWS + r"is damaged \(9 bytes instead of 10\)",
    flip_bit: ROWS + r"is damaged \(CRC differs\)",
    break_manifest: MANIFEST + "cannot be parsed",
    empty_manifest: MANIFEST + "cannot be parsed",
    list_manifest: MANIFEST + "cannot be parsed",
    flip_bit_of_state: MANIFEST + r"is damaged \(CRC differs\)",
}


@pytest.mark.parametrize(
    ("damage", "message"), DAMAGE.items(), ids=[damage.__name__ for damage in DAMAGE]
)
def test_damage_is_detected_and_the_previous_one_used(checkpoints, root, damage, message):
    save(checkpoints, 1)
    damage(root, save(checkpoints, 2))
    later = Checkpoints(open_storage(str(root)))
    with pytest.raises(CheckpointError):
        later.load(2)
    said = []
    assert later.load_newest(said.append).step == 1
    (line,) = said
    assert re.search("^Skipping a checkpoint: .*" + message, line)


def test_all_damaged_is_an_error_with_a_remedy(checkpoints, root):
    for step in (1, 2):
        cut_short(root, save(checkpoints, step))
    said = []
    with pytest.raises(CheckpointError, match=r"all checkpoints are damaged.*with --overwrite"):
        checkpoints.load_newest(said.append)
    assert len(said) == 2


def test_retention_keeps_the_newest_and_the_pinned(checkpoints):
    for step in range(1, 7):
        save(checkpoints, step)
    checkpoints.retain(2, pinned=3)
    assert checkpoints.steps() == [3, 5, 6]
    checkpoints.retain(1, pinned=6)
    assert checkpoints.steps() == [6]
    checkpoints.retain(1, pinned=None)
    assert checkpoints.steps() == [6]


@pytest.mark.parametrize(
    ("raised", "seen", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), RunFolderError, "the disk is full"),
        (OSError(errno.EFBIG, "File too large"), RunFolderError, "larger than files may be"),
        (ModelError("no"), ModelError, "no"),
    ],
)
def test_failed_save_leaves_earlier_ones_and_nothing_of_its_own(
    checkpoints, root, raised, seen, message
):
    save(checkpoints, 1)
    before = sorted(root.rglob("*"))

    def fail(file):
        file.write(b"half")
        raise raised

    with pytest.raises(seen, match=message):
        checkpoints.save(STATE, rows=write_dense, dense=fail, num_dense=3)
    assert sorted(root.rglob("*")) == before
    assert checkpoints.load_newest(pytest.fail).step == 1
    assert save(checkpoints, 2) == checkpoints.load_newest(pytest.fail)


def test_a_disk_that_is_full_at_the_manifest_leaves_earlier_ones(checkpoints, root, monkeypatch):
    save(checkpoints, 1, b"old")
    before = sorted(root.rglob("*"))

    def full(*_names, **_more):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.link", full)
        with pytest.raises(RunFolderError, match="the disk is full"):
            save(checkpoints, 1)
    assert sorted(root.rglob("*")) == before
    assert rows_of(checkpoints.load(1)) == b"old1"


def test_checkpoint_does_not_count_as_the_newest_when_passed_over(checkpoints, root):
    save(checkpoints, 1)
    cut_short(root, save(checkpoints, 9))
    later = Checkpoints(open_storage(str(root)))
    later.go_on_from(later.load_newest(str))
    save(later, 5)
    later.retain(2, pinned=None)
    assert later.steps() == [1, 5]
    assert later.load_newest(pytest.fail).step == 5
    later.retain(1, pinned=None)
    assert Checkpoints(open_storage(str(root))).steps() == [5]


def test_the_end_of_an_epoch_is_found_whatever_came_after_it(checkpoints):
    for step, (epoch, task) in enumerate([(0, 3), (1, 0), (1, 4), (2, 0), (2, 1)]):
        place = {"epoch": epoch, "task": task, "batch": 0}
        checkpoints.save(
            STATE | {"step": step, "position": place},
            rows=write_dense,
            dense=write_dense,
            num_dense=3,
        )
    assert [checkpoints.load_epoch(epoch).step for epoch in (0, 1)] == [1, 3]
    with pytest.raises(CheckpointError, match="no readable checkpoint of the end of epoch 3"):
        checkpoints.load_epoch(2)


def test_checkpoint_only_a_job_can_resume_is_passed_over_or_refused(root):
    storage = open_storage(str(root))
    job = CommitWriter(storage)
    job.commit([], {"number": 4, "step": 40, "training": None})
    with pytest.raises(CheckpointError, match="only several processes can go on from them"):
        require_to_go_on(storage)
    assert Checkpoints(storage).load_newest(pytest.fail) is None
    assert newest_step(storage) == 40
    own = save(Checkpoints(storage), 30)
    assert own.number == 5
    CommitWriter(storage).commit([], {"number": 6, "step": 60, "training": None})
    require_to_go_on(storage)
    assert Checkpoints(storage).load_newest(pytest.fail) == own
    assert (newest_step(storage), newest_number(storage)) == (60, 6)
