"""The three inputs that all models share.

Axes: B batch, F fields, D embedding dimension, N numbers, K = F·D + N.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import keras


@dataclass(frozen=True)
class ModelSignature:
    """The sizes that a model is built for.

    Attributes:
        num_fields: Embedded fields, F; may be 0.
        embedding_dim: Length of an embedding, D.
        num_numbers: Dense inputs, N; may be 0.
        base_rate: Click rate of the training rows, in the open interval (0, 1).
    """

    num_fields: int
    embedding_dim: int
    num_numbers: int
    base_rate: float

    @property
    def base_logit(self) -> float:
        """The logit of the base rate: the score of a model that knows nothing else."""
        return math.log(self.base_rate) - math.log1p(-self.base_rate)


@dataclass(frozen=True)
class ModelInputs:
    """Named symbolic inputs, float32.

    Attributes:
        signature: The sizes.
        embeddings_BFD: Input "embeddings", (batch, fields, dim): the row of each field's id.
        linear_BF: Input "linear", (batch, fields): the linear weight of each field's id.
        numbers_BN: Input "numbers", (batch, numbers).
    """

    signature: ModelSignature
    embeddings_BFD: Any
    linear_BF: Any
    numbers_BN: Any

    @cached_property
    def flat_BK(self) -> Any:  # noqa: N802 - the suffix names the axes
        """Flattened embeddings, then numbers: (batch, fields · dim + numbers)."""
        parts = []
        if self.signature.num_fields:
            parts.append(keras.layers.Flatten(name="flat_embeddings")(self.embeddings_BFD))
        if self.signature.num_numbers:
            parts.append(self.numbers_BN)
        if len(parts) == 1:
            return parts[0]
        return keras.layers.Concatenate(name="flat")(parts)

    def as_dict(self) -> dict[str, Any]:
        """The inputs as a `keras.Model` takes them."""
        return {
            "embeddings": self.embeddings_BFD,
            "linear": self.linear_BF,
            "numbers": self.numbers_BN,
        }


def build_inputs(signature: ModelSignature) -> ModelInputs:
    """Makes the symbolic inputs of a model.

    Raises:
        ValueError: There is neither a field nor a number, or the base rate is 0 or 1.
    """
    if signature.num_fields + signature.num_numbers < 1:
        raise ValueError("there is no feature to learn from")
    if not 0 < signature.base_rate < 1:
        raise ValueError(f"the click rate of the training rows is {signature.base_rate:g}")
    fields, dim = signature.num_fields, signature.embedding_dim
    return ModelInputs(
        signature=signature,
        embeddings_BFD=keras.Input((fields, dim), dtype="float32", name="embeddings"),
        linear_BF=keras.Input((fields,), dtype="float32", name="linear"),
        numbers_BN=keras.Input((signature.num_numbers,), dtype="float32", name="numbers"),
    )
