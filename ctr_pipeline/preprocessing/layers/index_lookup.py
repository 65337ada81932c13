"""Text to positions in a vocabulary: `IndexLookup`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import keras
import numpy as np
import pyarrow as pa
import tensorflow as tf

from ctr_pipeline.kernels.fingerprint import KEY_MODULUS
from ctr_pipeline.kernels.text_ids import vocabulary_table
from ctr_pipeline.preprocessing.layers.raw_layer import (
    ElementwiseLayer,
    as_text,
    check_text,
    serves,
)
from ctr_pipeline.transforms.shared.vocabulary_files import (
    load_vocabulary,
    vocabulary_as_text,
    vocabulary_of,
)
from ctr_pipeline.transforms.vocabulary import VocabularyStep


@serves(VocabularyStep)
class IndexLookup(ElementwiseLayer):
    """The position of a text in a vocabulary of V values; others get V + Fingerprint64 % oov.

    Values are found by their key, Fingerprint64 modulo 2**63 - 1, among sorted keys that are
    weights of the layer: any byte may occur in a value, and a large vocabulary never becomes a
    constant of the graph. Integers are looked up as their decimal text.

    Args:
        vocabulary: The values in the order of their ids, or a file: one value a line, or Parquet
            with a column `value`; an Arrow array of distinct binary values is taken as it is.
        num_oov_tokens: Number of ids shared by values outside the vocabulary; 0 gives them -1.
        missing_id: Id of the empty text; None looks it up as any other.
        options: Keyword arguments of `keras.layers.Layer`.

    Raises:
        ValueError: There is no vocabulary, a value is repeated in a list, or num_oov_tokens is
            negative.
        PreprocessingError: The file cannot be read or repeats a value.

    Example:
        >>> IndexLookup(["A", "B", "C"])(tf.ragged.constant([["A", "C"], ["D"]])).to_list()
        [[0, 2], [3]]
    """

    def __init__(
        self,
        vocabulary: Sequence[str | bytes | int] | pa.Array | str | Path,
        num_oov_tokens: int = 1,
        *,
        missing_id: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if vocabulary is None:
            raise ValueError("vocabulary must be a list of values or the path of a file, got None")
        if num_oov_tokens < 0:
            raise ValueError(f"num_oov_tokens must not be negative, got {num_oov_tokens}")
        self.num_oov_tokens = int(num_oov_tokens)
        self.missing_id = missing_id
        if isinstance(vocabulary, str | Path):
            self._vocabulary = load_vocabulary(Path(vocabulary))
        elif isinstance(vocabulary, pa.Array):
            self._vocabulary = vocabulary
        else:
            self._vocabulary = vocabulary_of(vocabulary)
        table = vocabulary_table(
            self._vocabulary, source=str(vocabulary) if isinstance(vocabulary, str | Path) else None
        )
        # A key that no text has keeps an empty vocabulary searchable.
        keys = table.sorted_keys if table.size else np.array([-1], np.int64)
        ids = table.sorted_ids if table.size else np.zeros(1, np.int64)
        self._keys = self._constant_weight("keys", keys)
        self._key_ids = self._constant_weight("key_ids", ids)

    def _constant_weight(self, name: str, values: np.ndarray) -> keras.Variable:
        return self.add_weight(
            name=name,
            shape=values.shape,
            dtype="int64",
            trainable=False,
            initializer=lambda _shape, dtype: tf.convert_to_tensor(values, dtype),
        )

    def of_values(self, values: tf.Tensor) -> tf.Tensor:
        """Ids of text or integers, int64."""
        text = as_text(values)
        flat = tf.reshape(text, [-1])
        keys = tf.convert_to_tensor(self._keys)
        wanted = tf.strings.to_hash_bucket_fast(flat, KEY_MODULUS)
        positions = tf.minimum(tf.searchsorted(keys, wanted), tf.size(keys) - 1)
        found = tf.equal(tf.gather(keys, positions), wanted)
        ids = tf.where(
            found, tf.gather(tf.convert_to_tensor(self._key_ids), positions), self._oov_ids(flat)
        )
        if self.missing_id is not None:
            ids = tf.where(tf.equal(flat, ""), tf.constant(self.missing_id, tf.int64), ids)
        return tf.reshape(ids, tf.shape(text))

    @staticmethod
    def of_rows(layers: Sequence["IndexLookup"], texts_CB: tf.Tensor) -> tf.Tensor:
        """The ids of C layers, each of a row of texts, by a few operations a layer.

        Args:
            layers: All with as many ids for other texts, and all with a missing id or none.
            texts_CB: Text.

        Returns:
            int64 [C, B].
        """
        wanted_CB = tf.strings.to_hash_bucket_fast(texts_CB, KEY_MODULUS)
        # Rows stay [1, B], as the search takes them: to take them apart would be most of the graph.
        one_row = tf.constant([1, -1])
        positions_CB = tf.concat(
            [
                tf.raw_ops.LowerBound(
                    sorted_inputs=tf.reshape(layer._keys.value, one_row), values=wanted_1B
                )
                for layer, wanted_1B in zip(layers, tf.split(wanted_CB, len(layers)), strict=True)
            ],
            axis=0,
        )
        last = tf.constant([[layer._keys.shape[0] - 1] for layer in layers], tf.int32)
        positions = tf.unstack(tf.minimum(positions_CB, last), num=len(layers))
        pairs = list(zip(layers, positions, strict=True))
        keys_CB = tf.stack([tf.gather(layer._keys.value, place) for layer, place in pairs])
        ids_CB = tf.stack([tf.gather(layer._key_ids.value, place) for layer, place in pairs])
        oov = layers[0].num_oov_tokens
        if oov == 0:
            others: tf.Tensor = tf.constant(-1, tf.int64)
        else:
            sizes = tf.constant([[len(layer._vocabulary)] for layer in layers], tf.int64)
            others = sizes + tf.strings.to_hash_bucket_fast(texts_CB, oov)
        ids_CB = tf.where(tf.equal(keys_CB, wanted_CB), ids_CB, others)
        if layers[0].missing_id is None:
            return ids_CB
        missing = tf.constant([[layer.missing_id] for layer in layers], tf.int64)
        return tf.where(tf.equal(texts_CB, ""), missing, ids_CB)

    def _oov_ids(self, flat: tf.Tensor) -> tf.Tensor:
        if self.num_oov_tokens == 0:
            return tf.constant(-1, tf.int64)
        buckets = tf.strings.to_hash_bucket_fast(flat, self.num_oov_tokens)
        return len(self._vocabulary) + buckets

    def result_dtype(self, dtype: tf.DType) -> tf.DType:
        """int64."""
        check_text(dtype)
        return tf.int64

    def vocab_size(self) -> int:
        """Number of ids: V + num_oov_tokens, the missing id not counted."""
        return len(self._vocabulary) + self.num_oov_tokens

    def get_vocabulary(self) -> list[str]:
        """The values in the order of their ids."""
        return vocabulary_as_text(self._vocabulary)

    @classmethod
    def of_step(cls, step: Any, folder: Path) -> Self:
        """Makes the layer with the vocabulary of the run."""
        return cls(step.load_values(folder), step.oov_buckets, missing_id=step.missing_id)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments, the vocabulary by value."""
        return {
            **super().get_config(),
            "vocabulary": self.get_vocabulary(),
            "num_oov_tokens": self.num_oov_tokens,
            "missing_id": self.missing_id,
        }
