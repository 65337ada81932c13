"""Parts of a model that XLA compiles by themselves, where the model as a whole is not compiled."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

_PARTS_ARE_COMPILED = ContextVar("_PARTS_ARE_COMPILED", default=False)


@contextmanager
def compiled_parts() -> Iterator[None]:
    """A model that is traced inside has its `fused` parts compiled; a saved one never has."""
    token = _PARTS_ARE_COMPILED.set(True)
    try:
        yield
    finally:
        _PARTS_ARE_COMPILED.reset(token)


def fused(function: Callable[..., Any], *arguments: Any) -> Any:
    """`function(*arguments)`, in one pass over memory instead of one for each operation.

    For what stands between products of matrices, where TensorFlow's own kernels write every
    intermediate result. Inside a model that is compiled as a whole it is the call alone.

    Args:
        function: Function of tensors of fixed shapes, to tensors; without variables.
        *arguments: The tensors.
    """
    if not _PARTS_ARE_COMPILED.get():
        return function(*arguments)
    return tf.function(function, jit_compile=True)(*arguments)
