"""Commits: all or nothing, one writer, and nothing that is read is deleted."""

import io
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.errors import CheckpointError, StorageError
from ctr_pipeline.storage.commit_log import CommitReader, CommitWriter, FencedError
from ctr_pipeline.storage.commits import CommitId
from ctr_pipeline.storage.protocol import (
    ObjectExistsError,
    ObjectMissingError,
    StorageAwayError,
    StoredObject,
)
from tests.storage.http_faults import Fault

FAR = 1e12


@dataclass
class Memory:
    """Objects in a dictionary; before each call, somebody else may act."""

    address: str = "memory"
    objects: dict = field(default_factory=dict)
    meanwhile: list = field(default_factory=list)

    def _pause(self):
        if self.meanwhile:
            act = self.meanwhile.pop(0)
            held, self.meanwhile = self.meanwhile, []
            act()
            self.meanwhile = held

    def read(self, key):
        self._pause()
        if key not in self.objects:
            raise ObjectMissingError("is not there", place=key)
        return self.objects[key]

    def read_range(self, key, start, num_bytes):
        return self.read(key)[start : start + num_bytes]

    def write(self, key, data):
        self._pause()
        self.objects[key] = data

    def open(self, key):
        return io.BytesIO(self.read(key))

    @contextmanager
    def create(self, key):
        file = io.BytesIO()
        yield file
        self.write(key, file.getvalue())

    def put_if_absent(self, key, data):
        self._pause()
        if key in self.objects:
            raise ObjectExistsError("is there already", place=key)
        self.objects[key] = data

    def list(self, folder):
        self._pause()
        return [
            StoredObject(key, len(data), "")
            for key, data in sorted(self.objects.items())
            if key.startswith(f"{folder}/")
        ]

    def delete(self, keys):
        for key in keys:
            self._pause()
            self.objects.pop(key, None)

    def delete_unfinished(self, is_abandoned):
        pass

    def stat(self, key):
        return StoredObject(key, len(self.read(key)), "")


def write_part(writer, *blocks):
    with writer.create_part("rows.bin") as file:
        file.writelines(blocks)
    return file.part


def commit(writer, text, *, carried=()):
    part = write_part(writer, text.encode(), b"!")
    return writer.commit([*carried, part], {"text": text})


def read_part(reader, part):
    reader.verify_part(part)
    with reader.open_part(part) as file:
        return file.read()


def texts_of(reader, manifest):
    return [read_part(reader, part).decode() for part in manifest.parts]


def pin_newest(reader, consumer, until=FAR):
    while (manifest := reader.newest()) is not None:
        if reader.pin(consumer, manifest, until=until):
            return manifest
    return None


def retain_newest(writer, keep):
    writer.retain(
        [commit_id for commit_id in writer.commit_ids() if writer.manifest(commit_id)][:keep]
    )


def test_a_commit_is_read_with_its_parts_and_state(storage):
    writer = CommitWriter(storage)
    reader = CommitReader(storage)
    assert reader.newest() is None
    first = commit(writer, "one")
    assert reader.newest() == first
    second = commit(writer, "two", carried=first.parts)
    found = reader.newest()
    assert (found, found.state) == (second, {"text": "two"})
    assert texts_of(reader, found) == ["one!", "two!"]


def test_parts_without_a_manifest_do_not_count_and_go(storage):
    writer = CommitWriter(storage)
    kept = commit(writer, "one")
    write_part(writer, b"lost")
    assert CommitReader(storage).newest() == kept
    successor = CommitWriter(storage)
    assert successor.newest() == kept
    successor.retain(())
    assert [one.key for one in storage.list("parts")] == [kept.parts[0].key]


def test_the_writer_that_was_replaced_commits_and_deletes_nothing(storage):
    zombie = CommitWriter(storage)
    first = commit(zombie, "one")
    master = CommitWriter(storage)
    assert master.generation == zombie.generation + 1
    with pytest.raises(FencedError, match="another process has taken over"):
        commit(zombie, "late")
    with pytest.raises(FencedError):
        zombie.retain(())
    assert CommitReader(storage).newest() == first
    second = commit(master, "two")
    with pytest.raises(FencedError):
        commit(zombie, "later")
    assert CommitReader(storage).newest() == second


def test_a_writer_that_never_committed_is_replaced_as_well(storage):
    writers = [CommitWriter(storage) for _ in range(3)]
    assert [one.generation for one in writers] == [1, 2, 3]
    for old in writers[:2]:
        with pytest.raises(FencedError):
            commit(old, "late")
    assert commit(writers[2], "one").commit_id == CommitId(3, 0)


