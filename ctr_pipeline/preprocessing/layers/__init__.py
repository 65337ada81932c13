"""Keras 3 layers over raw columns, usable alone; they are imported when one is first asked for.

So that importing this package never waits for TensorFlow:

    from ctr_pipeline.preprocessing.layers import Hashing

A layer is a class in a module of this package that Keras registers; there is no other list.
"""

from functools import cache
from typing import Any


@cache
def public_layers() -> dict[str, Any]:
    """Returns every layer by its name; imports TensorFlow."""
    import keras

    from ctr_pipeline.preprocessing.layers.raw_layer import PACKAGE, RawLayer, import_layers

    import_layers()
    found = (keras.saving.get_custom_objects() or {}).items()
    return {
        one.__name__: one
        for name, one in sorted(found)
        if name.startswith(f"{PACKAGE}>") and isinstance(one, type) and issubclass(one, RawLayer)
    }


def __getattr__(name: str) -> Any:
    if not name[:1].isupper() or name not in public_layers():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return public_layers()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *public_layers()})
