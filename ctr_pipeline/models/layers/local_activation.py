"""The local activation of DIN: sequences pooled by how their elements match a target.

Axes: B batch, F fields, D embedding dimension, S positions of all sequences, L positions of one,
U units.
"""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="ctr_pipeline")
class LocalActivation(keras.layers.Layer):
    """Each sequence becomes `Σ_j a(e_j, v) e_j`, the sum over its elements e_j; v is the target.

    Zhou et al. 2018, "Deep Interest Network for Click-Through Rate Prediction" (arXiv:1706.06978),
    Eq. (3): the weights a are not made to sum to 1, so that a sequence that holds much of what the
    target is like says so by its length. The activation unit a is a network with one weight as its
    result, Figure 2, over element, target, their difference and their product; the figure shows an
    outer product without its form, and the difference is the authors' code's. Its hidden units are
    PReLU (He et al. 2015, arXiv:1502.01852, Eq. 1, slopes start at 0.25), as in Section 5.2; the
    Dice of that section normalises over a batch, and here a row's score does not depend on its
    batch. The result starts at 1, which is sum pooling. Each sequence has a unit of its own.

    Args:
        target: Field of the target; no sequence.
        sequences: Positions of each sequence, L; they are the last fields, in this order.
        units: Widths of the activation unit's hidden layers.
        seed: Seed of the Glorot uniform initial weights.
    """

    def __init__(
        self,
        target: int,
        sequences: Sequence[int],
        units: Sequence[int] = (36,),
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        # Elements are weighed against each other, and bfloat16 would keep three digits of a weight.
        kwargs.setdefault("dtype", "float32")
        super().__init__(**kwargs)
        if not sequences or min(sequences) < 1:
            raise ValueError(f"sequences must have positions, received {list(sequences)}")
        if target < 0:
            raise ValueError(f"the target is a field from 0 on, received {target}")
        self.target = target
        self.sequences = tuple(sequences)
        self.units = tuple(units)
        self.seed = seed

    def build(
        self,
        embeddings_BFD_shape: tuple[Any, ...],
        elements_BSD_shape: tuple[Any, ...],
        coefficients_BS_shape: tuple[Any, ...],
    ) -> None:
        """Makes kernels, biases and slopes of each sequence's activation unit."""
        num_plain = embeddings_BFD_shape[1] - len(self.sequences)
        if self.target >= num_plain:
            raise ValueError(f"the target {self.target} is none of {num_plain} fields before")
        total = sum(self.sequences)
        if (elements_BSD_shape[1], coefficients_BS_shape[1]) != (total, total):
            raise ValueError(f"sequences of {total} positions do not fit {elements_BSD_shape[1]}")
        self.hidden, self.heads = [], []
        for place in range(len(self.sequences)):
            width, layers = 4 * embeddings_BFD_shape[2], []
            for index, units in enumerate((*self.units, 1)):
                seed = self.seed + place * (len(self.units) + 1) + index
                name = f"sequence_{place}_{index}"
                kernel = self.add_weight(
                    shape=(width, units),
                    initializer=keras.initializers.GlorotUniform(seed=seed),
                    name=f"{name}_kernel",
                )
                is_last = index == len(self.units)
                bias = self.add_weight(
                    shape=(units,), initializer="ones" if is_last else "zeros", name=f"{name}_bias"
                )
                if is_last:
                    self.heads.append((kernel, bias))
                else:
                    slope = self.add_weight(
                        shape=(units,),
                        initializer=keras.initializers.Constant(0.25),
                        name=f"{name}_slope",
                    )
                    layers.append((kernel, bias, slope))
                width = units
            self.hidden.append(layers)

    def call(self, embeddings_BFD: Any, elements_BSD: Any, coefficients_BS: Any) -> Any:
        """Pools each sequence.

        Args:
            embeddings_BFD: Fields, (batch, fields, dim); those of sequences are not read.
            elements_BSD: Elements of all sequences, (batch, positions, dim).
            coefficients_BS: 0 in positions without an element, (batch, positions).

        Returns:
            The fields, (batch, fields, dim), with sequences pooled; zeros without any element.
        """
        num_plain = embeddings_BFD.shape[1] - len(self.sequences)
        target_B1D = embeddings_BFD[:, self.target : self.target + 1]
        parts, first = [embeddings_BFD[:, :num_plain]], 0
        for place, num_positions in enumerate(self.sequences):
            elements_BLD = elements_BSD[:, first : first + num_positions]
            is_there_BL = coefficients_BS[:, first : first + num_positions] != 0
            weights_BL = self._activate(place, elements_BLD, target_B1D)
            weights_BL = ops.where(is_there_BL, weights_BL, 0.0)
            parts.append(ops.sum(elements_BLD * weights_BL[:, :, None], axis=1, keepdims=True))
            first += num_positions
        return ops.concatenate(parts, axis=1)

    def _activate(self, place: int, elements_BLD: Any, target_B1D: Any) -> Any:
        target_BLD = ops.broadcast_to(target_B1D, ops.shape(elements_BLD))
        x_BLU = ops.concatenate(
            [elements_BLD, target_BLD, elements_BLD - target_BLD, elements_BLD * target_BLD],
            axis=-1,
        )
        for kernel, bias, slope in self.hidden[place]:
            x_BLU = ops.matmul(x_BLU, kernel) + bias
            x_BLU = ops.relu(x_BLU) - slope * ops.relu(-x_BLU)
        kernel, bias = self.heads[place]
        return ops.squeeze(ops.matmul(x_BLU, kernel) + bias, axis=-1)

    def compute_output_shape(
        self,
        embeddings_BFD_shape: tuple[Any, ...],
        elements_BSD_shape: tuple[Any, ...],
        coefficients_BS_shape: tuple[Any, ...],
    ) -> tuple[Any, ...]:
        """(batch, fields, dim)."""
        del elements_BSD_shape, coefficients_BS_shape
        return embeddings_BFD_shape

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "target": self.target,
            "sequences": list(self.sequences),
            "units": list(self.units),
            "seed": self.seed,
        }
