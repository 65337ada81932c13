"""Text to buckets: `Hashing`."""

from typing import Any

import tensorflow as tf

from ctr_pipeline.kernels.fingerprint import KEY_MODULUS, hash_factor
from ctr_pipeline.preprocessing.layers.raw_layer import (
    ElementwiseLayer,
    as_text,
    check_text,
    serves,
)
from ctr_pipeline.transforms.hash import HashStep


@serves(HashStep)
class Hashing(ElementwiseLayer):
    """FarmHash Fingerprint64 modulo `num_bins`, as `tf.strings.to_hash_bucket_fast` gives it.

    Integers are hashed as their decimal text.

    Args:
        num_bins: Number of buckets.
        missing_id: Id of the empty text; None hashes it as any other.
        function: Which hash function; 0 is Fingerprint64 itself, others mix it before the modulo.
        options: Keyword arguments of `keras.layers.Layer`.

    Raises:
        ValueError: num_bins is below 1, or function negative.

    Example:
        >>> Hashing(num_bins=3)([["A"], ["B"], ["C"], ["D"], ["E"]]).numpy().ravel()
        array([1, 0, 1, 1, 2])
    """

    def __init__(
        self, num_bins: int, *, missing_id: int | None = None, function: int = 0, **options: Any
    ) -> None:
        super().__init__(**options)
        if num_bins < 1:
            raise ValueError(f"num_bins must be at least 1, got {num_bins}")
        if function < 0:
            raise ValueError(f"function must not be negative, got {function}")
        self.function = int(function)
        self.num_bins = int(num_bins)
        self.missing_id = missing_id

    def of_values(self, values: tf.Tensor) -> tf.Tensor:
        """Buckets of text or integers, int64."""
        text = as_text(values)
        ids = self._buckets(text)
        if self.missing_id is None:
            return ids
        return tf.where(tf.equal(text, ""), tf.constant(self.missing_id, tf.int64), ids)

    def _buckets(self, text: tf.Tensor) -> tf.Tensor:
        if self.function == 0:
            return tf.strings.to_hash_bucket_fast(text, self.num_bins)
        keys = tf.strings.to_hash_bucket_fast(text, KEY_MODULUS)
        mixed = tf.bitwise.bitwise_xor(keys, tf.bitwise.right_shift(keys, _shift(31)))
        # The product wraps; without its sign what follows never meets a negative number.
        mixed = tf.bitwise.bitwise_and(
            mixed * tf.constant(hash_factor(self.function), tf.int64),
            tf.constant(KEY_MODULUS, tf.int64),
        )
        mixed = tf.bitwise.bitwise_xor(mixed, tf.bitwise.right_shift(mixed, _shift(32)))
        return tf.math.floormod(mixed, tf.constant(self.num_bins, tf.int64))

    def result_dtype(self, dtype: tf.DType) -> tf.DType:
        """int64."""
        check_text(dtype)
        return tf.int64

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "num_bins": self.num_bins,
            "missing_id": self.missing_id,
            "function": self.function,
        }


def _shift(bits: int) -> tf.Tensor:
    return tf.constant(bits, tf.int64)
