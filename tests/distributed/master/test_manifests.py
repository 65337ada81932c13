import json
import resource
import signal
import zlib
from dataclasses import replace

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

FROZEN = {"closed": [0], "over": [], "tasks": [[0, 3]]}
BITMAPS = (TaskBitmap(epoch=1, task=3, mask=2**64 - 1),)


def write(folder, name, content=b"rows of it"):
    (folder / name).write_bytes(content)
    return len(content), zlib.crc32(content)


def rows_file(folder, partition, kind, cut, content=b"rows of it"):
    name = rows_name(partition, kind, cut)
    return CutFile(name, *write(folder, name, content), 10, partition, kind, 0)


def dense_file(folder, first, cut):
    name = dense_name(first, cut)
    return CutFile(name, *write(folder, name, b"dense"), 5, -1, "dense", first)


def facts(cut, parent=0, **changes):
    known = CutFacts(cut, parent, 2, "job-1", "config", "rows", "plan", 4, 2, 1, 640, 0, 1000.5)
    return replace(known, **changes)


def take(folder, cut, parent=None, kind="base", partitions=range(4)):
    """A cut of two servers as they would write it."""
    replies = [
        SnapshotReply(
            "",
            (
                *(rows_file(folder, p, kind, cut) for p in partitions if p % 2 == server),
                dense_file(folder, 5 * server, cut),
            ),
            BITMAPS,
            7,
            0.0,
        )
        for server in range(2)
    ]
    known = facts(cut, parent.facts.cut if parent else 0)
    files = chain_files(known, parent, replies, FROZEN)
    return CutManifest(known, files, FROZEN, ({"epoch": 0, "auc": 0.7},))


def names(manifest):
    return {file.name for file in manifest.files.all_files()}


def test_a_saved_cut_is_read_as_it_was(tmp_path):
    folder = Cuts(CutStorage.at(tmp_path), "job-1")
    first = take(tmp_path, 1)
    folder.save(first)
    assert folder.load(1) == first
    folder.check_files(first, read=True)
    assert folder.sound(read=True) == ([first], [])


def test_nan_in_the_history_survives(tmp_path):
    folder = Cuts(CutStorage.at(tmp_path), "job-1")
    folder.save(replace(take(tmp_path, 1), history=({"valid_auc": float("nan")},)))
    (record,) = folder.load(1).history
    assert record["valid_auc"] != record["valid_auc"]


def test_a_delta_extends_the_chain_of_its_partition_only(tmp_path):
    first = take(tmp_path, 1)
    second = take(tmp_path, 2, first, "delta", partitions=[1, 2])
    third = take(tmp_path, 3, second, "delta", partitions=[2])
    chains = {entry.partition: [f.name for f in entry.files] for entry in third.files.partitions}
    assert chains == {
        0: [rows_name(0, "base", 1)],
        1: [rows_name(1, "base", 1), rows_name(1, "delta", 2)],
        2: [rows_name(2, "base", 1), rows_name(2, "delta", 2), rows_name(2, "delta", 3)],
        3: [rows_name(3, "base", 1)],
    }
    assert [entry.bitmaps_of for entry in third.files.partitions] == [0, 1, 0, 1]
    assert [file.name for file in third.files.dense] == [dense_name(0, 3), dense_name(5, 3)]
    assert third.files.bitmaps == (BITMAPS, BITMAPS)


def test_a_base_begins_a_chain_anew(tmp_path):
    first = take(tmp_path, 1)
    second = take(tmp_path, 2, first, "base", partitions=[1])
    assert names(second) & {rows_name(1, "base", 1), rows_name(1, "base", 2)} == {
        rows_name(1, "base", 2)
    }


def test_a_delta_without_a_base_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="follows no base"):
        take(tmp_path, 1, kind="delta")


def test_a_partition_of_another_server_is_refused(tmp_path):
    reply = SnapshotReply("", (rows_file(tmp_path, 1, "base", 1),), (), 0, 0.0)
    with pytest.raises(CheckpointError, match="server 0 wrote partition 1"):
        chain_files(facts(1), None, [reply, SnapshotReply("", (), (), 0, 0.0)], FROZEN)


def test_a_restore_names_all_files_and_marks(tmp_path):
    first = take(tmp_path, 1)
    request = first.restore_request(generation=9, placement=None)
    assert (request.generation, request.cut) == (9, 1)
    assert (request.partitions, request.dense) == (first.files.partitions, first.files.dense)
    assert request.bitmaps == (BITMAPS, BITMAPS)


@pytest.mark.parametrize("part", ["facts", "files", "frozen", "history"])
def test_a_changed_manifest_is_found(tmp_path, part):
    folder = Cuts(CutStorage.at(tmp_path), "job-1")
    folder.save(take(tmp_path, 1))
    path = tmp_path / "cut-000001.json"
    document = json.loads(path.read_text())
    document["body"][part] = {"other": 1}
    path.write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match=r"cut-000001\.json: is damaged"):
        folder.load(1)


def test_any_flipped_byte_of_a_manifest_is_found(tmp_path):
    folder = Cuts(CutStorage.at(tmp_path), "job-1")
    saved = take(tmp_path, 1)
    folder.save(saved)
    path = tmp_path / "cut-000001.json"
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(CheckpointError):
            folder.load(1)


def test_any_truncated_manifest_is_found(tmp_path):
    folder = Cuts(CutStorage.at(tmp_path), "job-1")
    folder.save(take(tmp_path, 1))
    path = tmp_path / "cut-000001.json"
    whole = path.read_bytes()
    for size in range(0, len(whole), 101):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError):
            folder.load(1)


