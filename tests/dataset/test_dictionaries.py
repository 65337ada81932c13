"""Dictionaries against Python's own, and what is read back from parts."""

import contextlib
from collections import Counter
from itertools import islice

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr_pipeline.dataset import dictionaries
from ctr_pipeline.dataset.dictionaries import (
    count_indices,
    encode_dictionary,
    merge_dictionaries,
)
from ctr_pipeline.dataset.parts import read_columns, write_part
from ctr_pipeline.errors import DataError

TEXT = st.one_of(
    st.none(),
    st.text(max_size=3),
    st.text(alphabet="a\0", max_size=20),
    st.sampled_from(["12345678", "123456789", "1234567\0", "1234567"]),
)
NUMBER = st.one_of(st.none(), st.floats(width=64), st.sampled_from([0.0, -0.0, 1.0]))


def bits_of(values):
    return [None if value is None else np.float64(value).tobytes() for value in values]


@settings(deadline=None)
@given(st.lists(TEXT, max_size=60), st.integers(0, 10))
def test_texts(values, offset):
    column = pa.array([None] * offset + values, pa.string()).slice(offset)
    encoded = encode_dictionary(column)
    assert encoded.dictionary.to_pylist() == list(dict.fromkeys(values))
    assert encoded.indices.null_count == 0
    assert encoded.dictionary.take(encoded.indices).to_pylist() == values
    encoded.validate(full=True)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(TEXT, min_size=1, max_size=8),
            st.lists(st.one_of(st.none(), st.integers(0, 99)), max_size=20),
            st.sampled_from([pa.int8(), pa.uint16(), pa.int32(), pa.int64()]),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_dictionaries_merge_to_that_of_all_rows(parts):
    chunks = []
    for values, numbers, kind in parts:
        rows = [None if number is None else number % len(values) for number in numbers]
        chunks.append(
            pa.DictionaryArray.from_arrays(pa.array(rows, kind), pa.array(values, pa.string()))
        )
    merged = merge_dictionaries(chunks)
    merged.validate(full=True)
    texts = pa.array([text for chunk in chunks for text in chunk.to_pylist()], pa.string())
    assert merged.equals(encode_dictionary(texts))


@settings(deadline=None)
@given(st.lists(NUMBER, max_size=60), st.integers(0, 10))
def test_numbers_are_told_apart_by_their_bits(values, offset):
    column = pa.array([None] * offset + values, pa.float64(), from_pandas=False).slice(offset)
    encoded = encode_dictionary(column)
    found = encoded.dictionary.to_pylist()
    assert bits_of(found) == list(dict.fromkeys(bits_of(values)))
    assert bits_of(encoded.dictionary.take(encoded.indices).to_pylist()) == bits_of(values)


@pytest.mark.parametrize(
    ("num_values", "kind"),
    [(511, "uint16"), (513, "uint16"), (65_536, "uint16"), (70_000, "int32")],
)
def test_many_values(num_values, kind):
    numbers = np.random.default_rng(0).permutation(np.repeat(np.arange(num_values), 2))
    for column in (
        pa.array(numbers.astype(np.float64)),
        pa.array([f"a text {n}" for n in numbers]),
    ):
        encoded = encode_dictionary(column)
        assert str(encoded.type.index_type) == kind
        assert len(encoded.dictionary) == num_values
        assert encoded.dictionary.take(encoded.indices).equals(column)


def unmix(word):
    """The inverse of the hash of eight bytes whose key is 0."""
    every = (1 << 64) - 1
    word ^= word >> 33
    for factor in (0xC4CEB9FE1A85EC53, 0xFF51AFD7ED558CCD):
        word = word * pow(factor, -1, 1 << 64) & every
        word ^= word >> 33
    return word


def num_probes(column, key):
    """How far values lie from the slots that they want, all together."""
    slots = np.zeros((4096, 2), np.uint64)
    indices, firsts = np.empty(len(column), np.int32), np.empty(len(column) + 1, np.int32)
    none, start = np.empty(0, np.bool_), dictionaries._Done(0, 0, -1)
    if pa.types.is_string(column.type):
        _, offsets, data = column.buffers()
        values = dictionaries._Texts(
            np.frombuffer(offsets, np.int32), np.frombuffer(data, np.uint8), none, key
        )
        done = dictionaries._encode_texts(values, slots, indices, firsts, start)
    else:
        values = dictionaries._Words(np.frombuffer(column.buffers()[1], np.uint64), none, key)
        done = dictionaries._encode_words(values, slots, indices, firsts, start)
    assert done.num_values == len(column)
    taken = np.flatnonzero(slots[:, 1])
    return int(((taken - slots[taken, 0].astype(np.int64)) % len(slots)).sum())


@pytest.mark.parametrize("kind", [pa.string(), pa.float64()])
def test_values_made_to_collide_do_so_for_one_key_alone(kind):
    # All want the first slot of any table of up to 65,536, if the key is 0.
    words = (unmix(n << 16) for n in range(1, 1 << 20))
    raw = (word.to_bytes(8, "little") for word in words if word)
    if kind == pa.string():
        texts = filter(bytes.isascii, raw)
        column = pa.array([text.decode() for text in islice(texts, 1500)])
    else:
        column = pa.array(np.frombuffer(b"".join(islice(raw, 1500)), np.float64))
    assert len(column) == 1500
    assert num_probes(column, np.uint64(0)) == 1499 * 1500 // 2
    for key in (0x9E3779B97F4A7C15, 0x0123456789ABCDEF, 1):
        assert num_probes(column, np.uint64(key)) < 3 * len(column)


@given(st.lists(st.one_of(st.none(), st.text(max_size=20))), st.integers(0, 2**64 - 1))
def test_the_key_of_hashes_changes_no_result(values, key):
    texts = pa.array(values, pa.string())
    numbers = pa.array([None if text is None else float(len(text)) for text in values])
    for column in (texts, numbers.cast(pa.float64())):
        expected = encode_dictionary(column, np.uint64(0))
        assert encode_dictionary(column, np.uint64(key)).equals(expected)


def test_counts():
    random = np.random.default_rng(0)
    indices, clicks = random.integers(0, 7, 1000), random.random(1000) < 0.3
    for kind in (np.uint16, np.int32):
        num_rows, num_clicks = count_indices(indices.astype(kind), clicks, 9)
        assert num_rows.tolist() == [Counter(indices.tolist())[value] for value in range(9)]
        assert num_clicks.tolist() == [int(clicks[indices == value].sum()) for value in range(9)]


@pytest.mark.parametrize("place", range(8, 4000, 97))
def test_a_damaged_part_is_told_or_harmless(tmp_path, place):
    texts = [f"value {n % 40}" for n in range(200)]
    table = pa.table({"label": pa.array([0, 1] * 100, pa.int8()), "c": texts})
    file = tmp_path / "part.arrow"
    write_part(table, file, "label")
    content = bytearray(file.read_bytes())
    content[place % len(content)] ^= 0xFF
    file.write_bytes(content)
    with contextlib.suppress(DataError):
        assert read_columns([file], ["c"]).num_rows in {0, 200}
