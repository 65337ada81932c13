"""Messages that carry tensors: a fixed header and arrays, little-endian, 8-byte aligned.

Axes: U keys of a message, W values of a row, R keys whose fresh values are asked for, P dense
values.

All messages share one header, so that its layout stands in one place; a field that a kind of
message does not use is 0. Arrays are read as views of the received bytes. Every length is checked
before an array is looked at; what does not fit exactly is refused.
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import IntEnum
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from ctr_pipeline.distributed.coordination.codec import MalformedMessage
from ctr_pipeline.distributed.coordination.rounds import BatchId
from ctr_pipeline.distributed.coordination.spec import BATCHES_PER_TASK

Float32Array = npt.NDArray[np.float32]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]

_MAGIC = b"CTRP"
_HEADER = struct.Struct("<4sBBBBqqqqqqqqQdqqIIQQQ")
_ALIGNMENT = 8
_LONGEST_AXIS = (1 << 31) - 1
_NO_VERSION = -1
FLAG_CREATE = 1
_FLAG_BATCH = 2
_FLAG_DENSE = 4
_FLAGS = FLAG_CREATE | _FLAG_BATCH | _FLAG_DENSE


class Status(IntEnum):
    """How a parameter server answers."""

    DONE = 0
    """As asked."""
    REPEATED = 1
    """The batch was applied before; nothing was changed."""
    STALE = 2
    """The gradients are too old; nothing was changed."""
    ROLLED_BACK = 3
    """The caller's generation is over."""
    NOT_READY = 4
    """The server has yet to be restored for the caller's generation, or was given no dense values;
    ask again."""
    SUPERSEDED = 5
    """A later attempt at the task has begun."""
    MOVED = 6
    """The caller's placement is older than the last move here; nothing was changed."""


class Kind(IntEnum):
    """What a message is."""

    PULL_REQUEST = 1
    PULL_REPLY = 2
    PUSH_REQUEST = 3
    PUSH_REPLY = 4
    DENSE_REQUEST = 5
    DENSE_REPLY = 6
    MOVED_ROWS = 7
    SHARE_REQUEST = 8
    SUM_REPLY = 9
    ROW_SHARE = 10
    ROW_PULL = 11
    ROW_VALUES = 12
    SAVED_ROWS = 13


class _Header(NamedTuple):
    """The header by name, in the order of its layout."""

    magic: bytes = _MAGIC
    kind: int = 0
    status: int = 0
    flags: int = 0
    reserved: int = 0
    generation: int = 0
    epoch: int = 0
    task: int = 0
    attempt: int = 0
    batch: int = 0
    step: int = 0
    version: int = 0
    dense_version: int = 0
    worker: int = 0
    learning_rate_factor: float = 0.0
    num_examples: int = 0
    first: int = 0
    width: int = 0
    placement: int = 0
    num_keys: int = 0
    num_fresh: int = 0
    num_dense: int = 0


