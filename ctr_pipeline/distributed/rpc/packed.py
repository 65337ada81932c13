"""Messages that carry tensors: a fixed header and arrays, little-endian, 8-byte aligned.

Axes: U keys of a message, W values of a row, R keys whose fresh values are asked for, P dense
values.

All messages share one header, so that its layout stands in one place; a field that a kind of
message does not use is 0. Arrays are read as views of the received bytes. Every length is checked
before an array is looked at; what does not fit exactly is refused.
"""

import math
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from ctr_pipeline.distributed.coordination.rounds import BatchId
from ctr_pipeline.distributed.coordination.spec import BATCHES_PER_TASK
from ctr_pipeline.distributed.rpc.failures import MalformedMessage

Float32Array = npt.NDArray[np.float32]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]

_MAGIC = b"CTRP"
_HEADER = struct.Struct("<4sBBBBqqqqqqqqQdqqIIQQQ")
_ALIGNMENT = 8
_LONGEST_AXIS = (1 << 31) - 1
_NO_VERSION = -1
_FLAG_CREATE = 1
_FLAG_BATCH = 2
_FLAG_DENSE = 4
_FLAGS = _FLAG_CREATE | _FLAG_BATCH | _FLAG_DENSE


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


def _encode(header: _Header, *arrays: npt.NDArray[Any]) -> bytes:
    parts: list[bytes | memoryview] = [_HEADER.pack(*header)]
    for array in arrays:
        if array.size:
            flat = array if array.flags.c_contiguous else np.ascontiguousarray(array)
            parts.append(flat.reshape(-1).view(np.uint8).data)
            parts.append(bytes(-flat.nbytes % _ALIGNMENT))
    return b"".join(parts)


def _decode(data: bytes, kind: Kind) -> _Header:
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


def _status(header: _Header) -> Status:
    try:
        return Status(header.status)
    except ValueError:
        raise MalformedMessage(f"status {header.status} is unknown") from None


def _batch(header: _Header) -> BatchId:
    place = (header.epoch, header.task, header.attempt, header.batch)
    if min(place) < 0 or header.batch >= BATCHES_PER_TASK:
        raise MalformedMessage(f"there is no batch (epoch, task, attempt, batch) {place}")
    return BatchId(*place)


def _batch_fields(batch: BatchId) -> dict[str, Any]:
    return {
        "epoch": batch.epoch,
        "task": batch.task,
        "attempt": batch.attempt,
        "batch": batch.batch,
    }


@dataclass(frozen=True)
class PullRequest:
    """Asks for values.

    Attributes:
        generation: Of the caller.
        batch: That they are for; None: not for training.
        worker: Number of the caller.
        create: Make the missing rows; else they read as zeros.
        dense_version: Version of the dense values that the caller has, -1: of none; the server
            sends its own if they are newer. None: do not send them.
        keys: int64 [U], of the server's partitions.
        placement: Version of the placement that says so.
    """

    KIND: ClassVar = Kind.PULL_REQUEST
    generation: int
    batch: BatchId | None
    worker: int
    create: bool
    dense_version: int | None
    keys: Int64Array
    placement: int = 0

    def encode(self) -> bytes:
        """As bytes."""
        flags = _FLAG_CREATE if self.create else 0
        flags |= _FLAG_BATCH if self.batch is not None else 0
        flags |= _FLAG_DENSE if self.dense_version is not None else 0
        header = _Header(
            kind=self.KIND,
            flags=flags,
            generation=self.generation,
            worker=self.worker,
            dense_version=self.dense_version or 0,
            num_keys=len(self.keys),
            placement=self.placement,
            **({} if self.batch is None else _batch_fields(self.batch)),
        )
        return _encode(header, self.keys)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """From bytes; raises MalformedMessage."""
        header, arrays = _decode(data, cls.KIND), _Arrays(data)
        keys = arrays.take(np.int64, header.num_keys)
        arrays.finish()
        return cls(
            generation=header.generation,
            batch=_batch(header) if header.flags & _FLAG_BATCH else None,
            worker=header.worker,
            create=bool(header.flags & _FLAG_CREATE),
            dense_version=header.dense_version if header.flags & _FLAG_DENSE else None,
            keys=keys,
            placement=header.placement,
        )