def test_the_newest_commits_stay_and_pinned_ones_beside_them(storage):
    writer, reader = CommitWriter(storage), CommitReader(storage)
    commit(writer, "zero")
    assert pin_newest(reader, "scores").state == {"text": "zero"}
    pinned = reader.newest()
    later = [commit(writer, str(number)) for number in range(4)]
    retain_newest(writer, 2)
    assert texts_of(reader, pinned) == ["zero!"]
    assert reader.commit_ids()[:3] == [later[3].commit_id, later[2].commit_id, pinned.commit_id]
    assert {one.key for one in storage.list("parts")} == {
        part.key for one in (pinned, *later[2:]) for part in one.parts
    }
    assert pin_newest(reader, "killed", until=0.0) == later[3]
    reader.unpin("scores")
    retain_newest(writer, 2)
    assert not storage.list("pins")
    with pytest.raises(CheckpointError, match="is missing"):
        reader.verify_part(pinned.parts[0])


@pytest.mark.parametrize("calls", range(6))
def test_pinned_commit_stays_when_pinned_while_a_commit_replaces_it(calls):
    storage = Memory()
    writer, reader = CommitWriter(storage), CommitReader(storage)
    commit(writer, "one")

    def replace():
        commit(writer, "two")
        writer.retain(())

    storage.meanwhile = [*[lambda: None] * calls, replace]
    pinned = pin_newest(reader, "scores")
    assert texts_of(reader, pinned)[0] in {"one!", "two!"}
    writer.retain(())
    assert texts_of(reader, pinned)[0] in {"one!", "two!"}


@pytest.mark.parametrize("calls", range(14))
def test_pinned_commit_stays_when_pinned_while_retention_is_under_way(calls):
    storage = Memory()
    writer, reader = CommitWriter(storage), CommitReader(storage)
    one = commit(writer, "one")
    reader.newest()
    commit(writer, "two")
    lists = [[one.commit_id], *[None] * 9]
    now = reader.commit_ids
    # The consumer listed the commits before there was a second one.
    reader.commit_ids = lambda: lists.pop(0) or now()
    pinned = []
    storage.meanwhile = [
        *[lambda: None] * calls,
        lambda: pinned.append(pin_newest(reader, "scores")),
    ]
    writer.retain(())
    storage.meanwhile = []
    for manifest in pinned:
        assert texts_of(reader, manifest)[0] in {"one!", "two!"}
    writer.retain(())
    for manifest in pinned:
        assert texts_of(reader, manifest)[0] in {"one!", "two!"}


def test_parts_of_the_commit_that_is_being_written_stay(storage):
    writer = CommitWriter(storage)
    part = write_part(writer, b"new")
    writer.retain(())
    assert read_part(writer, writer.commit([part], {}).parts[0]) == b"new"


def test_a_damaged_part_is_refused(storage):
    writer = CommitWriter(storage)
    part = commit(writer, "one").parts[0]
    storage.write(part.key, b"onE!")
    with pytest.raises(CheckpointError, match="is damaged"):
        writer.verify_part(part)


def test_a_part_that_is_cut_short_is_refused_and_named(storage):
    writer = CommitWriter(storage)
    part = commit(writer, "one").parts[0]
    assert part.name == "rows.bin"
    storage.write(part.key, b"on")
    with pytest.raises(CheckpointError, match=r"-rows\.bin: is damaged \(2 bytes instead of 4\)"):
        writer.verify_part(part)


def test_parts_that_are_discarded_are_gone(storage):
    writer = CommitWriter(storage)
    kept = commit(writer, "one")
    writer.discard([write_part(writer, b"no more")])
    assert [one.key for one in storage.list("parts")] == [kept.parts[0].key]


def damage_newest(storage):
    newest = storage.list("manifests")[-1].key
    storage.write(newest, storage.read(newest)[:-3])


def test_a_damaged_commit_is_followed_and_goes(storage):
    writer = CommitWriter(storage)
    first, second = commit(writer, "one"), commit(writer, "two")
    damage_newest(storage)
    reader = CommitReader(storage)
    with pytest.raises(CheckpointError, match="cannot be parsed"):
        reader.newest()
    assert reader.manifest(first.commit_id) == first
    successor = CommitWriter(storage)
    with pytest.raises(FencedError):
        commit(writer, "late")
    third = commit(successor, "three")
    assert CommitReader(storage).newest() == third
    successor.retain([first.commit_id])
    assert {one.key for one in storage.list("parts")} == {first.parts[0].key, third.parts[0].key}
    assert second.commit_id not in reader.commit_ids()


def test_a_damaged_seal_keeps_both_generations_out(storage):
    writers = [CommitWriter(storage)]
    commit(writers[0], "one")
    writers.append(CommitWriter(storage))
    damage_newest(storage)
    newest = CommitWriter(storage)
    for old in writers:
        with pytest.raises(FencedError):
            commit(old, "late")
    assert commit(newest, "two") == CommitReader(storage).newest()


