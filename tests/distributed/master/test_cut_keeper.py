"""What is damage of a cut and what is only away, at real folders and scripted servers."""

import errno
import zlib
from pathlib import Path

import pytest

from ctr_pipeline.distributed.coordination.codec import encode
from ctr_pipeline.distributed.coordination.events import (
    CutContradicted,
    CutTaken,
    RestoreCut,
    RestoreDone,
    TakeCut,
)
from ctr_pipeline.distributed.coordination.messages import (
    RestoreReply,
    SnapshotReply,
    TaskBitmap,
)
from ctr_pipeline.distributed.coordination.placement import balanced_placement
from ctr_pipeline.distributed.coordination.rounds import BatchId
from ctr_pipeline.distributed.master.cuts import CutKeeper
from ctr_pipeline.distributed.master.manifests import Cuts
from ctr_pipeline.distributed.master.recovery import await_storage
from ctr_pipeline.distributed.ps.applied_batches import AppliedBatches
from ctr_pipeline.embeddings.cut_storage import CutStorage
from ctr_pipeline.embeddings.log_chain import CutFile, rows_name
from ctr_pipeline.errors import CheckpointError, StorageError
from ctr_pipeline.storage.commit_log import CommitReader, CommitWriter
from ctr_pipeline.storage.local_disk import LocalDisk
from tests.distributed.job_specs import frozen_before_training, job_spec

SPEC = job_spec(num_partitions=1)
PLACEMENT = balanced_placement(SPEC)


class Servers:
    """One server that writes what it is told to, and answers restores as the test says."""

    def __init__(self, folder):
        self._folder = folder
        self.answer = RestoreReply("", 0)
        self.snapshot_refused = None
        self.bitmaps = ()
        self.asked = None

    def call_all(self, method, addresses, request, reply, *, deadline_seconds, abandoned):
        if method == "Restore":
            return [self.answer]
        self.asked = request
        if self.snapshot_refused:
            return [self.snapshot_refused]
        name = request.prefix + rows_name(0, "base", request.cut)
        content = name.encode()
        (self._folder / name).parent.mkdir(exist_ok=True)
        (self._folder / name).write_bytes(content)
        file = CutFile(name, len(content), zlib.crc32(content), 1, 0, "base", 0)
        return [SnapshotReply("", (file,), self.bitmaps, 1, 0.0)]


class Keeping:
    def __init__(self, folder):
        CutStorage.at(folder).begin("job-1")
        self.path = folder
        self.servers = Servers(folder)
        self.begin_anew()

    def begin_anew(self):
        """Another master begins."""
        self.folder = Cuts(CutStorage.at(self.path))
        self.keeper = CutKeeper(
            SPEC, self.folder, self.servers, deadline_seconds=1.0, wall_clock=lambda: 0.0
        )

    def take(self, cut):
        action = TakeCut(cut, 1, 0, True, 0, cut, 0, frozen_before_training(cut))
        return self.keeper.take(
            action, ["s"], PLACEMENT, abandoned=lambda: False, fence=lambda: None
        )

    def restore(self, cut):
        outcome, _ = self.keeper.restore(
            RestoreCut(cut, 2), ["s"], PLACEMENT, abandoned=lambda: False
        )
        return outcome


@pytest.fixture
def keeping(tmp_path):
    found = Keeping(tmp_path / "checkpoints")
    assert [found.take(cut) for cut in (1, 2)] == [CutTaken(1), CutTaken(2)]
    return found


