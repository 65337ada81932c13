"""Fingerprint64 against TensorFlow's, over every way Arrow holds text."""

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.kernels.fingerprint import KEY_MODULUS
from ctr_pipeline.kernels.text_ids import fingerprint_values, hash_ids
from tests.preprocessing.preprocessing_cases import HOSTILE_TEXTS


def tensorflow_keys(values):
    plain = [b"" if value is None else value for value in values]
    return tf.strings.to_hash_bucket_fast(tf.constant(plain, tf.string), KEY_MODULUS).numpy()


def keys(array):
    return (fingerprint_values(array) % np.uint64(KEY_MODULUS)).astype(np.int64)


def test_every_length_equals_tensorflow():
    random = np.random.default_rng(0)
    values = [random.bytes(length) for length in range(300) for _ in range(3)]
    np.testing.assert_array_equal(keys(pa.array(values, pa.binary())), tensorflow_keys(values))


@given(st.lists(st.one_of(st.none(), st.binary(max_size=200)), max_size=20))
def test_any_bytes_equal_tensorflow(values):
    expected = tensorflow_keys(values)
    np.testing.assert_array_equal(keys(pa.array(values, pa.binary())), expected)
    np.testing.assert_array_equal(keys(pa.array(values, pa.large_binary())), expected)


def test_top_bit_takes_part():
    values = [str(n) for n in range(64)]
    fingerprints = fingerprint_values(pa.array(values))
    assert (fingerprints >> np.uint64(63)).any()
    for buckets in (2, 3, 10, 1_000_003, 2**31, 2**40):
        np.testing.assert_array_equal(
            (fingerprints % np.uint64(buckets)).astype(np.int64),
            tf.strings.to_hash_bucket_fast(values, buckets).numpy(),
        )


TEXTS = [text for text in HOSTILE_TEXTS if text is None or text != b"\xff\xfe not UTF-8"]


@pytest.mark.parametrize(
    "as_stored",
    [
        lambda a: a.cast(pa.string()),
        lambda a: a.cast(pa.large_string()),
        lambda a: a.cast(pa.string()).cast(pa.string_view()),
        lambda a: a.cast(pa.string()).dictionary_encode(),
        lambda a: a.cast(pa.string()).dictionary_encode(null_encoding="encode"),
        lambda a: a.cast(pa.large_string()).dictionary_encode(),
        lambda a: pa.DictionaryArray.from_arrays(
            pa.array(range(len(a)), pa.int8()), a.cast(pa.string())
        ),
        # A dictionary larger than the batch takes another way.
        lambda a: pa.DictionaryArray.from_arrays(
            pa.array(range(len(a)), pa.int16()),
            pa.concat_arrays([a.cast(pa.string()), pa.array(["unused"] * 500)]),
        ),
    ],
)
@pytest.mark.parametrize(("start", "length"), [(0, None), (3, None), (9, 17), (5, 0)])
def test_storage_and_slices_do_not_matter(as_stored, start, length):
    array = as_stored(pa.array(TEXTS, pa.binary())).slice(start, length)
    values = TEXTS[start:][:length]
    expected = tf.strings.to_hash_bucket_fast(
        tf.constant([v or b"" for v in values], tf.string), 1009
    )
    np.testing.assert_array_equal(hash_ids(array, 1009), expected.numpy())
    missing = np.array([not value for value in values], bool)
    with_missing = hash_ids(array, 1009, missing_id=1009)
    np.testing.assert_array_equal(with_missing == 1009, missing)
    np.testing.assert_array_equal(with_missing[~missing], expected.numpy()[~missing])


def test_all_null_column():
    assert hash_ids(pa.nulls(3), 7, missing_id=7).tolist() == [7, 7, 7]
    assert hash_ids(pa.nulls(3, pa.string()), 7, missing_id=7).tolist() == [7, 7, 7]
    # Without a data buffer.
    assert hash_ids(pa.array([], pa.string()), 7).tolist() == []


def test_integers_hash_as_decimal_text():
    numbers = [0, -1, 7, 2**62]
    expected = hash_ids(pa.array([str(n) for n in numbers]), 1000)
    np.testing.assert_array_equal(hash_ids(pa.array(numbers), 1000), expected)
    encoded = pa.array(numbers).dictionary_encode()
    np.testing.assert_array_equal(hash_ids(encoded, 1000), expected)


def test_numbers_are_refused_with_the_column():
    with pytest.raises(ValueError, match="column 'price' holds double"):
        hash_ids(pa.array([1.5]), 10, column="price")


def test_writes_into_a_column_of_a_matrix():
    ids = np.full((3, 2), -7, np.int32)
    hash_ids(pa.array(["A", "B", "C"]), 3, out=ids[:, 1])
    assert ids[:, 1].tolist() == [1, 0, 1]
    assert (ids[:, 0] == -7).all()
