"""Keras 3 layers over raw columns, usable alone; each is imported when it is first asked for.

So that importing this package never waits for TensorFlow:

    from ctr_pipeline.preprocessing.layers import Hashing
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ctr_pipeline.preprocessing.layers.buckets import (
        Discretization,
        IntervalIds,
        LogRound,
        RoundIdentity,
    )
    from ctr_pipeline.preprocessing.layers.concatenate_with_offset import ConcatenateWithOffset
    from ctr_pipeline.preprocessing.layers.crossing import HashedCrossing
    from ctr_pipeline.preprocessing.layers.datetimes import Age, DatetimePart
    from ctr_pipeline.preprocessing.layers.hashing import Hashing
    from ctr_pipeline.preprocessing.layers.index_lookup import IndexLookup
    from ctr_pipeline.preprocessing.layers.number_lookup import NumberLookup
    from ctr_pipeline.preprocessing.layers.numbers import (
        Clip,
        Fill,
        Log,
        Normalizer,
        Standardize,
    )
    from ctr_pipeline.preprocessing.layers.sequence_slots import SequenceSlots
    from ctr_pipeline.preprocessing.layers.sparse_embedding import SparseEmbedding
    from ctr_pipeline.preprocessing.layers.structure import ToRagged, ToSparse
    from ctr_pipeline.preprocessing.layers.to_number import ToNumber
    from ctr_pipeline.preprocessing.layers.vector_numbers import VectorNumbers

__all__ = [
    "LAYER_MODULES",
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


def __getattr__(name: str) -> Any:
    if name not in LAYER_MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{LAYER_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