@pytest.mark.parametrize("leaves_a_mount_point", [True, False])
def test_cuts_of_a_volume_that_is_away_are_used_once_it_is_back(keeping, leaves_a_mount_point):
    away = keeping.path.rename(keeping.path.with_name("away"))
    if leaves_a_mount_point:
        keeping.path.mkdir()
    assert [keeping.restore(cut).cause for cut in (2, 1)] == ["storage", "storage"]
    assert keeping.take(3).of_storage
    assert keeping.keeper.keep_only((3,)) == ()
    if leaves_a_mount_point:
        keeping.path.rmdir()
    away.rename(keeping.path)
    assert isinstance(keeping.restore(2), RestoreDone)
    assert keeping.folder.numbers() == [2, 1]


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.ENOMEM, errno.ESTALE])
def test_a_manifest_that_cannot_be_read_is_no_damaged_one(keeping, monkeypatch, number):
    def fail(*_, **_more):
        raise OSError(number, "no")

    keeping.begin_anew()
    with monkeypatch.context() as broken:
        broken.setattr(Path, "open", fail)
        assert keeping.restore(2).cause == "storage"
    with monkeypatch.context() as broken:
        broken.setattr(Path, "stat", fail)
        assert keeping.restore(2).cause == "storage"
    assert isinstance(keeping.restore(2), RestoreDone)


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (RestoreReply("its checksum differs", 0, damaged=True), "damage"),
        (RestoreReply("the disk is full", 0), "storage"),
        (RestoreReply("there is room for 12 rows", 0), "storage"),
        (RestoreReply("generation 9 was announced before", 0, announced=9), "outrun"),
    ],
)
def test_a_server_says_itself_whether_a_cut_is_damaged(keeping, answer, cause):
    keeping.servers.answer = answer
    outcome = keeping.restore(2)
    assert (outcome.cause, outcome.announced) == (cause, answer.announced)


def test_a_cut_that_servers_cannot_write_for_now_is_of_storage(keeping):
    keeping.servers.snapshot_refused = SnapshotReply("full", (), (), 0, 0.0, of_storage=True)
    assert keeping.take(3).of_storage
    keeping.servers.snapshot_refused = SnapshotReply("not finite", (), (), 0, 0.0)
    assert not keeping.take(4).of_storage


@pytest.mark.parametrize("damage", ["manifest", "file", "missing file"])
def test_a_damaged_cut_is_no_cut_to_go_back_to_and_goes_with_the_next(keeping, damage):
    rows = keeping.path / keeping.folder.load(1).files.partitions[0].files[0].name
    if damage == "manifest":
        # The seal comes before.
        sorted((keeping.path / "manifests").iterdir())[1].write_text("{")
        keeping.begin_anew()
    elif damage == "file":
        rows.write_bytes(b"short")
    else:
        rows.unlink()
    assert keeping.restore(1).cause == "damage"
    assert keeping.take(3) == CutTaken(3)
    assert keeping.keeper.keep_only((3,)) == ()
    assert keeping.folder.numbers() == [3]
    assert not rows.exists()


def test_a_kept_cut_that_proves_damaged_is_told(keeping):
    (damaged,) = keeping.keeper.keep_only((2, 5))
    assert (damaged.cut, "no such checkpoint" in damaged.reason) == (5, True)
    assert keeping.folder.numbers() == [2, 1]


def test_a_cut_that_holds_less_than_was_reported_is_no_cut(keeping):
    frozen = {**frozen_before_training(3), "closed": [], "over": []}
    action = TakeCut(3, 1, 0, True, 0, 3, 0, frozen, claims=((5, 0b11),))
    outcome = keeping.keeper.take(
        action, ["s"], PLACEMENT, abandoned=lambda: False, fence=lambda: None
    )
    assert outcome == CutContradicted(3, ((5, 0b11),))
    assert keeping.folder.numbers() == [2, 1]


