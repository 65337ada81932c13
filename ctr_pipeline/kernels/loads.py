"""Whole words from the bytes at an address, and addresses that arrays hold, in compiled kernels.

A kernel that takes an array into another function passes its reference count along, and puts a
word together byte by byte unless the compiler sees through it: a hash of eight bytes took ten times
as long. Words are little-endian, as are all machines that rows are encoded on. Nothing here checks
bounds.
"""

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.types.misc import CPointer
from numba.extending import intrinsic

_WORD = ir.IntType(64)
_HALF = ir.IntType(32)
_UNALIGNED = 1


def _load(builder: Any, kind: Any, address: Any, place: Any) -> Any:
    pointer = builder.bitcast(builder.gep(address, [place]), kind.as_pointer())
    return builder.load(pointer, align=_UNALIGNED)


@intrinsic
def load_uint64(typing_context: Any, address: Any, place: Any) -> Any:
    """The eight bytes at `address[place:]`; items are bytes, `place` is uint64."""
    del typing_context

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        return _load(builder, _WORD, *arguments)

    return types.uint64(address, place), generate


@intrinsic
def load_uint32(typing_context: Any, address: Any, place: Any) -> Any:
    """The four bytes at `address[place:]`, as uint64; items are bytes, `place` is uint64."""
    del typing_context

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        return builder.zext(_load(builder, _HALF, *arguments), _WORD)

    return types.uint64(address, place), generate


def _items_at(kind: Any) -> Any:
    """The address of items of a type, of a number, uint64."""

    @intrinsic
    def items_at(typing_context: Any, number: Any) -> Any:
        del typing_context

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return CPointer(kind)(number), generate

    return items_at


uint16_at = _items_at(types.uint16)
int32_at = _items_at(types.int32)
int64_at = _items_at(types.int64)
