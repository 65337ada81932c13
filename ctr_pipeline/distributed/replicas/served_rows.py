"""Embedding rows on servers, as the trainer of one replica sees them.

Axes: B batch, F fields, U distinct keys of a batch in the order of the servers that own them,
W values of a row, A the leading ones, D the others.
"""

import logging
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import IO, TypeVar

import numpy as np
from numpy.typing import NDArray

from ctr_pipeline.distributed.coordination.codec import encode
from ctr_pipeline.distributed.coordination.messages import Empty
from ctr_pipeline.distributed.coordination.placement import Placement
from ctr_pipeline.distributed.coordination.row_steps import Made
from ctr_pipeline.distributed.ps.merging import RowGradients, merge_rows
from ctr_pipeline.distributed.replicas.messages import (
    EnterWorld,
    EvictRows,
    LeaveWorld,
    ReadSavedRows,
    RestoreRows,
    RowPull,
    RowsEvicted,
    RowShare,
    RowsHeld,
    RowValues,
    SavedRows,
)
from ctr_pipeline.distributed.replicas.row_servers import RowServers
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.failures import CallRefused, PeerUnavailable
from ctr_pipeline.distributed.worker import value_kernels
from ctr_pipeline.distributed.worker.batch_keys import PreparedKeys, divide_keys, sum_gradients
from ctr_pipeline.embeddings.arrays import Float32Array, empty_aligned
from ctr_pipeline.embeddings.layout import RowLayout
from ctr_pipeline.embeddings.row_file import BLOCK_ROWS, describe_rows, save_blocks
from ctr_pipeline.embeddings.unique import BatchPreparer
from ctr_pipeline.errors import CtrPipelineError
from ctr_pipeline.kernels.ranges import RangeRunner
from ctr_pipeline.specs.table import TableSpec
from ctr_pipeline.training.replicas import Pace, Share, WorldChanged

_LOGGER = logging.getLogger(__name__)
_SHARE_SECONDS = 3600.0
"""The watch of the world ends a call much sooner, when a member is lost."""
_RESTORE_SECONDS = 3600.0
_PROBE_SECONDS = 5.0
_RETRY_SECONDS = 0.2
_PATIENCE_SECONDS = 600.0
"""Whoever started the servers replaces one that hangs, or a worker that does not reach one, sooner.
"""

_FINAL = frozenset({"no_room", "not_finite", "mismatch", "malformed", "failed"})
"""Refusals that another world would meet as well."""

T = TypeVar("T")


@dataclass
class ServedBatch:
    """The keys of a batch, and whether missing rows are made."""

    keys: PreparedKeys
    creates: bool = False


@dataclass(frozen=True)
class Position:
    """Where a replica is, in what its parameters come from.

    Attributes:
        lineage: Name of the restore; those of later worlds sort after those of earlier ones.
        made: Its last step.
    """

    lineage: str
    made: Made

    def __str__(self) -> str:
        return f"{self.lineage}/{self.made.step:020d}/{self.made.world}"

    @classmethod
    def of(cls, text: str) -> "Position":
        """The position of such a text."""
        lineage, step, world = text.split("/")
        return cls(lineage, Made(int(step), int(world)))


def gradients_by_owner(
    keys: PreparedKeys, gradients: tuple[NDArray[np.float32], NDArray[np.float32]], width: int
) -> list[RowGradients]:
    """The gradients of each key of a batch, by the server or replica that owns it.

    Args:
        keys: The keys.
        gradients: float32 [B, F, A] and [B, F, D].
        width: Values of a row.
    """
    sums_UW = sum_gradients(keys, gradients, width, RangeRunner(1))
    return [
        RowGradients(
            keys.keys_U[first:last], keys.num_occurrences_U[first:last], sums_UW[first:last]
        )
        for first, last in pairwise(keys.bounds)
    ]