def test_a_cut_in_a_vast_epoch_is_as_small_as_what_is_under_way(keeping):
    done, under_way = 2_000_000, 300
    frozen = {**frozen_before_training(3), "over": [[0, done]]}
    bitmaps = tuple(TaskBitmap(0, done + task, 0b101) for task in range(under_way))
    fresh = tuple(TaskBitmap(0, done - 1 - task, 2**64 - 1) for task in range(1000))
    action = TakeCut(3, 1, 0, True, 0, 3, 0, frozen)
    keeping.servers.bitmaps = (*fresh, *bitmaps)
    assert keeping.keeper.take(
        action, ["s"], PLACEMENT, abandoned=lambda: False, fence=lambda: None
    ) == CutTaken(3)
    assert keeping.folder.load(3).files.bitmaps == (bitmaps,)
    assert max((keeping.path / "manifests").iterdir()).stat().st_size < 100 * under_way
    # The next one asks for no bitmaps of what this one has shown.
    keeping.take(4)
    assert (keeping.servers.asked.epoch, keeping.servers.asked.over) == (0, ((0, done),))
    request = keeping.folder.load(3).restore_request(7, PLACEMENT)
    assert len(encode(request)) < 100 * under_way
    applied = AppliedBatches.restored(SPEC, PLACEMENT, 0, request)
    assert applied.missing_units(BatchId(0, done + 7, 1, 1)).all()
    assert not applied.missing_units(BatchId(0, done + 7, 1, 2)).any()


def test_wait_for_storage_ends_when_storage_returns_or_patience_ends():
    waits = []

    def question():
        if len(waits) < 3:
            raise StorageError("away", place="checkpoints")
        return "here"

    assert await_storage(question, 60.0, wait=waits.append) == "here"
    assert waits == [1.0, 2.0, 4.0]

    def never():
        raise StorageError("away", place="checkpoints")

    with pytest.raises(StorageError, match="Nothing is lost"):
        await_storage(never, 60.0, wait=waits.append)
    with pytest.raises(CheckpointError):
        await_storage(keeping_damage, 60.0, wait=waits.append)


def keeping_damage():
    raise CheckpointError("damaged")


def test_a_master_whose_run_another_process_has_taken_over_commits_and_deletes_nothing(tmp_path):
    keeping = Keeping(tmp_path / "checkpoints")
    run = LocalDisk(str(tmp_path / "run"))
    first = CommitWriter(run)
    first.commit([], {})

    def require_own():
        CommitReader(run).require_newest(first.generation)

    keeping.keeper = CutKeeper(
        SPEC,
        keeping.folder,
        keeping.servers,
        deadline_seconds=1.0,
        wall_clock=lambda: 0.0,
        require_own=require_own,
    )
    assert [keeping.take(cut) for cut in (1, 2)] == [CutTaken(1), CutTaken(2)]
    second = CommitWriter(run)
    for _ in range(2):
        outcome = keeping.take(3)
        assert outcome.of_storage
        assert "another process has taken over" in outcome.reason
        assert keeping.keeper.keep_only((2,)) == ()
        assert keeping.folder.numbers() == [2, 1]
        # The seal of the first one's generation is enough, and so is a commit of the next one.
        second.commit([], {})


def test_a_pinned_cut_stays_until_its_reader_is_done_or_long_gone(keeping):
    manifest = keeping.folder.load(1)
    with keeping.folder.pinned(manifest):
        keeping.keeper.keep_only((2,))
        assert keeping.folder.numbers() == [2, 1]
        keeping.folder.check_files(manifest, read=True)
    keeping.keeper.keep_only((2,))
    assert keeping.folder.numbers() == [2]
    assert keeping.take(3) == CutTaken(3)
    left = keeping.folder.pinned(keeping.folder.load(2), clock=lambda: 0.0)
    with left:
        assert keeping.keeper.keep_only((3,)) == ()
        assert keeping.folder.numbers() == [3]
        assert not list((keeping.path / "pins").iterdir())


def test_a_cut_that_is_gone_cannot_be_pinned(keeping):
    manifest = keeping.folder.load(1)
    keeping.keeper.keep_only((2,))
    with pytest.raises(CheckpointError, match="there is no such checkpoint"):
        keeping.folder.pinned(manifest).__enter__()


def test_a_pin_that_cannot_be_read_lets_nothing_be_deleted(keeping):
    keeping.folder.storage.write("pins/serving.json", b"{")
    assert keeping.keeper.keep_only((2,)) == ()
    assert keeping.folder.numbers() == [2, 1]
