"""Rows of ids to one vector each: `SparseEmbedding`."""

from typing import Any, Literal, get_args

import keras
import tensorflow as tf

from ctr_pipeline.preprocessing.layers.raw_layer import PACKAGE, RawLayer, as_tensor

Combiner = Literal["mean", "sum", "sqrtn"]


@keras.saving.register_keras_serializable(package=PACKAGE)
class SparseEmbedding(RawLayer):
    """The mean, sum or sum / sqrt(n) of the vectors of each row's ids; zeros for an empty row.

    Ids below 0 count as absent. The vectors are trained, and only those of a batch's ids have a
    gradient.

    Args:
        input_dim: Number of vectors; ids are in [0, input_dim).
        output_dim: Length of a vector.
        embeddings_initializer: Initializer of the vectors, as Keras names it.
        combiner: "mean", "sum" or "sqrtn".
        padding_id: Id that fills up the rows of a dense input and counts as absent there; None if
            they have none.
        options: Keyword arguments of `keras.layers.Layer`.

    Raises:
        ValueError: A dimension is below 1, the combiner is another, or, when called, the inputs
            have no rows.
        TypeError: When called: the ids are no integers.
        tf.errors.InvalidArgumentError: When called: an id is `input_dim` or more.

    Example:
        >>> layer = SparseEmbedding(10, 2, embeddings_initializer="ones", combiner="sum")
        >>> layer(tf.ragged.constant([[1, 5, 5], [], [3]])).numpy()
        array([[3., 3.],
               [0., 0.],
               [1., 1.]], dtype=float32)
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: str | keras.initializers.Initializer = "uniform",
        combiner: Combiner = "mean",
        *,
        padding_id: int | None = 0,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        for name, value in (("input_dim", input_dim), ("output_dim", output_dim)):
            if value is None or value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if combiner not in get_args(Combiner):
            raise ValueError(f"combiner must be mean, sum or sqrtn, got {combiner!r}")
        self.input_dim = int(input_dim)
        self.output_dim = int(output_dim)
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.combiner = combiner
        self.padding_id = padding_id
        # Its shape depends on no input, so that the layer never waits for one.
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.input_dim, self.output_dim),
            initializer=self.embeddings_initializer,
        )

    def call(self, inputs: Any) -> tf.Tensor:
        """One vector for each row of ids.

        Args:
            inputs: Integers, sparse, ragged or dense, [B, ids]; of a higher rank, rows are along
                the last axis.

        Returns:
            The layer's compute type, [B, output_dim].
        """
        ids = self._as_sparse(inputs)
        values = tf.cast(ids.values, tf.int64)
        # A lookup beyond the table gives zeros on some devices.
        check = tf.debugging.Assert(
            tf.reduce_all(values < self.input_dim),
            [f"ids of {self.name} must be below input_dim, {self.input_dim}; got", values],
        )
        with tf.control_dependencies([check] if check is not None else []):
            values = tf.identity(values)
        vectors = tf.nn.safe_embedding_lookup_sparse(
            self.embeddings.value, ids.with_values(values), combiner=self.combiner
        )
        return tf.cast(vectors, self.compute_dtype)

    def _as_sparse(self, inputs: Any) -> tf.SparseTensor:
        if isinstance(inputs, tf.SparseTensor):
            self._check(inputs.dtype, inputs.shape.rank)
            return inputs
        if isinstance(inputs, tf.RaggedTensor):
            self._check(inputs.dtype, inputs.shape.rank)
            return inputs.to_sparse()
        ids = as_tensor(inputs)
        self._check(ids.dtype, ids.shape.rank)
        if self.padding_id is None:
            return tf.sparse.from_dense(tf.ones_like(ids)).with_values(tf.reshape(ids, [-1]))
        places = tf.where(tf.not_equal(ids, tf.constant(self.padding_id, ids.dtype)))
        return tf.SparseTensor(places, tf.gather_nd(ids, places), tf.shape(ids, out_type=tf.int64))

    def _check(self, dtype: tf.DType, rank: int | None) -> None:
        if not dtype.is_integer:
            raise TypeError(f"expects ids, which are integers, got {dtype.name}")
        if rank is not None and rank < 2:
            raise ValueError(f"expects rows of ids, [batch, ids], got rank {rank}")

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """[B, output_dim]."""
        return (*input_shape[:-1], self.output_dim)

    def compute_output_spec(self, inputs: keras.KerasTensor) -> keras.KerasTensor:
        """[B, output_dim] of the layer's compute type."""
        self._check(tf.as_dtype(inputs.dtype), len(inputs.shape))
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "input_dim": self.input_dim,
            "output_dim": self.output_dim,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
            "combiner": self.combiner,
            "padding_id": self.padding_id,
        }
