"""Text to numbers by a table: `NumberLookup`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import tensorflow as tf

from ctr_pipeline.preprocessing.layers.index_lookup import IndexLookup
from ctr_pipeline.preprocessing.layers.raw_layer import serves
from ctr_pipeline.transforms.count_encode import CountEncodeStep
from ctr_pipeline.transforms.target_encode import TargetEncodeStep


@serves(TargetEncodeStep)
@serves(CountEncodeStep)
class NumberLookup(IndexLookup):
    """The number of a text, as `count_encode` and `target_encode` give it.

    Keys and numbers are weights of the layer, so that a large table never becomes a constant of the
    graph. Integers are looked up as their decimal text.

    Args:
        vocabulary: V texts, or an Arrow array of distinct binary values.
        numbers: V numbers.
        default: The number of a text outside the vocabulary.
        missing: The number of the empty text; None: NaN, it stays missing.
        options: Keyword arguments of `keras.layers.Layer`; the result is float32 unless `dtype`
            says otherwise.

    Raises:
        ValueError: The lengths differ, or a text is repeated.

    Example:
        >>> NumberLookup(["a", "b"], [0.5, 2.0], default=-1.0)(["b", "c", ""]).numpy()
        array([ 2., -1., nan], dtype=float32)
    """

    def __init__(
        self,
        vocabulary: Sequence[str | bytes | int] | pa.Array,
        numbers: Sequence[float] | np.ndarray,
        default: float = 0.0,
        missing: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(vocabulary, missing_id=len(vocabulary) + 1, **options)
        if len(numbers) != len(vocabulary):
            raise ValueError(f"{len(vocabulary)} texts need as many numbers, got {len(numbers)}")
        self.default = float(default)
        self.missing = None if missing is None or np.isnan(missing) else float(missing)
        last = np.nan if self.missing is None else self.missing
        table = np.concatenate([np.asarray(numbers, np.float64), [self.default, last]])
        self._numbers = self.add_weight(
            name="numbers",
            shape=table.shape,
            dtype="float64",
            trainable=False,
            autocast=False,
            initializer=lambda _shape, dtype: tf.convert_to_tensor(table, dtype),
        )

    def of_values(self, values: tf.Tensor) -> tf.Tensor:
        """Numbers of text or integers, in the layer's compute type."""
        found = tf.gather(tf.convert_to_tensor(self._numbers), super().of_values(values))
        return tf.cast(found, self.compute_dtype)

    def result_dtype(self, dtype: tf.DType) -> tf.DType:
        """The layer's compute type."""
        super().result_dtype(dtype)
        return tf.as_dtype(self.compute_dtype)

    @classmethod
    def of_step(cls, step: Any, folder: Path) -> Self:
        """Makes the layer with the table of the run."""
        table = step.open_table(folder)
        return cls(
            table.values, table.numbers[:-2], table.numbers[-2], table.numbers[-1], dtype="float64"
        )

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments, texts and numbers by value."""
        config = super().get_config()
        del config["num_oov_tokens"], config["missing_id"]
        return {
            **config,
            "numbers": self._numbers.numpy()[:-2].tolist(),
            "default": self.default,
            "missing": self.missing,
        }