class _Arrays:
    """Takes the arrays of a message one after another."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = _HEADER.size

    def take(self, dtype: npt.DTypeLike, *shape: int) -> npt.NDArray[Any]:
        """A view of the next array."""
        kind = np.dtype(dtype)
        # Python's integers do not overflow, so that no length can be told to look like another.
        num_bytes = math.prod(shape) * kind.itemsize
        # No bytes are announced by any length times 0; NumPy has a limit for these too.
        if num_bytes > len(self._data) - self._place or max(shape) > _LONGEST_AXIS:
            raise MalformedMessage(
                f"an array of {list(shape)} is announced, {len(self._data)} bytes were sent"
            )
        array = np.frombuffer(self._data, kind, math.prod(shape), self._place).reshape(shape)
        self._place += num_bytes + -num_bytes % _ALIGNMENT
        return array

    def finish(self) -> None:
        """Refuses bytes that belong to no array."""
        if self._place != len(self._data):
            raise MalformedMessage(
                f"{self._place} bytes are announced, {len(self._data)} were sent"
            )


class Array(NamedTuple):
    """How an array of a message is sent.

    Attributes:
        axes: The header's fields that hold its shape; arrays that name the same one agree in it.
    """

    dtype: type[np.generic]
    axes: tuple[str, ...]


@dataclass(frozen=True)
class PackedMessage:
    """A message that is sent as the header and its arrays.

    A field goes into the field of the header with its name, or into the one that `SLOTS` names;
    `batch` into four. A field in `FLAGS` is a bool, or may be None: the flag tells.

    Attributes:
        ARRAYS: By field, in the order in which they are sent.
        FLAGS: The flag of a field.
        SLOTS: The header's field, where it has another name.
    """

    KIND: ClassVar[Kind]
    ARRAYS: ClassVar[Mapping[str, Array]] = {}
    FLAGS: ClassVar[Mapping[str, int]] = {}
    SLOTS: ClassVar[Mapping[str, str]] = {}

    def encode(self) -> bytes:
        """As bytes."""
        header: dict[str, Any] = {"kind": self.KIND, "flags": 0}
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            flag = self.FLAGS.get(name)
            if flag is not None:
                header["flags"] |= flag if value is not None and value is not False else 0
            if value is None or isinstance(value, bool):
                continue
            if name in self.ARRAYS:
                header.update(zip(self.ARRAYS[name].axes, value.shape, strict=True))
            elif isinstance(value, BatchId):
                header.update(asdict(value))
            else:
                header[self.SLOTS.get(name, name)] = value
        parts: list[bytes | memoryview] = [_HEADER.pack(*_Header(**header))]
        for name in self.ARRAYS:
            array = getattr(self, name)
            if array is not None and array.size:
                flat = array if array.flags.c_contiguous else np.ascontiguousarray(array)
                parts.append(flat.reshape(-1).view(np.uint8).data)
                parts.append(bytes(-flat.nbytes % _ALIGNMENT))
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decodes bytes; raises MalformedMessage."""
        header, arrays = _read_header(data, cls.KIND), _Arrays(data)
        values: dict[str, Any] = {
            name: arrays.take(array.dtype, *(getattr(header, axis) for axis in array.axes))
            for name, array in cls.ARRAYS.items()
        }
        arrays.finish()
        for field in fields(cls):
            name, flag = field.name, cls.FLAGS.get(field.name)
            is_set = flag is None or bool(header.flags & flag)
            if field.type is bool:
                values[name] = is_set
            elif not is_set:
                values[name] = None
            elif name == "batch":
                values[name] = _read_batch(header)
            elif name == "status":
                values[name] = _read_status(header)
            elif name not in cls.ARRAYS:
                values[name] = getattr(header, cls.SLOTS.get(name, name))
        return cls(**values)


def _read_header(data: bytes, kind: Kind) -> _Header:
    if len(data) < _HEADER.size:
        raise MalformedMessage(f"{len(data)} bytes are no message")
    header = _Header(*_HEADER.unpack_from(data))
    if header.magic != _MAGIC or header.kind != kind:
        raise MalformedMessage(f"the message is no {kind.name.lower().replace('_', ' ')}")
    if header.reserved or header.flags & ~_FLAGS:
        raise MalformedMessage("the message holds what nobody here knows")
    if header.generation < 0 or header.version < _NO_VERSION:
        raise MalformedMessage(f"generation {header.generation}, version {header.version}")
    return header


def _read_status(header: _Header) -> Status:
    try:
        return Status(header.status)
    except ValueError:
        raise MalformedMessage(f"status {header.status} is unknown") from None


def _read_batch(header: _Header) -> BatchId:
    place = (header.epoch, header.task, header.attempt, header.batch)
    if min(place) < 0 or header.batch >= BATCHES_PER_TASK:
        raise MalformedMessage(f"there is no batch (epoch, task, attempt, batch) {place}")
    return BatchId(*place)


@dataclass(frozen=True)
class PullRequest(PackedMessage):
    """Asks for values.

    Attributes:
        batch: The batch that they are for; None: not for training.
        worker: Number of the caller.
        create: Make the missing rows; else they read as zeros.
        dense_version: Version of the dense values that the caller has, -1: of none; the server
            sends its own if they are newer. None: do not send them.
        keys: int64 [U], of the server's partitions.
        placement: Version of the placement that says so.
    """

    KIND: ClassVar = Kind.PULL_REQUEST
    ARRAYS: ClassVar = {
        "keys": Array(np.int64, ("num_keys",)),
    }
    FLAGS: ClassVar = {"batch": _FLAG_BATCH, "create": FLAG_CREATE, "dense_version": _FLAG_DENSE}

    generation: int
    batch: BatchId | None
    worker: int
    create: bool
    dense_version: int | None
    keys: Int64Array
    placement: int = 0


