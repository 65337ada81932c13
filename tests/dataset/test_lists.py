"""Vectors as texts: what is refused, and that numbers survive becoming texts, bit for bit."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.dataset.bad_rows import BadRowReason
from ctr_pipeline.dataset.lists import find_bad_vectors, join_lists, join_vectors
from ctr_pipeline.features import VectorSpec
from ctr_pipeline.preprocessing.vectors import vector_numbers

LENGTH = 3
VECTOR = VectorSpec(length=LENGTH)


def test_bad_vectors_by_hand():
    texts = ["1|2|3", None, "1|2", "1|x|y", "", "1|2|nan", "-.5|+1e3|2.", "1|2|1e999", "1|2|3|?"]
    length, number = find_bad_vectors(pa.array(texts, pa.string()), VECTOR)
    assert length.reason is BadRowReason.WRONG_LENGTH
    assert length.rows.tolist() == [2, 4, 8]
    assert length.shown == ["1|2", "", "1|2|3|?"]
    assert length.notes == [f"length {n} instead of 3" for n in (2, 1, 4)]
    assert number.reason is BadRowReason.NOT_A_VECTOR
    assert number.rows.tolist() == [3, 4, 5, 7, 8]
    assert number.shown == ["x", "", "nan", "1e999", "?"]


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64(), pa.int64(), pa.int8()])
def test_lists_by_hand(kind):
    lists = [[0, 100, -3], None, [1, None, 2], [], [5, 6, 7]]
    expected = ["0|100|-3", None, "1|null|2", None, "5|6|7"]
    for array_type in (pa.list_(kind), pa.large_list(kind)):
        array = pa.array(lists, array_type)
        assert join_vectors(array, "|").to_pylist() == expected
        assert join_vectors(array.slice(1), "|").to_pylist() == expected[1:]
    fixed = pa.array([lists[0], None, lists[2], lists[4]], pa.list_(kind, LENGTH))
    assert join_vectors(fixed, "|").to_pylist() == [expected[row] for row in (0, 1, 2, 4)]
    assert join_vectors(fixed.slice(2), "|").to_pylist() == [expected[2], expected[4]]


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64(), pa.int64()])
def test_elements_that_became_floats_are_the_whole_numbers_they_were(kind):
    texts, faults = join_lists(pa.array([[7, None, -0.0], None, [], [1084]], pa.list_(kind)), "|")
    assert texts.to_pylist() == ["7|0", None, None, "1084"]
    assert not any(len(fault.rows) for fault in faults)


def test_fractions_are_no_elements():
    lists = pa.array([[1.0], [7, 0.5, 2.5], [float("nan")], [float("inf")]]).slice(1)
    texts, (fraction, inside) = join_lists(lists, "|")
    assert texts.to_pylist() == ["7", None, None]
    assert fraction.reason is BadRowReason.FLOAT_AS_TEXT
    assert (fraction.rows.tolist(), fraction.shown) == ([0, 2], ["0.5", "inf"])
    assert not len(inside.rows)


WIDTHS = {pa.float32(): 32, pa.float64(): 64}


@given(
    kind=st.sampled_from([pa.float32(), pa.float64()]),
    rows=st.lists(st.lists(st.integers(0, 2**64 - 1), min_size=LENGTH, max_size=LENGTH)),
)
def test_numbers_survive_as_texts(kind, rows):
    """Of any bits, as far as they are finite; those of float32 to the last bit of a float32."""
    singles = WIDTHS[kind] == 32
    words = np.array(rows, np.uint64).reshape(-1, LENGTH)
    numbers = words.astype(np.uint32).view(np.float32) if singles else words.view(np.float64)
    array = pa.array(list(numbers), pa.list_(kind))
    texts = join_vectors(array, "|")
    _, bad = find_bad_vectors(texts, VECTOR)
    is_bad = ~np.isfinite(numbers).all(axis=1)
    assert bad.rows.tolist() == np.flatnonzero(is_bad).tolist()
    found, indices = vector_numbers(texts, VECTOR, column="v")
    assert indices is None
    assert np.isnan(found[is_bad]).all()
    smallest = np.finfo(np.float64).tiny
    expected = np.where(np.abs(numbers) < smallest, 0, numbers)[~is_bad]
    np.testing.assert_array_equal(found[~is_bad].astype(numbers.dtype), expected)
