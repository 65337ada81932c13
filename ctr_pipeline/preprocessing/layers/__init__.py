"""Keras 3 layers over raw columns, usable alone; each is imported when it is first asked for.

So that importing this package never waits for TensorFlow:

    from ctr_pipeline.preprocessing.layers import Hashing
"""

from importlib import import_module
from typing import Any

LAYER_MODULES = {
    "Age": "datetimes",
    "Clip": "numbers",
    "ConcatenateWithOffset": "concatenate_with_offset",
    "DatetimePart": "datetimes",
    "Discretization": "buckets",
    "Fill": "numbers",
    "HashedCrossing": "crossing",
    "Hashing": "hashing",
    "IndexLookup": "index_lookup",
    "IntervalIds": "buckets",
    "Log": "numbers",
    "LogRound": "buckets",
    "Normalizer": "numbers",
    "NumberLookup": "number_lookup",
    "RoundIdentity": "buckets",
    "SequenceSlots": "sequence_slots",
    "SparseEmbedding": "sparse_embedding",
    "Standardize": "numbers",
    "ToNumber": "to_number",
    "ToRagged": "structure",
    "ToSparse": "structure",
    "VectorNumbers": "vector_numbers",
}
"""Every public layer with the module of this package that holds it."""

__all__ = list(LAYER_MODULES)


def __getattr__(name: str) -> Any:
    if name not in LAYER_MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{LAYER_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
