"""Texts that are vectors, as their numbers.

Axes: B rows, L numbers of a vector.
"""

from typing import Any

import keras
import tensorflow as tf

from ctr_pipeline.features import VECTOR_NUMBER, VectorSpec
from ctr_pipeline.preprocessing.layers.raw_layer import RawLayer, as_text, flush_subnormal


@keras.saving.register_keras_serializable(package="ctr_pipeline")
class VectorNumbers(RawLayer):
    """The numbers of each text; NaN throughout where a text is no vector of that length.

    A text is cut at its delimiter. All of its elements must be finite decimal numbers, without
    blanks; '' is a missing vector.

    Args:
        length: Numbers of a vector, L.
        delimiter: Between numbers.
        options: Keyword arguments of `keras.layers.Layer`; the numbers are float64 unless `dtype`
            says otherwise.

    Raises:
        ValueError: An option is out of its range.

    Example:
        >>> layer = VectorNumbers(2)
        >>> layer(tf.constant(["0.5|-2", "1|2|3", ""])).numpy()
        array([[ 0.5, -2. ],
               [ nan,  nan],
               [ nan,  nan]])
    """

    def __init__(self, length: int, *, delimiter: str = "|", **options: Any) -> None:
        super().__init__(**{"dtype": "float64", **options})
        self._vector = VectorSpec(length=length, delimiter=delimiter)

    @property
    def length(self) -> int:
        """Numbers of a vector."""
        return self._vector.length

    def call(self, inputs: Any) -> tf.Tensor:
        """Numbers of the inputs.

        Args:
            inputs: Text [B].

        Returns:
            float64 [B, L], or of the layer's type.
        """
        length = self.length
        texts = as_text(inputs)
        elements = tf.strings.split(texts, sep=self._vector.delimiter)
        has_length = tf.equal(elements.row_lengths(), length)
        flat_BL = elements.to_tensor("nan", shape=[None, length])
        is_number = tf.strings.regex_full_match(flat_BL, VECTOR_NUMBER)
        numbers_BL = tf.strings.to_number(tf.where(is_number, flat_BL, "nan"), tf.float64)
        is_vector = has_length & tf.reduce_all(tf.math.is_finite(numbers_BL), axis=1)
        missing = tf.constant(float("nan"), tf.float64)
        numbers_BL = tf.where(is_vector[:, None], flush_subnormal(numbers_BL), missing)
        return tf.cast(numbers_BL, self.compute_dtype)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """(B, L)."""
        return (input_shape[0], self._vector.length)

    def compute_output_spec(self, inputs: keras.KerasTensor) -> keras.KerasTensor:
        """Numbers of the layer's type."""
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), **self._vector.model_dump()}
