"""Raw columns to numbers and ids, twice: columnar kernels for training, Keras layers for serving.

The layers are imported when they are first asked for, so that training, which needs the kernels
alone, does not wait for TensorFlow:

    from ctr_pipeline.preprocessing import Hashing
"""

from typing import Any

from ctr_pipeline.preprocessing import layers

__all__ = list(layers.LAYER_MODULES)


def __getattr__(name: str) -> Any:
    if name not in layers.LAYER_MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(layers, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