def test_a_store_that_ignores_conditions_is_refused():
    class Careless(Memory):
        def put_if_absent(self, key, data):
            self.objects[key] = data

    with pytest.raises(StorageError, match="ignores the condition of a write"):
        CommitWriter(Careless())


def test_a_store_whose_answers_are_lost_does_not_ignore_conditions():
    class Lossy(Memory):
        def put_if_absent(self, key, data):
            """As after an answer that was lost: an object of equal bytes counts as put."""
            if self.objects.get(key) != data:
                super().put_if_absent(key, data)

    storage = Lossy()
    commit(CommitWriter(storage), "one")
    assert CommitReader(storage).newest().state == {"text": "one"}


def test_a_commit_whose_answer_was_lost_is_followed_by_the_next():
    class Lossy(Memory):
        loses = False

        def put_if_absent(self, key, data):
            super().put_if_absent(key, data)
            if self.loses:
                self.loses = False
                raise StorageAwayError("away", place=key)

    storage = Lossy()
    writer = CommitWriter(storage)
    storage.loses = True
    with pytest.raises(StorageAwayError):
        commit(writer, "one")
    writer.retain(())
    assert CommitReader(storage).newest().state == {"text": "one"}
    assert commit(writer, "two").commit_id == CommitId(1, 1)
    assert CommitReader(storage).newest().state == {"text": "two"}


def test_takeover_leaves_one_writer_when_two_begin_at_once():
    storage = Memory()
    commit(CommitWriter(storage), "one")
    others = []
    storage.meanwhile = [lambda: None, lambda: None, lambda: others.append(CommitWriter(storage))]
    with pytest.raises(FencedError):
        CommitWriter(storage)
    assert commit(others[0], "two").commit_id == CommitId(2, 0)


def test_takeover_waits_for_a_commit_that_was_under_way():
    storage = Memory()
    zombie = CommitWriter(storage)
    commit(zombie, "one")
    storage.meanwhile = [lambda: None, lambda: None, lambda: commit(zombie, "two")]
    master = CommitWriter(storage)
    assert master.newest().state == {"text": "two"}
    with pytest.raises(FencedError):
        commit(zombie, "three")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["moto", "seaweedfs"])
def test_commits_go_on_through_trouble(open_store, name):
    server, storage = open_store(name)
    server.faults.trouble(
        *(Fault(method, 4, status=503) for method in ("PUT", "GET", "POST")),
        *(Fault("PUT", 1, loses_answer=True) for _ in range(3)),
        Fault("GET", 3, cuts_body=True),
    )
    writer, reader = CommitWriter(storage), CommitReader(storage)
    for number in range(6):
        commit(writer, str(number))
        retain_newest(writer, 2)
        assert texts_of(reader, reader.newest()) == [f"{number}!"]
    assert len(storage.list("parts")) == 2


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["take over", "commit", "commit", "retain", "pin", "unpin"]),
        st.integers(0, 2),
    ),
    max_size=24,
)


@given(steps=ACTIONS, between=ACTIONS)
def test_commits_are_in_order_and_read_whole_whatever_happens_at_once(steps, between):
    """Three members act; `between` are acts of the others before each call of a storage."""
    storage = Memory()
    writers, pins, committed = {}, {}, []

    def act(what, member):
        reader = CommitReader(storage)
        try:
            if what == "take over":
                writers.pop(member, None)
                writers[member] = CommitWriter(storage)
            elif what == "commit" and member in writers:
                writer = writers[member]
                base = writer.newest()
                carried = base.parts[-2:] if base else ()
                committed.append(commit(writer, f"{member}", carried=carried))
            elif what == "retain" and member in writers:
                writers[member].retain(())
            elif what == "pin":
                pins.pop(member, None)
                pins[member] = pin_newest(reader, f"reader-{member}")
            elif what == "unpin":
                pins.pop(member, None)
                reader.unpin(f"reader-{member}")
        except FencedError:
            writers.pop(member, None)

    def check():
        reader = CommitReader(storage)
        newest = reader.newest()
        assert newest == max(committed, key=lambda one: one.commit_id, default=None)
        for manifest in (newest, *pins.values()):
            if manifest is not None:
                assert all(read_part(reader, part) for part in manifest.parts)
        assert len({one.commit_id for one in committed}) == len(committed)

    queue = list(between)
    for what, member in steps:
        # One member does one thing at a time; others act before each of its calls.
        mine = []
        while queue and queue[0][1] != member and len(mine) < 4:
            mine.append(queue.pop(0))
        if queue and queue[0][1] == member:
            queue.pop(0)
        storage.meanwhile = [lambda one=one: act(*one) for one in mine]
        act(what, member)
        storage.meanwhile = []
        check()
