"""Text to buckets: `Hashing`."""

from typing import Any

import keras
import tensorflow as tf

from ctr_pipeline.preprocessing.layers.raw_layer import (
    PACKAGE,
    ElementwiseLayer,
    as_text,
    check_text,
)


@keras.saving.register_keras_serializable(package=PACKAGE)
class Hashing(ElementwiseLayer):
    """FarmHash Fingerprint64 modulo `num_bins`, as `tf.strings.to_hash_bucket_fast` gives it.

    Integers are hashed as their decimal text.

    Args:
        num_bins: Number of buckets.
        missing_id: Id of the empty text; None hashes it as any other.
        options: Of every Keras layer.

    Raises:
        ValueError: num_bins is below 1.

    Example:
        >>> Hashing(num_bins=3)([["A"], ["B"], ["C"], ["D"], ["E"]]).numpy().ravel()
        array([1, 0, 1, 1, 2])
    """

    def __init__(self, num_bins: int, *, missing_id: int | None = None, **options: Any) -> None:
        super().__init__(**options)
        if num_bins < 1:
            raise ValueError(f"num_bins must be at least 1, got {num_bins}")
        self.num_bins = int(num_bins)
        self.missing_id = missing_id

    def of_values(self, values: tf.Tensor) -> tf.Tensor:
        """Buckets of text or integers, int64."""
        text = as_text(values)
        ids = tf.strings.to_hash_bucket_fast(text, self.num_bins)
        if self.missing_id is None:
            return ids
        return tf.where(tf.equal(text, ""), tf.constant(self.missing_id, tf.int64), ids)

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
        }
