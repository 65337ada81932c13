"""A folder that is committed to a storage, and fetched from it on another disk."""

import pytest

from ctr_pipeline.errors import CheckpointError
from ctr_pipeline.storage.commit_log import FencedError
from ctr_pipeline.storage.commits import (
    MANIFESTS,
    PARTS,
    CommitId,
    Manifest,
    Part,
    encode_entry,
    manifest_key,
)
from ctr_pipeline.storage.folder_commits import FolderCommits, stored_address
from ctr_pipeline.storage.local_disk import LocalDisk
from ctr_pipeline.storage.protocol import StorageAwayError
from ctr_pipeline.storage.ranged_reading import open_ranges

RESTORE = "Restore the object, or start the run anew in another 'output'"


def is_cache(name):
    return name.startswith("cache/")


@pytest.fixture
def on_disk(storage, tmp_path):
    """Opens the same storage for a folder of its own, as another machine does."""

    def open_one(name, opened=storage):
        return FolderCommits(opened, tmp_path / name, left_out=is_cache, survives=is_cache)

    return open_one


def write(folder, **texts):
    for name, text in texts.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def files_in(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }


def test_another_disk_gets_the_files_of_the_newest_commit(on_disk, tmp_path):
    here = on_disk("here")
    here.begin()
    write(tmp_path / "here", a="1", b__c="2", cache__rows="left out", Köln="3")
    (tmp_path / "here/checkpoints").mkdir()
    here.commit({"over": False})
    write(tmp_path / "here", a="changed")
    (tmp_path / "here/b/c").unlink()
    here.commit({"over": True})
    there = on_disk("there")
    assert there.fetch().state["over"] is True
    assert files_in(tmp_path / "there") == {"a": "changed", "Köln": "3"}
    assert (tmp_path / "there/checkpoints").is_dir()
    assert stored_address(tmp_path / "there") == stored_address(tmp_path / "here")


def test_folder_commit_writes_and_reads_again_only_what_changed(on_disk, storage, tmp_path):
    here, there = on_disk("here"), on_disk("there")
    here.begin()
    write(tmp_path / "here", a="1", b="2")
    here.commit({})
    there.fetch()
    inode = (tmp_path / "there/a").stat().st_ino
    write(tmp_path / "here", b="3")
    here.commit({})
    assert len(storage.list(PARTS)) == 3
    here.retain()
    assert len(storage.list(PARTS)) == 2
    there.fetch()
    assert files_in(tmp_path / "there") == {"a": "1", "b": "3"}
    assert (tmp_path / "there/a").stat().st_ino == inode


def test_folder_commit_can_hold_back_files_that_grow(on_disk, tmp_path):
    here, there = on_disk("here"), on_disk("there")
    here.begin()
    write(tmp_path / "here", a="1", log="1")
    here.commit({}, holds_back=lambda name: name == "log")
    write(tmp_path / "here", a="2", log="12")
    here.commit({}, holds_back=lambda name: name == "log")
    there.fetch()
    assert files_in(tmp_path / "there") == {"a": "2", "log": "1"}


def test_a_disk_that_was_not_the_last_to_write_is_made_as_the_storage_is(on_disk, tmp_path):
    here, there = on_disk("here"), on_disk("there")
    here.begin()
    write(tmp_path / "here", a="1")
    here.commit({})
    there.begin()
    write(tmp_path / "there", a="2")
    there.commit({})
    write(tmp_path / "here", a="never committed", cache__rows="kept", new="lost")
    with pytest.raises(FencedError):
        here.commit({})
    on_disk("here").fetch()
    assert files_in(tmp_path / "here") == {"a": "2", "cache/rows": "kept"}


def test_the_disk_that_was_the_last_to_write_keeps_what_it_did_since(on_disk, tmp_path):
    here = on_disk("here")
    here.begin()
    write(tmp_path / "here", a="1")
    here.commit({})
    write(tmp_path / "here", a="since", b="since")
    again = on_disk("here")
    again.begin()
    again.commit({})
    on_disk("there").fetch()
    assert files_in(tmp_path / "there") == {"a": "since", "b": "since"}


