"""Addresses, and eight float32 values at once, in compiled kernels.

A row's values are few and lie beside their optimizer slots in one array. Numba passes an array to
a function with its reference count, two atomic operations that cost more than the arithmetic of a
row; an address has none. And a compiler that cannot prove that stores and loads never meet leaves
short loops scalar, where a square root and a division a value cost more than fetching the row;
`Lanes` says outright what is independent.

Arithmetic is IEEE 754's for each value, without contraction, so that a value has the same bits
whether it is computed in lanes or alone; rules are written once for both. Nothing here checks
bounds.
"""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.types.misc import CPointer
from numba.extending import intrinsic, models, overload, register_model

from ctr_pipeline.kernels.compilation import inlined
from ctr_pipeline.kernels.prefetch import prefetch

Address = Any
"""Where items of one type lie; in kernels alone."""

NUM_LANES = np.uint64(8)
"""Values in one `Lanes`."""

_VECTOR = ir.VectorType(ir.FloatType(), int(NUM_LANES))
_FLOAT_BYTES = 4
_NONE = np.uint64(0)
_NEXT = np.uint64(1)
_LINE_FLOATS = np.uint64(16)
_ZERO = np.float32(0)


class Lanes(types.Type):  # type: ignore[misc]
    """Numba's type of eight float32 values."""

    def __init__(self) -> None:
        super().__init__(name="float32x8")


_lanes = Lanes()


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Lanes) -> None:
        super().__init__(manager, kind, _VECTOR)


@intrinsic
def address_of(typing_context: Any, array: Any, place: Any) -> Any:
    """The address of an array's item; the array has to outlive it.

    Args:
        typing_context: Numba's own.
        array: Its last axis is contiguous.
        place: Tuple of uint64, one for each axis.
    """
    del typing_context

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_type = signature.args[0]
        view = context.make_array(array_type)(context, builder, arguments[0])
        indices = cgutils.unpack_tuple(builder, arguments[1])
        return cgutils.get_item_pointer(
            context, builder, array_type, view, indices, wraparound=False
        )

    return CPointer(array.dtype)(array, place), generate


@intrinsic
def after(typing_context: Any, address: Any, count: Any) -> Any:
    """The address so many items further on."""
    del typing_context

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        return builder.gep(arguments[0], [arguments[1]])

    return address(address, count), generate


def _lanes_at(builder: Any, address: Any, place: Any) -> Any:
    return builder.bitcast(builder.gep(address, [place]), _VECTOR.as_pointer())


@intrinsic
def load_lanes(typing_context: Any, address: Any, place: Any) -> Any:
    """The eight float32 values at `address[place:]`; `place` is uint64."""
    del typing_context

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        return builder.load(_lanes_at(builder, *arguments), align=_FLOAT_BYTES)

    return _lanes(address, place), generate


@intrinsic
def store_lanes(typing_context: Any, address: Any, place: Any, values: Any) -> Any:
    """Writes eight float32 values to `address[place:]`; `place` is uint64."""
    del typing_context

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del signature
        builder.store(arguments[2], _lanes_at(builder, *arguments[:2]), align=_FLOAT_BYTES)
        return context.get_dummy_value()

    return types.void(address, place, values), generate


def _spread(builder: Any, kind: Any, value: Any) -> Any:
    """A value in all lanes; lanes as they are."""
    if isinstance(kind, Lanes):
        return value
    one = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), value, ir.IntType(32)(0))
    places = ir.Constant(ir.VectorType(ir.IntType(32), int(NUM_LANES)), [0] * int(NUM_LANES))
    return builder.shuffle_vector(one, ir.Constant(_VECTOR, ir.Undefined), places)


def _are_lanes(*kinds: Any) -> bool:
    """Whether at least one is `Lanes`, and the others are that or float32."""
    return any(isinstance(kind, Lanes) for kind in kinds) and all(
        isinstance(kind, Lanes) or kind == types.float32 for kind in kinds
    )


def _binary(combine: Callable[[Any, Any, Any], Any]) -> Any:
    """An operation on lanes, or on lanes and one value."""

    @intrinsic
    def operation(typing_context: Any, left: Any, right: Any) -> Any:
        del typing_context

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            del context
            pair = zip(signature.args, arguments, strict=True)
            return combine(builder, *(_spread(builder, kind, value) for kind, value in pair))

        return _lanes(left, right), generate

    return operation


_add = _binary(lambda builder, left, right: builder.fadd(left, right))
_subtract = _binary(lambda builder, left, right: builder.fsub(left, right))
_multiply = _binary(lambda builder, left, right: builder.fmul(left, right))
_divide = _binary(lambda builder, left, right: builder.fdiv(left, right))


@intrinsic
def square_root(typing_context: Any, values: Any) -> Any:
    """The square root of float32 or lanes."""
    del typing_context

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        is_lanes = isinstance(signature.args[0], Lanes)
        kind = context.get_value_type(signature.args[0])
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(kind, [kind]),
            f"llvm.sqrt.v{NUM_LANES}f32" if is_lanes else "llvm.sqrt.f32",
        )
        return builder.call(function, arguments)

    return values(values), generate


def _overload_operators(operation: Any, *symbols: Any) -> None:
    for symbol in symbols:

        @overload(symbol, strict=False)
        def choose(left: Any, right: Any) -> Any:
            if _are_lanes(left, right):
                return lambda left, right: operation(left, right)  # noqa: PLW0108  Numba needs a function
            return None


_overload_operators(_add, operator.add, operator.iadd)
_overload_operators(_subtract, operator.sub, operator.isub)
_overload_operators(_multiply, operator.mul, operator.imul)
_overload_operators(_divide, operator.truediv, operator.itruediv)


@inlined
def in_lanes(count: np.uint64) -> np.uint64:
    """How many of so many values fill whole lanes."""
    return count - count % NUM_LANES


@inlined
def copy_values(source: Address, target: Address, count: np.uint64) -> None:
    """Copies float32 values between places that do not overlap."""
    whole = in_lanes(count)
    for i in range(_NONE, whole, NUM_LANES):
        store_lanes(target, i, load_lanes(source, i))
    for i in range(whole, count):
        target[i] = source[i]


@inlined
def clear_values(target: Address, count: np.uint64) -> None:
    """Makes float32 values 0."""
    for i in range(count):
        target[i] = _ZERO


@inlined
def prefetch_values(address: Address, count: np.uint64) -> None:
    """Fetches the cache lines of so many float32 values, of which there is at least one."""
    for i in range(_NONE, count, _LINE_FLOATS):
        prefetch(address, i)
    prefetch(address, count - _NEXT)


@inlined
def sum_occurrences(
    gradients: Address,
    width: np.uint64,
    occurrences: Address,
    num_occurrences: np.uint64,
    sums: Address,
) -> None:
    """Sums the gradients [P, width] of one key, in the order of its occurrences."""
    whole = in_lanes(width)
    for i in range(_NONE, whole, NUM_LANES):
        total = load_lanes(gradients, np.uint64(occurrences[_NONE]) * width + i)
        for k in range(_NEXT, num_occurrences):
            total += load_lanes(gradients, np.uint64(occurrences[k]) * width + i)
        store_lanes(sums, i, total)
    for i in range(whole, width):
        single = gradients[np.uint64(occurrences[_NONE]) * width + i]
        for k in range(_NEXT, num_occurrences):
            single += gradients[np.uint64(occurrences[k]) * width + i]
        sums[i] = single
