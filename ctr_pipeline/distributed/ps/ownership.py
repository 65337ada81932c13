"""Whether keys are those of one server."""

import numpy as np

from ctr_pipeline.embeddings.arrays import BoolArray, Int32Array, Int64Array
from ctr_pipeline.kernels.compilation import kernel
from ctr_pipeline.specs.table import ID_BITS

_ID_MASK = (1 << ID_BITS) - 1


@kernel
def _are_owned(
    keys: Int64Array,
    partitions_U: Int32Array,
    table_sizes: Int64Array,
    is_owned_P: BoolArray,
) -> bool:
    for u in range(keys.shape[0]):
        table = keys[u] >> ID_BITS
        if table < 0 or table >= table_sizes.shape[0]:
            return False
        if keys[u] & _ID_MASK >= table_sizes[table] or not is_owned_P[partitions_U[u]]:
            return False
    return True


def are_owned(
    keys: Int64Array,
    partitions_U: Int32Array,
    table_sizes: Int64Array,
    is_owned_P: BoolArray,
) -> bool:
    """Whether all keys are ids of their tables, in partitions of a server.

    Args:
        keys: int64 [U], table << 44 | id.
        partitions_U: int32, of the keys.
        table_sizes: int64, ids of each table.
        is_owned_P: bool, by partition: whether the server holds it.
    """
    contiguous = np.ascontiguousarray(keys)
    return bool(_are_owned(contiguous, partitions_U, table_sizes, is_owned_P))