def test_a_part_that_was_cut_short_or_changed_is_named(on_disk, storage, tmp_path):
    here = on_disk("here")
    here.begin()
    write(tmp_path / "here", a="12345")
    here.commit({})
    key = storage.list(PARTS)[0].key
    for content in (b"123", b"54321"):
        storage.write(key, content)
        with pytest.raises(CheckpointError, match=r"is not what a run wrote: \d bytes") as caught:
            on_disk("there").fetch()
        assert caught.value.place.endswith(key)
        assert not (tmp_path / "there/a").exists()
        assert caught.value.remedy == RESTORE
    storage.delete([key])
    with pytest.raises(CheckpointError, match=f"is missing.*{RESTORE}"):
        on_disk("there").fetch()


def test_a_damaged_manifest_is_named(on_disk, storage, tmp_path):
    here = on_disk("here")
    here.begin()
    here.commit({})
    newest = storage.list(MANIFESTS)[-1].key
    storage.write(newest, storage.read(newest)[:-5])
    for fetch in (on_disk("there").fetch, on_disk("third").begin):
        with pytest.raises(CheckpointError, match=f"cannot be parsed.*{RESTORE}") as caught:
            fetch()
        assert caught.value.place.endswith(newest)


class _Ranged(LocalDisk):
    """A disk read in ranges as a store is; something befalls an object once it is open."""

    def __init__(self, address, on_open):
        super().__init__(address)
        self.on_open = on_open

    def open(self, key):
        file = open_ranges(self, key)
        self.on_open(key)
        return file


@pytest.mark.parametrize(
    ("befalls", "says"),
    [
        (lambda store, key: store.write(key, b"54321"), "was written again while it was read"),
        (lambda store, key: store.delete([key]), "is missing"),
    ],
)
def test_a_part_that_changes_while_it_is_fetched_is_named(on_disk, tmp_path, befalls, says):
    here = on_disk("here", LocalDisk(str(tmp_path / "store")))
    here.begin()
    write(tmp_path / "here", a="12345")
    here.commit({})
    store = _Ranged(str(tmp_path / "store"), lambda key: befalls(store, key))
    with pytest.raises(CheckpointError, match=f"{says}.*{RESTORE}"):
        on_disk("there", store).fetch()
    assert not (tmp_path / "there/a").exists()


def test_a_part_that_a_newer_commit_has_replaced_meanwhile_is_not_missed(on_disk, tmp_path):
    here = on_disk("here", LocalDisk(str(tmp_path / "store")))
    here.begin()
    write(tmp_path / "here", a="1")
    here.commit({})

    def replace_it(_):
        if not (tmp_path / "here/b").exists():
            write(tmp_path / "here", a="22", b="new")
            here.commit({})
            here.retain()

    on_disk("there", _Ranged(str(tmp_path / "store"), replace_it)).fetch()
    assert files_in(tmp_path / "there") == {"a": "22", "b": "new"}


@pytest.mark.parametrize("name", ["../a", "/a", ".lock"])
def test_names_of_files_do_not_lead_out_of_the_folder(on_disk, storage, name):
    part = Part("parts/000001-000000000001-ab-a", 0, 0)
    manifest = Manifest(
        CommitId(1, 1), "writer", (part,), {"files": {name: part.key}, "folders": []}
    )
    storage.put_if_absent(manifest_key(manifest.commit_id), encode_entry(manifest))
    with pytest.raises(CheckpointError, match="outside of the run"):
        on_disk("there").fetch()


class _Interrupted(LocalDisk):
    """A disk that is away for some writes."""

    def __init__(self, address, times):
        super().__init__(address)
        self.times = times

    def put_if_absent(self, key, data):
        super().put_if_absent(key, data)
        if self.times:
            self.times -= 1
            raise StorageAwayError("the store does not answer", place=key)


def test_a_commit_whose_answer_was_lost_is_made_again(on_disk, tmp_path):
    store = _Interrupted(str(tmp_path / "store"), 0)
    here = on_disk("here", store)
    here.begin()
    write(tmp_path / "here", a="1")
    store.times = 1
    with pytest.raises(StorageAwayError):
        here.commit({})
    write(tmp_path / "here", a="2")
    here.commit({})
    on_disk("there", LocalDisk(store.address)).fetch()
    assert files_in(tmp_path / "there") == {"a": "2"}


def test_links_are_not_followed(on_disk, tmp_path):
    here = on_disk("here")
    here.begin()
    (tmp_path / "secret").write_text("x")
    (tmp_path / "here/link").symlink_to(tmp_path / "secret")
    here.commit({})
    on_disk("there").fetch()
    assert files_in(tmp_path / "there") == {}
