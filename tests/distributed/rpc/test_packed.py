from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.distributed.coordination.codec import MalformedMessage
from ctr_pipeline.distributed.coordination.rounds import BatchId
from ctr_pipeline.distributed.rpc.packed import (
    DenseReply,
    DenseRequest,
    PullReply,
    PullRequest,
    PushReply,
    PushRequest,
    Status,
)

COUNTS = st.integers(0, 2**62)
SIZES = st.integers(0, 9)
STATUSES = st.sampled_from(list(Status))


def floats(*shape):
    rng = np.random.default_rng(sum(shape))
    values = rng.standard_normal(shape).astype(np.float32)
    values.reshape(-1)[:1] = np.nan
    return values


def keys(size):
    return np.random.default_rng(size).integers(0, 2**62, size)


@st.composite
def batch_ids(draw):
    return BatchId(draw(COUNTS), draw(COUNTS), draw(COUNTS), draw(st.integers(0, 63)))


@st.composite
def messages(draw):
    kind = draw(st.integers(0, 5))
    size, width, num_dense = draw(SIZES), draw(st.integers(0, 5)), draw(SIZES)
    if kind == 0:
        return PullRequest(
            generation=draw(COUNTS),
            batch=draw(st.none() | batch_ids()),
            worker=draw(st.integers(0, 2**64 - 1)),
            create=draw(st.booleans()),
            dense_version=draw(st.none() | st.integers(-1, 2**40)),
            keys=keys(size),
        )
    if kind == 1:
        return PullReply(
            status=draw(STATUSES),
            generation=draw(COUNTS),
            version=draw(COUNTS),
            values=floats(size, width),
            dense=draw(st.none() | st.just(floats(num_dense))),
        )
    if kind == 2:
        return PushRequest(
            generation=draw(COUNTS),
            batch=draw(batch_ids()),
            worker=draw(st.integers(0, 2**64 - 1)),
            step=draw(st.integers(1, 2**40)),
            learning_rate_factor=draw(st.floats(0, 100)),
            num_examples=draw(st.integers(1, 2**31)),
            version=draw(COUNTS),
            keys=keys(size),
            num_occurrences=np.arange(size, dtype=np.int32),
            sums=floats(size, width),
            dense=floats(num_dense),
            fresh_keys=keys(draw(SIZES)),
        )
    if kind == 3:
        return PushReply(
            status=draw(STATUSES),
            generation=draw(COUNTS),
            version=draw(COUNTS),
            dense=floats(num_dense),
            fresh=floats(size, width),
        )
    if kind == 4:
        return DenseRequest(draw(COUNTS), draw(COUNTS), floats(num_dense))
    return DenseReply(draw(STATUSES), draw(COUNTS), draw(st.booleans()))


KINDS = (PullRequest, PullReply, PushRequest, PushReply, DenseRequest, DenseReply)


def assert_same(found, expected):
    for field in fields(expected):
        one, other = getattr(found, field.name), getattr(expected, field.name)
        if isinstance(other, np.ndarray):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)
        else:
            assert one == other


@given(messages())
def test_messages_arrive_as_they_were_sent(message):
    assert_same(type(message).decode(message.encode()), message)


def example_push():
    return PushRequest(
        generation=1,
        batch=BatchId(0, 2, 3, 4),
        worker=9,
        step=5,
        learning_rate_factor=0.5,
        num_examples=6,
        version=7,
        keys=keys(3),
        num_occurrences=np.arange(3, dtype=np.int32),
        sums=floats(3, 5),
        dense=floats(7),
        fresh_keys=keys(2),
    )


def test_arrays_are_aligned_views_of_the_received_bytes():
    data = example_push().encode()
    found = PushRequest.decode(data)
    received = np.frombuffer(data, np.uint8)
    for array in (found.keys, found.num_occurrences, found.sums, found.dense, found.fresh_keys):
        assert np.shares_memory(array, received)
        assert array.ctypes.data % 8 == 0


def test_the_layout_is_little_endian_and_fixed():
    # Written down by hand: what other versions of the program on other machines read.
    data = example_push().encode()
    assert data[:8] == b"CTRP\x03\x00\x00\x00"
    assert data[8:16] == (1).to_bytes(8, "little")
    assert data[16:24] == (0).to_bytes(8, "little")
    assert data[24:32] == (2).to_bytes(8, "little")
    assert len(data) == 136 + 3 * 8 + 16 + 64 + 32 + 2 * 8
    np.testing.assert_array_equal(np.frombuffer(data[136:160], "<i8"), keys(3))


@given(st.binary(max_size=400), st.sampled_from(KINDS))
def test_garbage_is_malformed(data, kind):
    with pytest.raises(MalformedMessage):
        kind.decode(data)


@given(messages(), st.data())
def test_other_lengths_are_malformed(message, data):
    sent = message.encode()
    cut = data.draw(st.integers(0, len(sent) - 1))
    with pytest.raises(MalformedMessage):
        type(message).decode(sent[:cut])
    with pytest.raises(MalformedMessage):
        type(message).decode(sent + b"\0" * data.draw(st.integers(1, 64)))


@given(messages(), st.data())
def test_a_changed_header_is_malformed_or_a_message_of_the_same_size(message, data):
    sent = bytearray(message.encode())
    place = data.draw(st.integers(0, 135))
    sent[place : place + 8] = data.draw(st.binary(min_size=8, max_size=8))
    sent = bytes(sent[: len(message.encode())])
    try:
        found = type(message).decode(sent)
    except MalformedMessage:
        return
    assert len(found.encode()) == len(sent)


@pytest.mark.parametrize("count", [2**61, 2**62, 2**63, 2**64 - 1])
def test_counts_that_would_overflow_are_malformed(count):
    sent = bytearray(example_push().encode())
    # num_keys is the first of the three counts at the end of the header.
    sent[112:120] = count.to_bytes(8, "little")
    with pytest.raises(MalformedMessage, match="announced"):
        PushRequest.decode(bytes(sent))


@pytest.mark.parametrize("count", [2**31, 2**62, 2**64 - 1])
def test_rows_without_values_cannot_be_so_many(count):
    sent = bytearray(PushReply(Status.DONE, 0, 0, floats(0), floats(0, 0)).encode())
    sent[120:128] = count.to_bytes(8, "little")
    with pytest.raises(MalformedMessage, match="announced"):
        PushReply.decode(bytes(sent))


@given(messages(), st.sampled_from(KINDS))
def test_a_message_of_another_kind_is_malformed(message, kind):
    if kind is not type(message):
        with pytest.raises(MalformedMessage, match="no "):
            kind.decode(message.encode())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("step", 0),
        ("num_examples", 0),
        ("learning_rate_factor", -1.0),
        ("learning_rate_factor", float("nan")),
        ("learning_rate_factor", float("inf")),
        ("generation", -1),
        ("batch", BatchId(0, 0, 0, 64)),
        ("batch", BatchId(-1, 0, 0, 0)),
    ],
)
def test_impossible_pushes_are_malformed(field, value):
    facts = {**vars(example_push()), field: value}
    with pytest.raises(MalformedMessage):
        PushRequest.decode(PushRequest(**facts).encode())