def test_another_format_is_named(tmp_path):
    folder = Cuts(CutStorage.at(tmp_path), "job-1")
    folder.save(take(tmp_path, 1))
    path = tmp_path / "cut-000001.json"
    document = json.loads(path.read_text()) | {"format": 99}
    path.write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match="format 99, and this program knows format 1"):
        folder.load(1)


def test_a_cut_of_another_job_is_refused(tmp_path):
    Cuts(CutStorage.at(tmp_path), "job-1").save(take(tmp_path, 1))
    with pytest.raises(CheckpointError, match="job 'job-1', not to 'job-2'"):
        Cuts(CutStorage.at(tmp_path), "job-2").load(1)
    assert Cuts(CutStorage.at(tmp_path), None).load(1).facts.job == "job-1"


def test_a_cut_is_committed_once(tmp_path):
    cuts = Cuts(CutStorage.at(tmp_path), "job-1")
    first = take(tmp_path, 1)
    cuts.save(first)
    other = replace(first, facts=facts(1, generation=9))
    with pytest.raises(CheckpointError, match=r"cut-000001\.json: another master has committed it"):
        Cuts(CutStorage.at(tmp_path), "job-1").save(other)
    assert cuts.load(1) == first


def test_a_manifest_under_another_cuts_name_is_refused(tmp_path):
    folder = Cuts(CutStorage.at(tmp_path), "job-1")
    folder.save(take(tmp_path, 1))
    (tmp_path / "cut-000001.json").rename(tmp_path / "cut-000002.json")
    with pytest.raises(CheckpointError, match="manifest of checkpoint 1"):
        folder.load(2)


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
    tmp_path, damage, read, said
):
    folder = Cuts(CutStorage.at(tmp_path), "job-1")
    first = take(tmp_path, 1)
    second = take(tmp_path, 2, first, "delta", partitions=[2])
    for manifest in (first, second):
        folder.save(manifest)
    damage(tmp_path / rows_name(2, "delta", 2))
    whole, reasons = folder.sound(read=read)
    assert whole == [first]
    (reason,) = reasons
    assert reason.startswith("checkpoint 2: ")
    assert rows_name(2, "delta", 2) in reason
    assert said in reason


def test_damage_of_a_shared_base_is_damage_of_both_cuts(tmp_path):
    folder = Cuts(CutStorage.at(tmp_path), "job-1")
    first = take(tmp_path, 1)
    folder.save(first)
    folder.save(take(tmp_path, 2, first, "delta"))
    (tmp_path / rows_name(3, "base", 1)).unlink()
    whole, reasons = folder.sound()
    assert whole == []
    assert [reason[:12] for reason in reasons] == ["checkpoint 2", "checkpoint 1"]


def test_files_that_no_kept_cut_needs_are_deleted(tmp_path):
    folder = Cuts(CutStorage.at(tmp_path), "job-1")
    first = take(tmp_path, 1)
    second = take(tmp_path, 2, first, "delta")
    third = take(tmp_path, 3, second, "base")
    fourth = take(tmp_path, 4, third, "delta", partitions=[0])
    for manifest in (first, second, third, fourth):
        folder.save(manifest)
    (tmp_path / "notes.txt").write_text("of the user")
    folder.keep_only([2, 4])
    assert folder.numbers() == [4, 2]
    present = {path.name for path in tmp_path.iterdir()}
    assert present == names(second) | names(fourth) | {
        "cut-000002.json",
        "cut-000004.json",
        "notes.txt",
    }
    assert folder.sound(read=True) == ([fourth, second], [])


def test_what_a_failed_cut_left_is_deleted_and_what_is_being_written_is_not(tmp_path):
    folder = Cuts(CutStorage.at(tmp_path), "job-1")
    first = take(tmp_path, 1)
    folder.save(first)
    rows_file(tmp_path, 0, "delta", 2)  # of cut 2, which failed
    (tmp_path / f".{rows_name(1, 'delta', 2)}.4711.tmp").write_bytes(b"half")
    third = take(tmp_path, 3, first, "delta")
    folder.save(third)
    rows_file(tmp_path, 0, "delta", 4)  # of the next cut
    (tmp_path / f".{rows_name(1, 'delta', 4)}.4711.tmp").write_bytes(b"half")
    folder.keep_only([1, 3])
    present = {path.name for path in tmp_path.iterdir()}
    assert rows_name(0, "delta", 2) not in present
    assert f".{rows_name(1, 'delta', 2)}.4711.tmp" not in present
    assert rows_name(0, "delta", 4) in present
    assert f".{rows_name(1, 'delta', 4)}.4711.tmp" in present


def test_a_kept_manifest_that_is_damaged_is_given_up_and_the_cut_before_it_stays(tmp_path):
    folder = Cuts(CutStorage.at(tmp_path), "job-1")
    first = take(tmp_path, 1)
    second = take(tmp_path, 2, first, "base")
    folder.save(first)
    folder.save(second)
    (tmp_path / "cut-000002.json").write_text("{broken")
    assert list(folder.keep_only([2])) == [2]
    assert names(first) <= {path.name for path in tmp_path.iterdir()}
    assert folder.load(1) == first


def test_nothing_to_keep_deletes_nothing(tmp_path):
    folder = Cuts(CutStorage.at(tmp_path), "job-1")
    folder.save(take(tmp_path, 1))
    folder.keep_only([])
    assert folder.numbers() == [1]


def test_a_full_disk_leaves_the_cut_before_as_it_was(tmp_path):
    folder = Cuts(CutStorage.at(tmp_path), "job-1")
    first = take(tmp_path, 1)
    folder.save(first)
    second = take(tmp_path, 2, first, "delta")
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
    assert not list(tmp_path.glob(".*.tmp"))
