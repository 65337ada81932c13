"""Parts of a model that XLA compiles by themselves, where the model as a whole is not compiled."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

_PARTS_ARE_COMPILED = ContextVar("_PARTS_ARE_COMPILED", default=False)


@contextmanager
def compiled_parts() -> Iterator[None]:
    """Has XLA compile the `fused` parts of models that are traced in this context."""
    token = _PARTS_ARE_COMPILED.set(True)
    try:
        yield
    finally:
        _PARTS_ARE_COMPILED.reset(token)


def fused(function: Callable[..., Any], *arguments: Any) -> Any:
    """Computes `function(*arguments)` in one pass over memory instead of one for each operation.

    Use it for the operations between matrix products, whose intermediate results TensorFlow's own
    kernels write to memory one by one. In a model that is compiled as a whole it just calls.

    Args:
        function: Maps tensors of fixed shapes to tensors; has no variables.
        *arguments: The tensors.
    """
    if not _PARTS_ARE_COMPILED.get():
        return function(*arguments)
    return tf.function(function, jit_compile=True, autograph=False)(*arguments)
