"""The three inputs that all models share, and two more of those that look into sequences.

Axes: B batch, F fields, D embedding dimension, N numbers, K = F·D + N, S positions of all
sequences.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import keras

from ctr_pipeline.models.layers.field_projection import FieldProjection
from ctr_pipeline.models.seeds import derive_seeds

_PROJECTION_PLACE = 63
"""Among the seeds of a model, beyond those of its layers."""


@dataclass(frozen=True)
class ModelSignature:
    """The sizes that a model is built for.

    Attributes:
        num_fields: Embedded fields, F; may be 0.
        embedding_dim: Length of an embedding, D.
        num_numbers: Dense inputs, N; may be 0.
        base_rate: Click rate of the training rows, in the open interval (0, 1).
        sequences: Positions of each sequence, which are the last fields; empty where there are
            none, or the model takes them pooled.
        target: The field that their elements are held against; None without sequences.
        field_dims: Length of each field's embedding, at most D, where they differ; a shorter one is
            padded with zeros, and projected to D before the model sees it. None: all have D.
    """

    num_fields: int
    embedding_dim: int
    num_numbers: int
    base_rate: float
    sequences: tuple[int, ...] = ()
    target: int | None = None
    field_dims: tuple[int, ...] | None = None

    @property
    def base_logit(self) -> float:
        """The logit of the base rate: the score of a model that knows nothing else."""
        return math.log(self.base_rate) - math.log1p(-self.base_rate)


@dataclass(frozen=True)
class ModelInputs:
    """Named symbolic inputs, float32.

    Attributes:
        signature: The sizes.
        rows_BFD: Input "embeddings", (batch, fields, dim): the row of each field's id.
        embeddings_BFD: The same, shorter ones projected to dim.
        linear_BF: Input "linear", (batch, fields): the linear weight of each field's id.
        numbers_BN: Input "numbers", (batch, numbers).
        elements_BSD: Input "elements", (batch, positions, dim): the row of each element; None
            without.
        coefficients_BS: Input "coefficients", (batch, positions): 0 where there is no element.
    """

    signature: ModelSignature
    rows_BFD: Any
    embeddings_BFD: Any
    linear_BF: Any
    numbers_BN: Any

    elements_BSD: Any = None
    coefficients_BS: Any = None

    @cached_property
    def flat_BK(self) -> Any:  # noqa: N802 - the suffix names the axes
        """Flattened embeddings, then numbers: (batch, fields · dim + numbers)."""
        return self.flatten(self.embeddings_BFD)

    def flatten(self, fields_BFD: Any) -> Any:
        """Flattened fields, then numbers: (batch, fields · dim + numbers)."""
        parts = []
        if self.signature.num_fields:
            parts.append(keras.layers.Flatten(name="flat_embeddings")(fields_BFD))
        if self.signature.num_numbers:
            parts.append(self.numbers_BN)
        if len(parts) == 1:
            return parts[0]
        return keras.layers.Concatenate(name="flat")(parts)

    def as_dict(self) -> dict[str, Any]:
        """The inputs as a `keras.Model` takes them."""
        shared = {
            "embeddings": self.rows_BFD,
            "linear": self.linear_BF,
            "numbers": self.numbers_BN,
        }
        if self.elements_BSD is None:
            return shared
        return {**shared, "elements": self.elements_BSD, "coefficients": self.coefficients_BS}


def build_inputs(signature: ModelSignature, *, seed: int) -> ModelInputs:
    """Makes the symbolic inputs of a model.

    Args:
        signature: The sizes.
        seed: Seed of the projections of shorter embeddings.

    Raises:
        ValueError: There is neither a field nor a number, or the base rate is 0 or 1.
    """
    if signature.num_fields + signature.num_numbers < 1:
        raise ValueError("there is no feature to learn from")
    if not 0 < signature.base_rate < 1:
        raise ValueError(f"the click rate of the training rows is {signature.base_rate:g}")
    fields, dim = signature.num_fields, signature.embedding_dim
    apart: dict[str, Any] = {}
    if num_positions := sum(signature.sequences):
        apart = {
            "elements_BSD": keras.Input((num_positions, dim), dtype="float32", name="elements"),
            "coefficients_BS": keras.Input((num_positions,), dtype="float32", name="coefficients"),
        }
    rows_BFD = keras.Input((fields, dim), dtype="float32", name="embeddings")
    embeddings_BFD = rows_BFD
    if any(length != dim for length in signature.field_dims or ()):
        projection_seed = derive_seeds(seed, _PROJECTION_PLACE + 1)[_PROJECTION_PLACE]
        projection = FieldProjection(signature.field_dims or (), projection_seed, name="projection")
        embeddings_BFD = projection(rows_BFD)
    return ModelInputs(
        signature=signature,
        rows_BFD=rows_BFD,
        embeddings_BFD=embeddings_BFD,
        linear_BF=keras.Input((fields,), dtype="float32", name="linear"),
        numbers_BN=keras.Input((signature.num_numbers,), dtype="float32", name="numbers"),
        **apart,
    )