@dataclass(frozen=True)
class PullReply:
    """Values as of one instant.

    Attributes:
        status: DONE, ROLLED_BACK, NOT_READY, SUPERSEDED or MOVED.
        generation: Of the server.
        version: Updates that the values know of.
        values: float32 [U, W].
        dense: float32, the server's range; None if not sent.
    """

    KIND: ClassVar = Kind.PULL_REPLY
    status: Status
    generation: int
    version: int
    values: Float32Array
    dense: Float32Array | None

    def encode(self) -> bytes:
        """As bytes."""
        dense = np.empty(0, np.float32) if self.dense is None else self.dense
        header = _Header(
            kind=self.KIND,
            status=self.status,
            flags=0 if self.dense is None else _FLAG_DENSE,
            generation=self.generation,
            version=self.version,
            width=self.values.shape[1],
            num_keys=len(self.values),
            num_dense=len(dense),
        )
        return _encode(header, self.values, dense)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """From bytes; raises MalformedMessage."""
        header, arrays = _decode(data, cls.KIND), _Arrays(data)
        values = arrays.take(np.float32, header.num_keys, header.width)
        dense = arrays.take(np.float32, header.num_dense)
        arrays.finish()
        return cls(
            status=_status(header),
            generation=header.generation,
            version=header.version,
            values=values,
            dense=dense if header.flags & _FLAG_DENSE else None,
        )


