"""Asking the processor for memory before it is needed.

Rows of a batch lie all over memory and a row takes longer to arrive than to compute. The processor
does not look far enough ahead by itself; a prefetch a few rows ahead hides most of the wait.
"""

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic


@intrinsic
def prefetch(typing_context: Any, array: Any, row: Any, column: Any) -> Any:
    """Fetches the cache line of `array[row, column]` into all caches; never faults.

    Args:
        typing_context: Numba's own.
        array: Two-dimensional.
        row: uint64.
        column: uint64.
    """
    del typing_context

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_type = signature.args[0]
        view = context.make_array(array_type)(context, builder, arguments[0])
        address = cgutils.get_item_pointer(
            context, builder, array_type, view, arguments[1:], wraparound=False
        )
        byte_pointer = ir.IntType(8).as_pointer()
        flag = ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [byte_pointer, flag, flag, flag]),
            "llvm.prefetch.p0",
        )
        read, keep_in_all_caches, is_data = flag(0), flag(3), flag(1)
        builder.call(
            function,
            [builder.bitcast(address, byte_pointer), read, keep_in_all_caches, is_data],
        )
        return context.get_dummy_value()

    return types.void(array, row, column), generate
