"""Dictionaries against Python's own, and what is read back from parts."""

import contextlib
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.dataset.dictionaries import (
    count_indices,
    encode_dictionary,
    merge_dictionaries,
    sum_indices,
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


@given(st.lists(TEXT, max_size=60), st.integers(0, 10))
def test_texts(values, offset):
    column = pa.array([None] * offset + values, pa.string()).slice(offset)
    encoded = encode_dictionary(column)
    assert encoded.dictionary.to_pylist() == list(dict.fromkeys(values))
    assert encoded.indices.null_count == 0
    assert encoded.dictionary.take(encoded.indices).to_pylist() == values
    encoded.validate(full=True)


def parts_of(values):
    return st.lists(
        st.tuples(
            st.lists(values, min_size=1, max_size=8),
            st.lists(st.one_of(st.none(), st.integers(0, 99)), max_size=20),
            st.sampled_from([pa.int8(), pa.uint16(), pa.int32(), pa.int64()]),
        ),
        min_size=1,
        max_size=4,
    )


def merged(parts, kind):
    """The dictionary that dictionaries merge to, and all rows."""
    chunks, rows = [], []
    for values, numbers, numbered in parts:
        places = [None if number is None else number % len(values) for number in numbers]
        dictionary = pa.array(values, kind, from_pandas=False)
        chunks.append(pa.DictionaryArray.from_arrays(pa.array(places, numbered), dictionary))
        rows += [None if place is None else values[place] for place in places]
    found = merge_dictionaries(chunks)
    found.validate(full=True)
    assert found.indices.null_count == 0
    return found, rows


@given(parts_of(TEXT))
def test_dictionaries_merge_to_that_of_all_rows(parts):
    found, rows = merged(parts, pa.string())
    assert found.equals(encode_dictionary(pa.array(rows, pa.string())))


@given(parts_of(NUMBER))
def test_dictionaries_of_numbers_merge_by_their_bits(parts):
    found, rows = merged(parts, pa.float64())
    assert bits_of(found.dictionary.to_pylist()) == list(dict.fromkeys(bits_of(rows)))
    assert bits_of(found.dictionary.take(found.indices).to_pylist()) == bits_of(rows)


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


def test_counts():
    random = np.random.default_rng(0)
    indices, clicks = random.integers(0, 7, 1000), random.random(1000) < 0.3
    for kind in (np.uint16, np.int32):
        num_rows, num_clicks = count_indices(indices.astype(kind), clicks, 9)
        assert num_rows.tolist() == [Counter(indices.tolist())[value] for value in range(9)]
        assert num_clicks.tolist() == [int(clicks[indices == value].sum()) for value in range(9)]


def test_sums():
    indices, clicks = np.array([3, 0, 3, 3], np.uint16), np.array([True, False, False, True])
    total, of_clicks = sum_indices(indices, clicks, np.array([0.5, 5.0, 1.25, 2.0]), 5)
    assert total.tolist() == [5.0, 0.0, 0.0, 3.75, 0.0]
    assert of_clicks.tolist() == [0.0, 0.0, 0.0, 2.5, 0.0]


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
