"""What replicas send each other.

Axes: U keys of a message, W values of a row, P dense values of the owner.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ctr_pipeline.distributed.coordination.row_steps import Made
from ctr_pipeline.distributed.ps.merging import RowGradients, merge_dense, merge_rows
from ctr_pipeline.distributed.rpc.packed import (
    FLAG_CREATE,
    Array,
    Float32Array,
    Int32Array,
    Int64Array,
    Kind,
    PackedMessage,
)

SERVICE = "ReplicaService"
ROW_SERVICE = "RowService"

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
        num_examples: Rows of its batches; 0: it had none.
        loss_sum: Sum of their weighted logloss.
        keys: int64 [U], each once.
        num_occurrences: int32 [U], in the batches.
        sums: float32 [U, W], gradients summed by key.
        dense: float32 [P], gradient of the mean loss over the rows.
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
        num_examples: Rows of all batches.
        loss_sum: Sum of their weighted logloss.
        keys: int64 [U], each once.
        num_occurrences: int32 [U], in all batches.
        sums: float32 [U, W].
        dense: float32 [P], gradient of the mean loss over all rows.
    """

    KIND: ClassVar = Kind.SUM_REPLY
    ARRAYS: ClassVar = _ROWS
    SLOTS: ClassVar = {"loss_sum": "learning_rate_factor"}

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


@dataclass(frozen=True)
class RowShare(PackedMessage):
    """One member's gradients of the rows of one server, in a step.

    Attributes:
        world: Version of the world.
        step: The step.
        total_step: The step, counted with those before this training; for the optimizers.
        rank: The rank of the sender.
        learning_rate_factor: On every learning rate.
        num_examples: Rows of its batches; 0: it had none.
        keys: int64 [U], each once.
        num_occurrences: int32 [U], in the batches.
        sums: float32 [U, W], gradients summed by key.
    """

    KIND: ClassVar = Kind.ROW_SHARE
    ARRAYS: ClassVar = {name: _ROWS[name] for name in ("keys", "num_occurrences", "sums")}
    SLOTS: ClassVar = {"world": "generation", "rank": "worker", "total_step": "first"}

    world: int
    step: int
    total_step: int
    rank: int
    learning_rate_factor: float
    num_examples: int
    keys: Int64Array
    num_occurrences: Int32Array
    sums: Float32Array


@dataclass(frozen=True)
class RowPull(PackedMessage):
    """Asks a server for the values of rows.

    Attributes:
        world: Version of the world.
        step: Step of the dense parameters that they are for.
        create: Make the missing rows; else they read as zeros.
        keys: int64 [U].
    """

    KIND: ClassVar = Kind.ROW_PULL
    ARRAYS: ClassVar = {"keys": _ROWS["keys"]}
    FLAGS: ClassVar = {"create": FLAG_CREATE}
    SLOTS: ClassVar = {"world": "generation"}

    world: int
    step: int
    create: bool
    keys: Int64Array


@dataclass(frozen=True)
class RowValues(PackedMessage):
    """Values of rows, float32 [U, W]."""

    KIND: ClassVar = Kind.ROW_VALUES
    ARRAYS: ClassVar = {"values": Array(np.float32, ("num_keys", "width"))}

    values: Float32Array


@dataclass(frozen=True)
class SavedRows(PackedMessage):
    """Rows of one server on their way into a checkpoint, in order of creation.

    Attributes:
        num_rows: Rows that the server has.
        keys: int64 [U].
        records: float32 [U, R], header, values and slots; R is 0 if only keys were asked for.
    """

    KIND: ClassVar = Kind.SAVED_ROWS
    ARRAYS: ClassVar = {
        "keys": _ROWS["keys"],
        "records": Array(np.float32, ("num_keys", "width")),
    }
    SLOTS: ClassVar = {"num_rows": "first"}

    num_rows: int
    keys: Int64Array
    records: Float32Array


@dataclass(frozen=True)
class RowsHeld:
    """What a server of rows has.

    Attributes:
        lineage: Name of the restore that its rows come from; empty: it has none.
        steps: Steps that it can go on from.
    """

    lineage: str
    steps: tuple[Made, ...]


@dataclass(frozen=True)
class RestoreRows:
    """Has a server take its rows from a checkpoint.

    Attributes:
        lineage: Name of the restore.
        step: Step of the checkpoint; 0: there are no rows yet.
    """

    lineage: str
    step: int


@dataclass(frozen=True)
class EnterWorld:
    """A member enters a world at a server of rows.

    Attributes:
        lineage: Name of the restore that its parameters come from.
        world: Version of the world.
        size: Members of it.
        made: Step of its dense parameters.
    """

    lineage: str
    world: int
    size: int
    made: Made


@dataclass(frozen=True)
class LeaveWorld:
    """A member leaves a world, which is over by that."""

    world: int


@dataclass(frozen=True)
class ReadSavedRows:
    """Asks a server for rows of a step, for a checkpoint; answered with `SavedRows`.

    Attributes:
        first: The first row.
        most: The number that there are in all.
        with_records: Not only their keys.
    """

    world: int
    step: int
    first: int
    most: int
    with_records: bool


@dataclass(frozen=True)
class EvictRows:
    """Has a server remove its rows that were last updated before a step.

    Attributes:
        world: Version of the world.
        step: Step of the dense parameters.
        oldest_step: Rows last updated before this one go.
    """

    world: int
    step: int
    oldest_step: int


@dataclass(frozen=True)
class RowsEvicted:
    """How many rows a server has removed."""

    number: int
