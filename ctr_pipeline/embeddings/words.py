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
_NUM_BYTES = 64
_BYTES = ir.VectorType(ir.IntType(8), _NUM_BYTES)
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


@intrinsic
def store_uint64(typing_context: Any, address: Any, place: Any, word: Any) -> Any:
    """Writes eight bytes to `address[place:]`; items are bytes, `place` is uint64."""
    del typing_context

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del signature
        place = builder.gep(arguments[0], [arguments[1]])
        builder.store(arguments[2], builder.bitcast(place, _WORD.as_pointer()), align=_UNALIGNED)
        return context.get_dummy_value()

    return types.void(address, place, word), generate


@intrinsic
def find_byte(typing_context: Any, address: Any, place: Any, byte: Any) -> Any:
    """Which of the 64 bytes at `address[place:]` are `byte`, uint8: bit k tells of byte k."""
    del typing_context

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        pointer = builder.gep(arguments[0], [arguments[1]])
        found = builder.load(builder.bitcast(pointer, _BYTES.as_pointer()), align=_UNALIGNED)
        one = builder.insert_element(ir.Constant(_BYTES, ir.Undefined), arguments[2], _HALF(0))
        places = ir.Constant(ir.VectorType(_HALF, _NUM_BYTES), [0] * _NUM_BYTES)
        wanted = builder.shuffle_vector(one, ir.Constant(_BYTES, ir.Undefined), places)
        return builder.bitcast(builder.icmp_unsigned("==", found, wanted), _WORD)

    return types.uint64(address, place, types.uint8), generate


@intrinsic
def lowest_bit(typing_context: Any, bits: Any) -> Any:
    """The place of the lowest bit that is 1, uint64; there is one."""
    del typing_context

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        return builder.cttz(arguments[0], ir.IntType(1)(1))

    return types.uint64(bits), generate


def _items_at(kind: Any) -> Any:
    """From a number, uint64, to the address of items of a type."""

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
