"""Raw columns to numbers and ids, twice: columnar kernels for training, Keras layers for serving.

The layers are imported when one is first asked for, so that training, which needs the kernels
alone, does not wait for TensorFlow:

    from ctr_pipeline.preprocessing import Hashing
"""

from typing import Any

from ctr_pipeline.preprocessing import layers


def __getattr__(name: str) -> Any:
    if not name[:1].isupper():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(layers, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *layers.public_layers()})