@dataclass(frozen=True)
class PushRequest:
    """Gradients of one batch.

    Attributes:
        generation: Of the caller.
        batch: That they are of.
        worker: Number of the caller.
        step: Of the batch, from 1; for Adam's bias correction.
        learning_rate_factor: The schedule's.
        num_examples: Of the batch.
        version: Of the values that the gradients were computed with.
        keys: int64 [U], of the server's partitions, each once.
        num_occurrences: int32 [U], in the batch.
        sums: float32 [U, W], gradients summed by key.
        dense: float32 [P], of the server's range.
        fresh_keys: int64 [R], whose values are to come with the reply.
        placement: Version of the placement that says which keys and dense values are the server's.
    """

    KIND: ClassVar = Kind.PUSH_REQUEST
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

    def encode(self) -> bytes:
        """As bytes."""
        header = _Header(
            kind=self.KIND,
            generation=self.generation,
            step=self.step,
            version=self.version,
            worker=self.worker,
            learning_rate_factor=self.learning_rate_factor,
            num_examples=self.num_examples,
            width=self.sums.shape[1],
            num_keys=len(self.keys),
            num_fresh=len(self.fresh_keys),
            num_dense=len(self.dense),
            placement=self.placement,
            **_batch_fields(self.batch),
        )
        return _encode(
            header, self.keys, self.num_occurrences, self.sums, self.dense, self.fresh_keys
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """From bytes; raises MalformedMessage."""
        header, arrays = _decode(data, cls.KIND), _Arrays(data)
        factor = header.learning_rate_factor
        if header.step < 1 or header.num_examples < 1 or not 0 <= factor < math.inf:
            raise MalformedMessage(
                f"step {header.step}, {header.num_examples} examples, learning rate × {factor}"
            )
        keys = arrays.take(np.int64, header.num_keys)
        num_occurrences = arrays.take(np.int32, header.num_keys)
        sums = arrays.take(np.float32, header.num_keys, header.width)
        dense = arrays.take(np.float32, header.num_dense)
        fresh_keys = arrays.take(np.int64, header.num_fresh)
        arrays.finish()
        return cls(
            generation=header.generation,
            batch=_batch(header),
            worker=header.worker,
            step=header.step,
            learning_rate_factor=factor,
            num_examples=header.num_examples,
            version=header.version,
            keys=keys,
            num_occurrences=num_occurrences,
            sums=sums,
            dense=dense,
            fresh_keys=fresh_keys,
            placement=header.placement,
        )


@dataclass(frozen=True)
class PushReply:
    """What became of a push, and values after it.

    Attributes:
        status: Any.
        generation: Of the server.
        version: Updates that the values know of.
        dense: float32 [P], the server's range.
        fresh: float32 [R, W].
    """

    KIND: ClassVar = Kind.PUSH_REPLY
    status: Status
    generation: int
    version: int
    dense: Float32Array
    fresh: Float32Array

    def encode(self) -> bytes:
        """As bytes."""
        header = _Header(
            kind=self.KIND,
            status=self.status,
            generation=self.generation,
            version=self.version,
            width=self.fresh.shape[1],
            num_fresh=len(self.fresh),
            num_dense=len(self.dense),
        )
        return _encode(header, self.fresh, self.dense)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """From bytes; raises MalformedMessage."""
        header, arrays = _decode(data, cls.KIND), _Arrays(data)
        fresh = arrays.take(np.float32, header.num_fresh, header.width)
        dense = arrays.take(np.float32, header.num_dense)
        arrays.finish()
        return cls(
            status=_status(header),
            generation=header.generation,
            version=header.version,
            dense=dense,
            fresh=fresh,
        )


@dataclass(frozen=True)
class DenseRequest:
    """Initial dense values.

    Attributes:
        generation: Of the caller.
        first: Where the range begins.
        values: float32 [P].
        placement: Version of the placement that says so.
    """

    KIND: ClassVar = Kind.DENSE_REQUEST
    generation: int
    first: int
    values: Float32Array
    placement: int = 0

    def encode(self) -> bytes:
        """As bytes."""
        header = _Header(
            kind=self.KIND,
            generation=self.generation,
            first=self.first,
            num_dense=len(self.values),
            placement=self.placement,
        )
        return _encode(header, self.values)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """From bytes; raises MalformedMessage."""
        header, arrays = _decode(data, cls.KIND), _Arrays(data)
        values = arrays.take(np.float32, header.num_dense)
        arrays.finish()
        return cls(header.generation, header.first, values, header.placement)


@dataclass(frozen=True)
class DenseReply:
    """Whether initial dense values were taken, or others were there before.

    Attributes:
        status: DONE, REPEATED (there are values already), ROLLED_BACK, NOT_READY or MOVED.
        generation: Of the server.
        differs: The values that are there are others, in their last bits.
    """

    KIND: ClassVar = Kind.DENSE_REPLY
    status: Status
    generation: int
    differs: bool = False

    def encode(self) -> bytes:
        """As bytes."""
        flags = _FLAG_DENSE if self.differs else 0
        return _encode(
            _Header(kind=self.KIND, status=self.status, flags=flags, generation=self.generation)
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """From bytes; raises MalformedMessage."""
        header, arrays = _decode(data, cls.KIND), _Arrays(data)
        arrays.finish()
        return cls(
            status=_status(header),
            generation=header.generation,
            differs=bool(header.flags & _FLAG_DENSE),
        )


@dataclass(frozen=True)
class MovedRows:
    """Rows on their way from one server to another, as they lie in memory.

    Attributes:
        next_row: Where the source goes on; -1: it has shown all rows, and tells what changes now.
        num_left: Keys that have changed since they were shown.
        keys: int64 [U].
        records: float32 [U, R], header, values and slots.
    """

    KIND: ClassVar = Kind.MOVED_ROWS
    next_row: int
    num_left: int
    keys: Int64Array
    records: Float32Array

    def encode(self) -> bytes:
        """As bytes."""
        header = _Header(
            kind=self.KIND,
            dense_version=self.next_row,
            step=self.num_left,
            width=self.records.shape[1],
            num_keys=len(self.keys),
        )
        return _encode(header, self.keys, self.records)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """From bytes; raises MalformedMessage."""
        header, arrays = _decode(data, cls.KIND), _Arrays(data)
        keys = arrays.take(np.int64, header.num_keys)
        records = arrays.take(np.float32, header.num_keys, header.width)
        arrays.finish()
        return cls(header.dense_version, header.step, keys, records)