@dataclass(frozen=True)
class PullReply(PackedMessage):
    """Values as of one instant.

    Attributes:
        status: DONE, ROLLED_BACK, NOT_READY, SUPERSEDED or MOVED.
        version: Updates that the values know of.
        values: float32 [U, W].
        dense: float32, the server's range; None if not sent.
    """

    KIND: ClassVar = Kind.PULL_REPLY
    ARRAYS: ClassVar = {
        "values": Array(np.float32, ("num_keys", "width")),
        "dense": Array(np.float32, ("num_dense",)),
    }
    FLAGS: ClassVar = {"dense": _FLAG_DENSE}

    status: Status
    generation: int
    version: int
    values: Float32Array
    dense: Float32Array | None


@dataclass(frozen=True)
class PushRequest(PackedMessage):
    """Gradients of one batch.

    Attributes:
        worker: Number of the caller.
        step: Step of the batch, from 1; for Adam's bias correction.
        learning_rate_factor: The schedule's.
        version: Version of the values that the gradients were computed with.
        keys: int64 [U], of the server's partitions, each once.
        num_occurrences: int32 [U], in the batch.
        sums: float32 [U, W], gradients summed by key.
        dense: float32 [P], of the server's range.
        fresh_keys: int64 [R], whose values are to come with the reply.
        placement: Version of the placement that says which keys and dense values are the server's.
    """

    KIND: ClassVar = Kind.PUSH_REQUEST
    ARRAYS: ClassVar = {
        "keys": Array(np.int64, ("num_keys",)),
        "num_occurrences": Array(np.int32, ("num_keys",)),
        "sums": Array(np.float32, ("num_keys", "width")),
        "dense": Array(np.float32, ("num_dense",)),
        "fresh_keys": Array(np.int64, ("num_fresh",)),
    }

    generation: int
    batch: BatchId
    worker: int
    step: int
    learning_rate_factor: float
    num_examples: int
    version: int
    keys: Int64Array
    num_occurrences: Int32Array
    sums: Float32Array
    dense: Float32Array
    fresh_keys: Int64Array
    placement: int = 0

    def __post_init__(self) -> None:
        """Refuses numbers that no update can be made with."""
        factor = self.learning_rate_factor
        if self.step < 1 or self.num_examples < 1 or not 0 <= factor < math.inf:
            raise MalformedMessage(
                f"step {self.step}, {self.num_examples} examples, learning rate × {factor}"
            )


@dataclass(frozen=True)
class PushReply(PackedMessage):
    """What became of a push, and values after it.

    Attributes:
        status: Any.
        version: Updates that the values know of.
        dense: float32 [P], the server's range.
        fresh: float32 [R, W].
    """

    KIND: ClassVar = Kind.PUSH_REPLY
    ARRAYS: ClassVar = {
        "fresh": Array(np.float32, ("num_fresh", "width")),
        "dense": Array(np.float32, ("num_dense",)),
    }

    status: Status
    generation: int
    version: int
    dense: Float32Array
    fresh: Float32Array


@dataclass(frozen=True)
class DenseRequest(PackedMessage):
    """Initial dense values.

    Attributes:
        first: Where the range begins.
        values: float32 [P].
        placement: Version of the placement that says so.
    """

    KIND: ClassVar = Kind.DENSE_REQUEST
    ARRAYS: ClassVar = {
        "values": Array(np.float32, ("num_dense",)),
    }

    generation: int
    first: int
    values: Float32Array
    placement: int = 0


@dataclass(frozen=True)
class DenseReply(PackedMessage):
    """Whether initial dense values were taken, or others were there before.

    Attributes:
        status: DONE, REPEATED (there are values already), ROLLED_BACK, NOT_READY or MOVED.
        differs: The values that are there are others, in their last bits.
    """

    KIND: ClassVar = Kind.DENSE_REPLY
    FLAGS: ClassVar = {"differs": _FLAG_DENSE}

    status: Status
    generation: int
    differs: bool = False


@dataclass(frozen=True)
class MovedRows(PackedMessage):
    """Rows on their way from one server to another, as they lie in memory.

    Attributes:
        next_row: Where the source goes on; -1: it has shown all rows, and tells what changes now.
        num_left: Keys that have changed since they were shown.
        keys: int64 [U].
        records: float32 [U, R], header, values and slots.
    """

    KIND: ClassVar = Kind.MOVED_ROWS
    ARRAYS: ClassVar = {
        "keys": Array(np.int64, ("num_keys",)),
        "records": Array(np.float32, ("num_keys", "width")),
    }
    SLOTS: ClassVar = {"next_row": "dense_version", "num_left": "step"}

    next_row: int
    num_left: int
    keys: Int64Array
    records: Float32Array
