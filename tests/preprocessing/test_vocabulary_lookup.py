"""Vocabulary lookup in both faces against a Python dictionary."""

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.errors import PreprocessingError
from ctr_pipeline.kernels import text_ids as text_kernels
from ctr_pipeline.kernels.text_ids import lookup_ids, vocabulary_table
from ctr_pipeline.preprocessing import IndexLookup
from ctr_pipeline.transforms.shared.vocabulary_files import load_vocabulary, vocabulary_of


def oracle(vocabulary, values, oov_buckets):
    positions = {value: n for n, value in enumerate(vocabulary)}
    buckets = tf.strings.to_hash_bucket_fast(tf.constant(values, tf.string), oov_buckets).numpy()
    return [
        positions.get(value, len(vocabulary) + int(bucket))
        for value, bucket in zip(values, buckets, strict=True)
    ]


@given(
    st.lists(st.binary(max_size=80), unique=True, max_size=40),
    st.lists(st.binary(max_size=80), max_size=20),
    st.integers(1, 9),
)
def test_vocabulary_lookup_equals_a_dictionary_in_kernel_and_layer(vocabulary, others, oov_buckets):
    values = vocabulary + others
    expected = oracle(vocabulary, values, oov_buckets)
    table = vocabulary_table(vocabulary_of(vocabulary))
    array = pa.array(values, pa.binary())
    assert lookup_ids(array, table, oov_buckets=oov_buckets).tolist() == expected
    layer = IndexLookup(vocabulary, oov_buckets)
    assert layer(tf.constant(values, tf.string)).numpy().tolist() == expected


def test_large_vocabulary():
    vocabulary = [f"value {n}" for n in range(20_000)]
    table = vocabulary_table(pa.array(vocabulary))
    order = np.random.default_rng(0).permutation(len(vocabulary))
    ids = lookup_ids(pa.array(vocabulary).take(pa.array(order)), table)
    np.testing.assert_array_equal(ids, order)


def test_values_with_one_key_share_the_earlier_id(monkeypatch):
    monkeypatch.setattr(
        text_kernels, "fingerprint_values", lambda _: np.array([9, 5, 9], np.uint64)
    )
    table = vocabulary_table(pa.array(["x", "y", "z"]))
    assert table.size == 3
    assert table.sorted_keys.tolist() == [5, 9]
    assert table.sorted_ids.tolist() == [1, 0]


def test_files(tmp_path):
    lines = tmp_path / "words.txt"
    lines.write_text("a\né\nc d\n", encoding="utf-8")
    assert IndexLookup(str(lines)).get_vocabulary() == ["a", "é", "c d"]
    table = tmp_path / "words.parquet"
    pq.write_table(pa.table({"value": ["line\nbreak", "b"]}), table)
    assert IndexLookup(table).get_vocabulary() == ["line\nbreak", "b"]
    empty = tmp_path / "empty.parquet"
    pq.write_table(pa.table({"value": pa.array([], pa.string())}), empty)
    assert IndexLookup(empty)(["q", ""]).numpy().tolist() == [0, 0]


def test_unusable_vocabularies_are_refused(tmp_path):
    with pytest.raises(PreprocessingError, match="cannot be read"):
        load_vocabulary(tmp_path / "absent.parquet")
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 not really")
    with pytest.raises(PreprocessingError, match="cannot be read"):
        load_vocabulary(broken)
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"word": ["a"]}), other)
    with pytest.raises(PreprocessingError, match="no column 'value'"):
        load_vocabulary(other)
    twice = tmp_path / "twice.txt"
    twice.write_text("a\nb\na\n")
    with pytest.raises(PreprocessingError, match="repeats a value"):
        IndexLookup(str(twice))
    with pytest.raises(ValueError, match="repeats a value"):
        IndexLookup(["a", "a"])
    with pytest.raises(ValueError, match="num_oov_tokens"):
        IndexLookup(["a"], -1)
    with pytest.raises(ValueError, match="vocabulary must be"):
        IndexLookup(None)


def test_config_keeps_the_vocabulary_byte_for_byte(tmp_path):
    vocabulary = [b"a\n", b"\xff\xfe", "é".encode(), b"nul\x00"]
    layer = IndexLookup(vocabulary, 2, missing_id=99)
    again = IndexLookup.from_config(layer.get_config())
    values = tf.constant([*vocabulary, b"", b"other"])
    np.testing.assert_array_equal(again(values), layer(values))
    inputs = keras.Input((1,), dtype="string")
    model = keras.Model(inputs, layer(inputs))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(values[:, None]), layer(values[:, None]))


def test_vocabulary_is_no_constant_of_the_graph(tmp_path):
    layer = IndexLookup([f"v{n}" for n in range(5000)])
    inputs = keras.Input((1,), dtype="string")
    tf.saved_model.save(keras.Model(inputs, layer(inputs)), tmp_path / "model")
    assert (tmp_path / "model" / "saved_model.pb").stat().st_size < 100_000
