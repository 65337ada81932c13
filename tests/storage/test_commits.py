"""Names of commits, and what may be deleted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.errors import CheckpointError
from ctr_pipeline.storage.commits import (
    CommitId,
    Manifest,
    Part,
    Pin,
    Seal,
    commit_id_of,
    commit_id_of_part,
    commit_ids_of,
    decode_entry,
    decode_pin,
    encode_entry,
    encode_pin,
    manifest_key,
    part_key,
    plan_seal,
    superseded,
    unneeded_parts,
)
from ctr_pipeline.storage.protocol import check_key

commit_ids = st.builds(CommitId, st.integers(0, 10**9), st.integers(0, 10**11))
small_commit_ids = st.builds(CommitId, st.integers(0, 4), st.integers(0, 4))
names = st.from_regex(r"[a-z0-9][a-z0-9.-]{0,12}", fullmatch=True)
parts = st.builds(
    Part,
    st.builds(part_key, small_commit_ids, st.from_regex("[0-9a-f]{4}", fullmatch=True), names),
    st.integers(0, 10**12),
    st.integers(0, 2**32 - 1),
)
states = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=3)
manifests = st.builds(
    Manifest, small_commit_ids, names, st.lists(parts, max_size=4).map(tuple), states
)


@given(commit_id=commit_ids, name=names)
def test_names_lead_back_to_their_slots(commit_id, name):
    assert commit_id_of(check_key(manifest_key(commit_id))) == commit_id
    key = check_key(part_key(commit_id, "0a1b", name))
    assert commit_id_of_part(key) == commit_id
    assert commit_id_of(key) is None


@given(st.lists(commit_ids, unique=True))
def test_slots_are_found_newest_first_among_other_objects(found):
    keys = [*map(manifest_key, found), "manifests/notes.txt", "parts/000001-000000000001-ab-x"]
    assert commit_ids_of(keys) == sorted(
        found, key=lambda one: (one.generation, one.number), reverse=True
    )


@given(entry=manifests | st.builds(Seal, small_commit_ids, names))
def test_entries_are_read_as_they_were_written(entry):
    assert decode_entry(entry.commit_id, encode_entry(entry), place="") == entry


@given(pin=st.builds(Pin, small_commit_ids, st.lists(names).map(tuple), st.floats(0, 1e10)))
def test_pins_are_read_as_they_were_written(pin):
    assert decode_pin(encode_pin(pin), place="") == pin


@given(manifest=manifests, data=st.data())
def test_a_byte_that_changed_is_noticed(manifest, data):
    written = bytearray(encode_entry(manifest))
    place = data.draw(st.integers(0, len(written) - 1))
    written[place] ^= data.draw(st.integers(1, 255))
    try:
        found = decode_entry(manifest.commit_id, bytes(written), place="")
    except CheckpointError:
        return
    # Only where a blank became another blank.
    assert found == manifest


def test_another_format_is_named():
    data = encode_entry(Seal(CommitId(1, 2), "w"))
    with pytest.raises(CheckpointError, match="cannot be parsed"):
        decode_entry(CommitId(1, 2), data[:-2], place="")
    with pytest.raises(CheckpointError, match=r"CRC differs"):
        decode_entry(CommitId(1, 2), data.replace(b'"version": 1', b'"version": 2'), place="")


@pytest.mark.parametrize(
    ("newest", "commit_id"),
    [
        (None, CommitId(0, 0)),
        (Seal(CommitId(0, 0), "w"), CommitId(1, 0)),
        (Manifest(CommitId(1, 4), "w", (), {}), CommitId(1, 5)),
        (Seal(CommitId(1, 5), "w"), CommitId(2, 0)),
    ],
)
def test_the_seal_lies_where_the_writer_before_commits_next(newest, commit_id):
    assert plan_seal(newest) == commit_id


@given(commit_ids=st.lists(small_commit_ids, unique=True), kept=st.frozensets(small_commit_ids))
def test_superseded_commits_are_neither_the_newest_nor_kept(commit_ids, kept):
    doomed = superseded(commit_ids, kept=kept)
    assert doomed == sorted(
        commit_id
        for commit_id in commit_ids
        if commit_id not in kept and commit_id != max(commit_ids)
    )


@given(
    named=st.sets(parts.map(lambda part: part.key)),
    others=st.lists(parts),
    before=small_commit_ids,
)
def test_parts_that_are_named_or_may_be_written_stay(named, others, before):
    present = [*sorted(named | {part.key for part in others}), "parts/notes.txt"]
    doomed = set(unneeded_parts(present, named, before=before))
    for key in present:
        commit_id = commit_id_of_part(key)
        may_go = commit_id is not None and commit_id < before and key not in named
        assert (key in doomed) == may_go
