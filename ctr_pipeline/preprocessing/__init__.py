"""Raw columns to numbers and ids, twice: columnar kernels for training, Keras layers for serving.

The layers are imported when they are first asked for, so that training, which needs the kernels
alone, does not wait for TensorFlow:

    from ctr_pipeline.preprocessing import Hashing
"""

from typing import TYPE_CHECKING, Any

from ctr_pipeline.preprocessing import layers

if TYPE_CHECKING:
    from ctr_pipeline.preprocessing.layers import (
        Age,
        Clip,
        ConcatenateWithOffset,
        DatetimePart,
        Discretization,
        Fill,
        HashedCrossing,
        Hashing,
        IndexLookup,
        IntervalIds,
        Log,
        LogRound,
        Normalizer,
        NumberLookup,
        RoundIdentity,
        SequenceSlots,
        SparseEmbedding,
        Standardize,
        ToNumber,
        ToRagged,
        ToSparse,
        VectorNumbers,
    )

__all__ = [
    "Age",
    "Clip",
    "ConcatenateWithOffset",
    "DatetimePart",
    "Discretization",
    "Fill",
    "HashedCrossing",
    "Hashing",
    "IndexLookup",
    "IntervalIds",
    "Log",
    "LogRound",
    "Normalizer",
    "NumberLookup",
    "RoundIdentity",
    "SequenceSlots",
    "SparseEmbedding",
    "Standardize",
    "ToNumber",
    "ToRagged",
    "ToSparse",
    "VectorNumbers",
]


def __getattr__(name: str) -> Any:
    if name not in layers.LAYER_MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(layers, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