class ServedRows:
    """The `ServedRows` of one replica, over calls to the servers.

    Args:
        find_servers: Addresses, `host:port`, by server; empty where one is not there.
        access: Secrets of the job, as of role `worker`.
        tables: The tables of the model.
        position_tables: Table of each field.
        layout: The layout of the rows.
        seed: Seed of initial values.
        is_stopping: Whether servers that are not there are not to be waited for any more.
    """

    def __init__(
        self,
        find_servers: Callable[[], Sequence[str]],
        access: Access,
        *,
        tables: Sequence[TableSpec],
        position_tables: Sequence[int],
        layout: RowLayout,
        seed: int,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self.width = layout.width
        self._servers = RowServers(find_servers, access)
        self._layout = layout
        self._make = describe_rows(layout, tables, seed)
        self._preparer = BatchPreparer(tables, position_tables)
        self._is_stopping = is_stopping
        number = self._servers.number
        self._placement = Placement(0, tuple(range(number)), ((0, 0),) * number)
        self._position = Position("", Made(0, 0))
        self._world = 0
        # Address of a server that does not answer, and since when.
        self._unanswered: tuple[str, float] | None = None

    def unreachable(self, after_seconds: float) -> tuple[str, ...]:
        """Addresses of servers that have not answered for so long; in any thread."""
        unanswered = self._unanswered
        if unanswered is None or time.monotonic() - unanswered[1] <= after_seconds:
            return ()
        return (unanswered[0],)

    @property
    def position(self) -> str:
        """Where this replica is; the texts of later ones sort after those of earlier ones."""
        return str(self._position)

    def adopt(self, position: str) -> None:
        """This replica has the dense parameters of another one, or of a checkpoint."""
        self._position = Position.of(position)

    def close(self) -> None:
        """Ends all connections."""
        self._servers.close()

    def is_held(self) -> bool:
        """Whether the servers can go on from where this replica is; waits until all answer.

        Raises:
            WorldChanged: They are not to be waited for any more.
            PeerUnavailable: They did not come back in time.
        """
        until = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                self._servers.look_up()
                # The world that it comes from is over for a while yet.
                held = self._servers.call_all(
                    "State", Empty(), RowsHeld, _PROBE_SECONDS, ends_with_world=False
                )
            except (PeerUnavailable, CallRefused) as error:
                self._note_unanswered(error)
                if self._is_stopping():
                    raise WorldChanged(str(error)) from None
                if time.monotonic() > until:
                    raise
                time.sleep(_RETRY_SECONDS)
                continue
            self._unanswered = None
            ours = self._position
            return all(one.lineage == ours.lineage and ours.made in one.steps for one in held)

    def _note_unanswered(self, error: CtrPipelineError) -> None:
        """Notes which server cannot be reached; one that is busy, as while it restores, can be."""
        place = error.place if isinstance(error, PeerUnavailable) else None
        if place is None or self._servers.answers(place):
            self._unanswered = None
        elif self._unanswered is None or self._unanswered[0] != place:
            self._unanswered = place, time.monotonic()

    def restore(self, world: int, step: int) -> None:
        """Has all servers take their rows from the checkpoint of a step; 0: from none.

        Raises:
            WorldChanged: A server does not answer.
        """
        lineage = f"{world:012d}-{secrets.token_hex(8)}"
        with _voiding():
            self._servers.call_all("Restore", RestoreRows(lineage, step), Empty, _RESTORE_SECONDS)
        self._position = Position(lineage, Made(step, 0))

    def enter(self, world: int, size: int) -> None:
        """Enters a world whose members have all come to the position of this replica.

        Raises:
            WorldChanged: A server cannot go on from there.
        """
        request = EnterWorld(self._position.lineage, world, size, self._position.made)
        with _voiding():
            self._servers.call_all("Enter", request, Empty)
        self._world = world

    def leave(self) -> None:
        """This replica cannot go on in its world: nobody is to wait for it there."""
        world, self._world = self._world, 0
        if not world:
            return
        try:
            self._servers.call_all(
                "Leave", LeaveWorld(world), Empty, _PROBE_SECONDS, ends_with_world=False
            )
        except (PeerUnavailable, CallRefused) as error:
            _LOGGER.info("Not all servers are told that world %d is over: %s", world, error)

    def end_calls(self) -> None:
        """Ends calls that wait for other members; in any thread."""
        self._servers.end_calls()

    def prepare(self, ids_BF: NDArray[np.int32], num_valid: int) -> ServedBatch:
        """As `RowReader.prepare`."""
        batch = self._preparer.prepare(ids_BF, num_valid)
        return ServedBatch(divide_keys(batch, self._placement, self._servers.number))

    def locate(self, prepared: ServedBatch, *, create: bool) -> None:
        """Notes whether the servers are to make missing rows."""
        prepared.creates = create

    def gather_parts(
        self, prepared: ServedBatch, num_leading: int
    ) -> tuple[Float32Array, Float32Array]:
        """As `RowReader.gather_parts`.

        Raises:
            WorldChanged: A server cannot answer.
        """
        keys, batch = prepared.keys, prepared.keys.batch
        step = self._position.made.step
        values_UW = np.empty((len(keys.keys_U), self.width), np.float32)
        places = [
            (server, first, last)
            for server, (first, last) in enumerate(pairwise(keys.bounds))
            if first < last
        ]
        pulls = [
            (server, RowPull(self._world, step, prepared.creates, keys.keys_U[first:last]).encode())
            for server, first, last in places
        ]
        with _voiding():
            replies = self._servers.call("Pull", pulls)
        for (_, first, last), reply in zip(places, replies, strict=True):
            values_UW[first:last] = RowValues.decode(reply).values
        leading = empty_aligned((*batch.shape, num_leading))
        trailing = empty_aligned((*batch.shape, self.width - num_leading))
        num_places = len(batch.inverse_P)
        value_kernels.spread_values(
            values_UW,
            keys.positions_U,
            batch.inverse_P,
            leading.reshape(num_places, num_leading),
            trailing.reshape(num_places, self.width - num_leading),
            0,
            num_places,
        )
        return leading, trailing

    def share(self, pace: Pace, rank: int, shares: Sequence[Share]) -> None:
        """Brings gradients to the servers, and waits until they have those of all members.

        Raises:
            WorldChanged: Some server cannot have them.
        """
        by_share = [
            gradients_by_owner(share.prepared.keys, share.gradients, self.width) for share in shares
        ]
        num_examples = sum(share.num_examples for share in shares)
        requests = []
        for server in range(self._servers.number):
            rows = (
                merge_rows([sums[server] for sums in by_share])
                if shares
                else RowGradients.none(self.width)
            )
            request = RowShare(
                world=self._world,
                step=pace.step,
                total_step=pace.total_step,
                rank=rank,
                learning_rate_factor=pace.learning_rate_factor,
                num_examples=num_examples,
                keys=rows.keys,
                num_occurrences=rows.num_occurrences,
                sums=rows.sums,
            )
            requests.append((server, request.encode()))
        with _voiding():
            self._servers.call("Share", requests, _SHARE_SECONDS)

    def update(
        self,
        prepared: ServedBatch,
        gradients: tuple[NDArray[np.float32], NDArray[np.float32]],
        *,
        step: int,
        learning_rate_factor: float,
        num_examples: int,
    ) -> None:
        """As `EmbeddingLookup.update`, in a world of this replica alone.

        Raises:
            WorldChanged: A server cannot have the gradients.
        """
        following = self._position.made.step + 1
        dense: Float32Array = np.empty(0, np.float32)
        share = Share(num_examples, 0.0, dense, prepared, gradients)
        self.share(Pace(following, step, learning_rate_factor), 0, [share])
        self.count_step(following)

    def count_step(self, step: int) -> None:
        """This replica has made a step in its world."""
        self._position = Position(self._position.lineage, Made(step, self._world))

    def save(self, file: IO[bytes]) -> None:
        """Writes all rows as `EmbeddingStore.save` does; the first replica alone calls it.

        No other one can make a step meanwhile.

        Raises:
            WorldChanged: A server cannot answer, or has gone on without this replica.
        """
        num_rows = [
            self._read_saved(server, 0, 0, with_records=False).num_rows
            for server in range(self._servers.number)
        ]
        save_blocks(
            file,
            sum(num_rows),
            (block.keys for block in self._saved_blocks(num_rows, with_records=False)),
            (block.records for block in self._saved_blocks(num_rows, with_records=True)),
            self._make,
        )

    def evict(self, oldest_step: int) -> int:
        """As `SavedRows.evict`; of several replicas that ask, one is told how many there were.

        Raises:
            WorldChanged: A server cannot answer.
        """
        request = EvictRows(self._world, self._position.made.step, oldest_step)
        with _voiding():
            return sum(one.number for one in self._servers.call_all("Evict", request, RowsEvicted))

    def _saved_blocks(self, num_rows: Sequence[int], *, with_records: bool) -> Iterator[SavedRows]:
        for server, end in enumerate(num_rows):
            for first in range(0, end, BLOCK_ROWS):
                most = min(BLOCK_ROWS, end - first)
                block = self._read_saved(server, first, most, with_records=with_records)
                if len(block.keys) != most:
                    raise WorldChanged(f"server {server} has lost rows meanwhile")
                yield block

    def _read_saved(self, server: int, first: int, most: int, *, with_records: bool) -> SavedRows:
        request = ReadSavedRows(
            self._world, self._position.made.step, first, most, with_records=with_records
        )
        with _voiding():
            (reply,) = self._servers.call("ReadSaved", [(server, encode(request))])
        return SavedRows.decode(reply)


@contextmanager
def _voiding() -> Iterator[None]:
    """A server that cannot answer ends the world; what only a person can mend is raised as it is.

    Raises:
        WorldChanged: A server is gone, or has gone on without this replica.
    """
    try:
        yield
    except PeerUnavailable as error:
        raise WorldChanged(str(error)) from None
    except CallRefused as error:
        if error.code in _FINAL:
            raise
        raise WorldChanged(str(error)) from None
