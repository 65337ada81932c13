"""Raw columns to numbers and ids, twice: columnar kernels for training, Keras layers for serving.

The layers are imported when they are first asked for, so that training, which needs the kernels
alone, does not wait for TensorFlow:

    from ctr_pipeline.preprocessing import Hashing
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
    from ctr_pipeline.preprocessing.layers.crossing import HashedCrossing
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

__all__ = [
    "Clip",
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
    "Standardize",
]

_LAYER_MODULES = {
    "Clip": "numbers",
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
    "Standardize": "numbers",
}


def __getattr__(name: str) -> Any:
    if name not in _LAYER_MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"ctr_pipeline.preprocessing.layers.{_LAYER_MODULES[name]}")
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
