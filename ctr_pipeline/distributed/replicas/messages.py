"""What replicas send each other.

Axes: U keys of a message, W values of a row, P dense values of the owner.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ctr_pipeline.distributed.ps.merging import RowGradients, merge_dense, merge_rows
from ctr_pipeline.distributed.rpc.packed import (
    Array,
    Float32Array,
    Int32Array,
    Int64Array,
    Kind,
    PackedMessage,
)

SERVICE = "ReplicaService"

_ROWS = {
    "keys": Array(np.int64, ("num_keys",)),
    "num_occurrences": Array(np.int32, ("num_keys",)),
    "sums": Array(np.float32, ("num_keys", "width")),
    "dense": Array(np.float32, ("num_dense",)),
}


@dataclass(frozen=True)
class ShareRequest(PackedMessage):
    """One member's share of what another one owns.

    Attributes:
        world: Version of the world.
        step: The step.
        rank: The rank of the sender.
        num_examples: Rows of its batch; 0: it had none.
        loss_sum: Sum of their weighted logloss.
        keys: int64 [U], each once.
        num_occurrences: int32 [U], in the batch.
        sums: float32 [U, W], gradients summed by key.
        dense: float32 [P], gradient of the batch's mean loss.
    """

    KIND: ClassVar = Kind.SHARE_REQUEST
    ARRAYS: ClassVar = _ROWS
    SLOTS: ClassVar = {
        "world": "generation",
        "rank": "worker",
        "loss_sum": "learning_rate_factor",
    }

    world: int
    step: int
    rank: int
    num_examples: int
    loss_sum: float
    keys: Int64Array
    num_occurrences: Int32Array
    sums: Float32Array
    dense: Float32Array


@dataclass(frozen=True)
class SumReply(PackedMessage):
    """The sum of all shares of what one member owns.

    Attributes:
        num_batches: Members that had a batch.
        num_examples: Rows of all batches.
        loss_sum: Sum of their weighted logloss.
        keys: int64 [U], each once.
        num_occurrences: int32 [U], in all batches.
        sums: float32 [U, W].
        dense: float32 [P], gradient of the mean loss over all rows.
    """

    KIND: ClassVar = Kind.SUM_REPLY
    ARRAYS: ClassVar = _ROWS
    SLOTS: ClassVar = {"num_batches": "step", "loss_sum": "learning_rate_factor"}

    num_batches: int
    num_examples: int
    loss_sum: float
    keys: Int64Array
    num_occurrences: Int32Array
    sums: Float32Array
    dense: Float32Array


def add_shares(shares: Sequence[ShareRequest]) -> SumReply:
    """The sum of shares, added in their order."""
    filled = [share for share in shares if share.num_examples]
    rows = merge_rows([RowGradients(one.keys, one.num_occurrences, one.sums) for one in filled])
    return SumReply(
        num_batches=len(filled),
        num_examples=sum(share.num_examples for share in filled),
        loss_sum=sum(share.loss_sum for share in filled),
        keys=rows.keys,
        num_occurrences=rows.num_occurrences,
        sums=rows.sums,
        dense=merge_dense([one.dense for one in filled], [one.num_examples for one in filled]),
    )


@dataclass(frozen=True)
class StateRequest:
    """Asks for a part of the parameters of a member; answered with bytes.

    Attributes:
        world: Version of the world; the parameters are those that it began with.
        first: Place of the first byte.
    """

    world: int
    first: int
