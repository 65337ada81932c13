import resource
import signal
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from ctr_pipeline.distributed.coordination.messages import SnapshotReply, TaskBitmap
from ctr_pipeline.distributed.master.manifests import (
    CutFacts,
    CutManifest,
    Cuts,
    chain_files,
)
from ctr_pipeline.embeddings.cut_storage import CutStorage
from ctr_pipeline.embeddings.log_chain import CutFile, dense_name, rows_name
from ctr_pipeline.errors import CheckpointError, RunFolderError
from ctr_pipeline.storage.commit_log import FencedError
from ctr_pipeline.storage.commits import Part

FROZEN = {"closed": [0], "over": [], "board": None, "history": [{"epoch": 0, "auc": 0.7}]}
BITMAPS = (TaskBitmap(epoch=1, task=3, mask=2**64 - 1),)


def write(folder, prefix, name, content):
    path = folder / (prefix + name)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return prefix + name, len(content), zlib.crc32(content)


def rows_file(folder, prefix, partition, kind, cut, content=b"rows of it"):
    name = rows_name(partition, kind, cut)
    return CutFile(*write(folder, prefix, name, content), 10, partition, kind, 0)


def dense_file(folder, prefix, first, cut):
    return CutFile(*write(folder, prefix, dense_name(first, cut), b"dense"), 5, -1, "dense", first)


def name_of(file):
    """A file's name without the attempt that wrote it."""
    return Part(file.name, 0, 0).name


def facts(cut, parent=0, **changes):
    known = CutFacts(cut, parent, 2, "job-1", "config", "rows", "plan", 4, 2, 1, 640, 0, 1000.5)
    return replace(known, **changes)


def take(cuts, cut, parent=None, kind="base", partitions=range(4)):
    """A cut of two servers as they would write it."""
    folder, prefix = Path(cuts.storage.address), cuts.begin()
    replies = [
        SnapshotReply(
            "",
            (
                *(rows_file(folder, prefix, p, kind, cut) for p in partitions if p % 2 == server),
                dense_file(folder, prefix, 5 * server, cut),
            ),
            BITMAPS,
            7,
            0.0,
        )
        for server in range(2)
    ]
    known = facts(cut, parent.facts.cut if parent else 0)
    files = chain_files(known, parent, replies, FROZEN)
    return CutManifest(known, files, FROZEN, {"step": 640})


def names(manifest):
    return {file.name for file in manifest.files.all_files()}


@pytest.fixture
def folder(tmp_path):
    return Cuts(CutStorage.at(tmp_path))


def test_a_saved_cut_is_read_as_it_was(folder):
    first = take(folder, 1)
    folder.save(first)
    assert folder.load(1) == first
    folder.check_files(first, read=True)
    assert folder.sound(read=True) == ([first], [])


def test_nan_in_the_history_survives(folder):
    history = [{"valid_auc": float("nan")}]
    folder.save(replace(take(folder, 1), frozen={**FROZEN, "history": history}))
    (record,) = folder.load(1).history
    assert record["valid_auc"] != record["valid_auc"]


def test_a_delta_extends_the_chain_of_its_partition_only(folder):
    first = take(folder, 1)
    second = take(folder, 2, first, "delta", partitions=[1, 2])
    third = take(folder, 3, second, "delta", partitions=[2])
    chains = {
        entry.partition: [name_of(file) for file in entry.files] for entry in third.files.partitions
    }
    assert chains == {
        0: [rows_name(0, "base", 1)],
        1: [rows_name(1, "base", 1), rows_name(1, "delta", 2)],
        2: [rows_name(2, "base", 1), rows_name(2, "delta", 2), rows_name(2, "delta", 3)],
        3: [rows_name(3, "base", 1)],
    }
    assert [entry.bitmaps_of for entry in third.files.partitions] == [0, 1, 0, 1]
    assert [name_of(file) for file in third.files.dense] == [dense_name(0, 3), dense_name(5, 3)]
    assert third.files.bitmaps == (BITMAPS, BITMAPS)


def test_a_base_begins_a_chain_anew(folder):
    first = take(folder, 1)
    second = take(folder, 2, first, "base", partitions=[1])
    (file,) = second.files.partitions[1].files
    assert name_of(file) == rows_name(1, "base", 2)


def test_a_delta_without_a_base_is_refused(folder):
    with pytest.raises(CheckpointError, match="follows no base"):
        take(folder, 1, kind="delta")


def test_a_partition_of_another_server_is_refused(tmp_path):
    reply = SnapshotReply("", (rows_file(tmp_path, "parts/", 1, "base", 1),), (), 0, 0.0)
    with pytest.raises(CheckpointError, match="server 0 wrote partition 1"):
        chain_files(facts(1), None, [reply, SnapshotReply("", (), (), 0, 0.0)], FROZEN)


def test_a_restore_names_all_files_and_marks(folder):
    first = take(folder, 1)
    request = first.restore_request(generation=9, placement=None)
    assert (request.generation, request.cut) == (9, 1)
    assert (request.partitions, request.dense) == (first.files.partitions, first.files.dense)
    assert request.bitmaps == (BITMAPS, BITMAPS)


def newest_manifest(folder):
    return max((folder / "manifests").iterdir())


