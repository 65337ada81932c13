"""Asking the processor for memory before it is needed.

Rows of a batch lie all over memory and a row takes longer to arrive than to compute. The processor
does not look far enough ahead by itself; a prefetch a few rows ahead hides most of the wait.
"""

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic


@intrinsic
def prefetch(typing_context: Any, address: Any, place: Any) -> Any:
    """Fetches the cache line of `address[place]` into all caches; never faults.

    Args:
        typing_context: Numba's own.
        address: The address of items of any type.
        place: uint64.
    """
    del typing_context

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del signature
        byte_pointer = ir.IntType(8).as_pointer()
        flag = ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [byte_pointer, flag, flag, flag]),
            "llvm.prefetch.p0",
        )
        read, keep_in_all_caches, is_data = flag(0), flag(3), flag(1)
        line = builder.bitcast(builder.gep(arguments[0], [arguments[1]]), byte_pointer)
        builder.call(function, [line, read, keep_in_all_caches, is_data])
        return context.get_dummy_value()

    return types.void(address, place), generate
