"""The compressed interaction network of xDeepFM.

Axes: B batch, D embedding dimension, F fields, G feature maps of the layer before, H feature maps
of this layer, X = F·H, P feature maps of all layers.
"""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from ctr_pipeline.training.fusion import fused


@keras.saving.register_keras_serializable(package="ctr_pipeline")
class CompressedInteraction(keras.layers.Layer):
    """`X^k_h = Σ_ij W^k_hij (X^{k-1}_i ∘ X^0_j)`, every layer's maps summed over the dimension.

    Lian et al. 2018, "xDeepFM" (arXiv:1803.05170): Eq. (6) for the feature maps, Eq. (7) for the
    sum pooling, Eq. (8) for the concatenation of all layers. The activation is the identity, which
    Section 4.3 of the paper found best, and no map is held back from the next layer.

    A layer first weighs the maps before it, for every field j, and then takes the products with
    X^0 and sums over j. The largest tensor is B·D·F·H instead of the B·D·G·F outer products of the
    paper's figure: for 39 fields and 16 maps, less than half of them in the first layer.

    Args:
        layer_sizes: Feature maps of each layer.
        seed: Seed of the Glorot uniform initial weights.
    """

    def __init__(self, layer_sizes: Sequence[int], seed: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.layer_sizes = tuple(layer_sizes)
        self.seed = seed

    def build(self, input_shape: tuple[Any, ...]) -> None:
        """Makes one kernel (G, F · H) a layer."""
        num_fields = input_shape[1]
        self.kernels = []
        num_before = num_fields
        for index, size in enumerate(self.layer_sizes):
            # Each map sums G·F products: that, not G, is the fan-in that Glorot scales by.
            limit = (6.0 / (num_before * num_fields + size)) ** 0.5
            self.kernels.append(
                self.add_weight(
                    shape=(num_before, num_fields * size),
                    initializer=keras.initializers.RandomUniform(
                        -limit, limit, seed=self.seed + index
                    ),
                    name=f"kernel_{index}",
                )
            )
            num_before = size

    def call(self, embeddings_BFD: Any) -> Any:
        """Pools the feature maps of all layers.

        Args:
            embeddings_BFD: Embeddings X^0, (batch, fields, dim).

        Returns:
            Pooled maps, (batch, sum of the layer sizes), first layer first.
        """
        # The one transposition is of the input, by far the smallest tensor here; every product
        # below then contracts the last axis.
        first_BDF = ops.transpose(embeddings_BFD, (0, 2, 1))
        maps_BDG = first_BDF
        pooled = []
        for kernel_GX in self.kernels:
            weighted_BDX = ops.matmul(maps_BDG, kernel_GX)
            maps_BDG, pooled_BH = fused(_sum_over_fields, weighted_BDX, first_BDF)
            pooled.append(pooled_BH)
        return ops.concatenate(pooled, axis=-1)

    def compute_output_shape(self, input_shape: tuple[Any, ...]) -> tuple[Any, ...]:
        """(batch, sum of the layer sizes)."""
        return (input_shape[0], sum(self.layer_sizes))

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "layer_sizes": list(self.layer_sizes),
            "seed": self.seed,
        }


def _sum_over_fields(weighted_BDX: Any, first_BDF: Any) -> tuple[Any, Any]:
    """The next layer's maps, (batch, dim, maps), and the same summed over dim."""
    dim, num_fields = first_BDF.shape[1:]
    num_maps = weighted_BDX.shape[-1] // num_fields
    weighted_BDFH = ops.reshape(weighted_BDX, (-1, dim, num_fields, num_maps))
    maps_BDH = ops.sum(weighted_BDFH * first_BDF[..., None], axis=2)
    return maps_BDH, ops.sum(maps_BDH, axis=1)
