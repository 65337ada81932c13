"""Texts that are lists: to the ids of their elements and the coefficients that pool them.

Axes: B rows, L positions.
"""

from typing import Any

import keras
import tensorflow as tf

from ctr_pipeline.features import WEIGHT_NUMBER, SequenceSpec
from ctr_pipeline.kernels.float64 import SMALLEST_NORMAL_FLOAT32
from ctr_pipeline.kernels.numbers import NUMBER_LIMIT
from ctr_pipeline.preprocessing.layers.raw_layer import RawLayer, as_text, flush_subnormal
from ctr_pipeline.preprocessing.sequences import before_weight_pattern, value_pattern


@keras.saving.register_keras_serializable(package="ctr_pipeline")
class SequenceElements(RawLayer):
    """The first or last elements of each text as ids, and what their embeddings are multiplied by.

    A text is cut at its delimiter; elements that are empty, or whose weight is no decimal number of
    at least 0, are left out. The sum of embeddings times coefficients is their pooled embedding;
    for "max" a coefficient is 1 where an element counts.

    Args:
        element_layer: From texts to ids, such as `Hashing` or `IndexLookup`.
        padding_id: In positions that no element is in, where the coefficient is 0.
        delimiter: Between elements.
        max_length: Positions, L.
        keep: "first" or "last": which elements, if there are more.
        pooling: "mean", "sum", "sqrtn" or "max".
        weights: Whether an element may be `value:weight`; one without has weight 1.
        weight_delimiter: Before the weight; the last one in an element counts.
        options: Keyword arguments of `keras.layers.Layer`.

    Raises:
        ValueError: An option is not one of those above.

    Example:
        >>> lookup = keras.layers.StringLookup(vocabulary=["a", "b"])
        >>> layer = SequenceElements(lookup, padding_id=9, max_length=3, weights=True)
        >>> ids, coefficients = layer(tf.constant(["a:3|b", ""]))
        >>> ids.numpy()
        array([[1, 2, 9],
               [9, 9, 9]])
        >>> coefficients.numpy()
        array([[0.75, 0.25, 0.  ],
               [0.  , 0.  , 0.  ]], dtype=float32)
    """

    def __init__(
        self,
        element_layer: keras.layers.Layer,
        *,
        padding_id: int,
        delimiter: str = "|",
        max_length: int = 20,
        keep: str = "last",
        pooling: str = "mean",
        weights: bool = False,
        weight_delimiter: str = ":",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.element_layer = element_layer
        self.padding_id = int(padding_id)
        self._sequence = SequenceSpec.model_validate(
            {
                "delimiter": delimiter,
                "max_length": max_length,
                "keep": keep,
                "pooling": pooling,
                "weights": weights,
                "weight_delimiter": weight_delimiter,
            }
        )

    def call(self, inputs: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Positions of the inputs.

        Args:
            inputs: Text [B]; '' has no elements.

        Returns:
            Ids, int64 [B, L], the first element first; coefficients, float32 [B, L].
        """
        sequence = self._sequence
        elements = tf.strings.split(as_text(inputs), sep=sequence.delimiter)
        flat = elements.flat_values
        weights = tf.ones(tf.shape(flat), tf.float64)
        if sequence.weights:
            weights = _weights(flat, sequence)
            flat = tf.strings.regex_replace(flat, value_pattern(sequence), r"\1")
        counts = elements.with_flat_values(tf.not_equal(flat, "") & ~tf.math.is_nan(weights))
        most = sequence.max_length
        kept = slice(-most, None) if sequence.keep == "last" else slice(most)

        def padded(values: tf.Tensor, default: Any) -> tf.Tensor:
            ragged = tf.ragged.boolean_mask(elements.with_flat_values(values), counts)[:, kept]
            return ragged.to_tensor(default, shape=[None, most])

        texts_BL = padded(flat, "")
        weights_BL = padded(weights, tf.constant(0.0, tf.float64))
        ids_BL = tf.cast(self.element_layer(texts_BL), tf.int64)
        # An element is never empty, so an empty text is a position without one.
        is_there_BL = tf.not_equal(texts_BL, "")
        ids_BL = tf.where(is_there_BL, ids_BL, tf.constant(self.padding_id, tf.int64))
        return ids_BL, _coefficients(weights_BL, sequence.pooling)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> Any:
        """(B, L) twice."""
        shape = (input_shape[0], self._sequence.max_length)
        return shape, shape

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "element_layer": keras.saving.serialize_keras_object(self.element_layer),
            "padding_id": self.padding_id,
            **self._sequence.model_dump(),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "SequenceElements":
        """The layer of a config that `get_config` gave."""
        layer = keras.saving.deserialize_keras_object(config["element_layer"])
        return cls(**{**config, "element_layer": layer})


def _weights(elements: tf.Tensor, sequence: SequenceSpec) -> tf.Tensor:
    """float64: 1 where an element has none, NaN where it is bad."""
    value = value_pattern(sequence)
    written = tf.strings.regex_replace(elements, before_weight_pattern(sequence), "")
    is_number = tf.strings.regex_full_match(written, WEIGHT_NUMBER)
    weights = tf.strings.to_number(tf.where(is_number, written, "nan"), tf.float64)
    weights = tf.where(tf.math.is_inf(weights), tf.constant(float("nan"), tf.float64), weights)
    limited = flush_subnormal(
        tf.minimum(weights, tf.constant(NUMBER_LIMIT, tf.float64)), SMALLEST_NORMAL_FLOAT32
    )
    is_given = tf.strings.regex_full_match(elements, value)
    return tf.where(is_given, limited, tf.ones_like(weights))


def _coefficients(weights_BL: tf.Tensor, pooling: str) -> tf.Tensor:
    if pooling == "sum":
        return tf.cast(weights_BL, tf.float32)
    if pooling == "max":
        return tf.cast(weights_BL > 0.0, tf.float32)
    squares = weights_BL if pooling == "mean" else tf.square(weights_BL)
    divisors = tf.reduce_sum(squares, axis=1, keepdims=True)
    if pooling == "sqrtn":
        divisors = tf.sqrt(divisors)
    shares = weights_BL / tf.where(divisors > 0.0, divisors, tf.ones_like(divisors))
    return tf.cast(flush_subnormal(shares, SMALLEST_NORMAL_FLOAT32), tf.float32)
