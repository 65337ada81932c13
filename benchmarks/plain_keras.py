"""CTR models as Keras' own guides would build them: one `Embedding` a table, stock layers, Adam.

The widths are given, so that they are those of the other sides; everything that Keras has a default
for stays at it.
"""

from collections.abc import Sequence
from typing import Any

NAMES = ("deepfm", "wide_and_deep", "xdeepfm", "dcn", "dcnv2")


def build_plain_keras(
    name: str,
    *,
    num_tables: int,
    rows_per_table: int | Sequence[int],
    embedding_dim: int,
    hidden_units: Sequence[int],
    cross_layers: int,
    cin_layers: Sequence[int],
    seed: int,
    dropout: float = 0.0,
    embedding_l2: float = 0.0,
    learning_rate: float = 1e-3,
    watch_logloss: bool = False,
) -> Any:
    """A compiled model from int32 ids, (batch, tables), to logits, (batch, 1).

    Args:
        name: One of `NAMES`.
        num_tables: Columns of ids.
        rows_per_table: Ids of each, or of all alike.
        embedding_dim: Length of an embedding.
        hidden_units: Widths of the deep part.
        cross_layers: Cross layers of dcn and dcnv2.
        cin_layers: Feature maps of each compressed interaction layer of xdeepfm.
        seed: Of Keras' generators.
        dropout: After each layer of the deep part.
        embedding_l2: Of all embeddings and linear weights, of their sums of squares.
        learning_rate: Of Adam.
        watch_logloss: Also as a metric, `logloss`, which unlike the loss holds no regularisation.
    """
    import keras

    keras.utils.set_random_seed(seed)
    ids = keras.Input((num_tables,), dtype="int32")
    sizes = [rows_per_table] * num_tables if isinstance(rows_per_table, int) else rows_per_table
    l2 = {"embeddings_regularizer": keras.regularizers.L2(embedding_l2)} if embedding_l2 else {}
    embedded, linear = [], []
    for table, size in enumerate(sizes):
        column = ids[:, table]
        embedded.append(keras.layers.Embedding(size, embedding_dim, **l2)(column))
        linear.append(keras.layers.Embedding(size, 1, **l2)(column))
    flat = keras.layers.Concatenate()(embedded)
    deep = flat
    for units in hidden_units:
        deep = keras.layers.Dense(units, activation="relu")(deep)
        if dropout:
            deep = keras.layers.Dropout(dropout)(deep)
    if name in ("dcn", "dcnv2"):
        deep = keras.layers.Concatenate()([_crossed(flat, name, cross_layers), deep])
    parts = [*linear, keras.layers.Dense(1)(deep)]
    if name == "deepfm":
        parts.append(_factorized(keras.ops.stack(embedded, axis=1)))
    elif name == "xdeepfm":
        pooled = _compressed(keras.ops.stack(embedded, axis=1), cin_layers)
        parts.append(keras.layers.Dense(1)(pooled))
    model = keras.Model(ids, keras.layers.Add()(parts))
    logloss = keras.metrics.BinaryCrossentropy(from_logits=True, name="logloss")
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate),
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[logloss] if watch_logloss else None,
    )
    return model


def _factorized(stacked_BFD: Any) -> Any:
    """Sum of the products of all pairs of fields."""
    from keras import ops

    squared_sum = ops.square(ops.sum(stacked_BFD, axis=1))
    sum_squared = ops.sum(ops.square(stacked_BFD), axis=1)
    return 0.5 * ops.sum(squared_sum - sum_squared, axis=1, keepdims=True)


def _crossed(flat_BK: Any, name: str, num_layers: int) -> Any:
    """Cross layers: a weight an input for dcn, a matrix for dcnv2."""
    import keras

    crossed = flat_BK
    for _ in range(num_layers):
        units = 1 if name == "dcn" else flat_BK.shape[-1]
        crossed = flat_BK * keras.layers.Dense(units)(crossed) + crossed
    return crossed


def _compressed(stacked_BFD: Any, layer_sizes: Sequence[int]) -> Any:
    """Outer products of the maps with the fields, compressed, summed over the dimension."""
    import keras
    from keras import ops

    num_fields, dim = stacked_BFD.shape[1:]
    maps, pooled = stacked_BFD, []
    for size in layer_sizes:
        outer = ops.einsum("bfd,bgd->bdfg", stacked_BFD, maps)
        outer = ops.reshape(outer, (-1, dim, num_fields * maps.shape[1]))
        compressed = keras.layers.Dense(size, use_bias=False)(outer)
        maps = ops.transpose(compressed, (0, 2, 1))
        pooled.append(ops.sum(maps, axis=2))
    return keras.layers.Concatenate()(pooled)
