"""The layer of `log`."""

from collections.abc import Sequence

import tensorflow as tf

from ctr_pipeline.preprocessing.layers.number_layer import NumberLayer
from ctr_pipeline.preprocessing.layers.raw_layer import flush_subnormal, serves
from ctr_pipeline.transforms import log as transforms


@serves(transforms.Log)
class Log(NumberLayer):
    """`log(1 + max(x, 0))`, natural.

    The value agrees with the kernel's to 1e-14 relative, and with the exact one likewise; ids are
    never computed from it.

    Example:
        >>> Log()([-1.0, 0.0, 1.0, float("nan")]).numpy()
        array([0.       , 0.       , 0.6931472,       nan], dtype=float32)
    """

    @staticmethod
    def of_rows(layers: Sequence["Log"], values: tf.Tensor) -> tf.Tensor:
        """As `NumberLayer.of_rows`."""
        del layers
        zero = tf.constant(0.0, tf.float64)
        return flush_subnormal(tf.math.log1p(tf.where(values < zero, zero, values)))