def test_a_commit_of_something_else_is_no_cut(folder):
    first = take(folder, 1)
    folder.save(first)
    folder.storage.take_over().commit([], {"number": 2, "training": None})
    with pytest.raises(CheckpointError, match=r"\.json: is no checkpoint of a job"):
        folder.load(2)
    assert folder.sound()[0] == [first]
    with pytest.raises(CheckpointError, match="checkpoint 3: there is no such checkpoint"):
        folder.load(3)


def test_a_master_that_another_one_has_replaced_commits_and_deletes_nothing(tmp_path):
    before, after = (Cuts(CutStorage.at(tmp_path)) for _ in range(2))
    first = take(before, 1)
    before.save(first)
    second = take(after, 2)
    after.save(second)
    with pytest.raises(FencedError, match="another process has taken over"):
        before.save(take(before, 3))
    with pytest.raises(FencedError):
        before.keep_only([1])
    assert Cuts(CutStorage.at(tmp_path)).sound(read=True) == ([second, first], [])


def cut_off(path):
    path.write_bytes(path.read_bytes()[:-1])


def flip(path):
    content = path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 0x80]) + content[1:])


@pytest.mark.parametrize(
    ("damage", "read", "said"),
    [
        (lambda path: path.unlink(), False, "is missing"),
        (cut_off, False, "has 9 bytes instead of 10"),
        (flip, True, "its checksum differs"),
    ],
)
def test_a_damaged_cut_is_passed_over_by_name_and_the_one_before_found(
    folder, tmp_path, damage, read, said
):
    first = take(folder, 1)
    folder.save(first)
    second = take(folder, 2, first, "delta", partitions=[2])
    folder.save(second)
    name = second.files.partitions[2].files[-1].name
    damage(tmp_path / name)
    whole, reasons = folder.sound(read=read)
    assert whole == [first]
    (reason,) = reasons
    assert reason.startswith("checkpoint 2: ")
    assert name in reason
    assert said in reason


def test_damage_of_a_shared_base_is_damage_of_both_cuts(folder, tmp_path):
    first = take(folder, 1)
    folder.save(first)
    folder.save(take(folder, 2, first, "delta"))
    (tmp_path / first.files.partitions[3].files[0].name).unlink()
    whole, reasons = folder.sound()
    assert whole == []
    assert [reason[:12] for reason in reasons] == ["checkpoint 2", "checkpoint 1"]


def test_files_that_no_kept_cut_needs_are_deleted(folder, tmp_path):
    taken = [take(folder, 1)]
    for cut, kind, partitions in ((2, "delta", range(4)), (3, "base", range(4)), (4, "delta", [0])):
        folder.save(taken[-1])
        taken.append(take(folder, cut, taken[-1], kind, partitions))
    _, second, _, fourth = taken
    folder.save(fourth)
    (tmp_path / "notes.txt").write_text("of the user")
    folder.keep_only([2, 4])
    assert folder.numbers() == [4, 2]
    present = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*")}
    manifests = {one for one in present if one.startswith("manifests/")}
    assert present - manifests == names(second) | names(fourth) | {"notes.txt"}
    assert folder.sound(read=True) == ([fourth, second], [])


def test_files_of_a_failed_cut_are_deleted_and_those_being_written_are_not(folder, tmp_path):
    first = take(folder, 1)
    folder.save(first)

    def write_half(cut):
        """Of two servers that write a cut, one is done."""
        prefix = folder.begin()
        half = tmp_path / f"{prefix}{rows_name(1, 'delta', cut)}"
        half = half.with_name(f".{half.name}.4711.tmp")
        half.write_bytes(b"half")
        return tmp_path / rows_file(tmp_path, prefix, 0, "delta", cut).name, half

    failed = write_half(2)
    folder.save(take(folder, 3, first, "delta"))
    being_written = write_half(4)
    folder.keep_only([1, 3])
    assert not any(path.exists() for path in failed)
    assert all(path.exists() for path in being_written)


def test_a_kept_cut_that_is_damaged_is_told_and_the_cut_before_it_stays(folder, tmp_path):
    first = take(folder, 1)
    folder.save(first)
    folder.save(take(folder, 2, first, "base"))
    assert list(folder.keep_only([2, 3])) == [3]
    newest_manifest(tmp_path).write_text("{broken")
    folder = Cuts(CutStorage.at(tmp_path))
    third = take(folder, 3, first, "base")
    folder.save(third)
    (damage,) = folder.keep_only([2]).values()
    assert "cannot be parsed" in damage
    assert folder.sound(read=True)[0] == [third, first]


def test_cuts_are_not_deleted_when_there_is_nothing_to_keep(folder, tmp_path):
    folder.save(take(folder, 1))
    folder.keep_only([])
    Cuts(CutStorage.at(tmp_path)).keep_only([2])
    assert folder.numbers() == [1]


def test_a_full_disk_leaves_the_cut_before_as_it_was(folder, tmp_path):
    first = take(folder, 1)
    folder.save(first)
    second = take(folder, 2, first, "delta")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(RunFolderError):
            folder.save(second)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert folder.sound(read=True) == ([first], [])
    assert not list(tmp_path.rglob(".*.tmp"))
