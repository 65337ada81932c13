"""Which batches a parameter server has applied, so that none is applied twice.

What a server holds consists of *units*: each of its partitions, and each piece of its dense range.
Usually all of them have seen the same batches. After a restore under another number of servers they
come from servers that had not: each unit then keeps the bitmaps of the server it came from, and a
batch is applied to those units that do not have it yet.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ctr_pipeline.distributed.coordination.messages import (
    BitmapScope,
    HoldReply,
    RestoreRequest,
    TaskBitmap,
)
from ctr_pipeline.distributed.coordination.placement import (
    Placement,
    balanced_placement,
)
from ctr_pipeline.distributed.coordination.rounds import BatchId
from ctr_pipeline.distributed.coordination.spec import JobSpec

BoolArray = npt.NDArray[np.bool_]
Int32Array = npt.NDArray[np.int32]
_MaskArray = npt.NDArray[np.uint64]
_TaskOfEpoch = tuple[int, int]


@dataclass(frozen=True)
class Units:
    """What a server's bitmaps are kept for, partitions before pieces.

    Attributes:
        partitions: Partitions of its rows, ascending.
        pieces: Pieces of its dense range: consecutive places from the first to before the second.
    """

    partitions: tuple[int, ...]
    pieces: tuple[tuple[int, int], ...]

    def __len__(self) -> int:
        return len(self.partitions) + len(self.pieces)

    def all(self) -> tuple[int | tuple[int, int], ...]:
        """Each by what names it."""
        return (*self.partitions, *self.pieces)

    def are_empty(self) -> BoolArray:
        """Which of them are pieces of no dense parameters, bool [units]."""
        return np.array([False] * len(self.partitions) + [low == high for low, high in self.pieces])


class AppliedBatches:
    """Bitmaps of the batches that were applied, and the newest attempt at each task.

    Only the newest epoch is kept: an epoch ends when all its batches are applied everywhere.
    """

    def __init__(self, units: Units) -> None:
        self.units = units
        # Of tasks whose bitmaps are alike everywhere, as almost all are, and of the others by unit.
        self._masks: dict[_TaskOfEpoch, int] = {}
        self._masks_by_unit: dict[_TaskOfEpoch, _MaskArray] = {}
        self._attempts: dict[_TaskOfEpoch, int] = {}
        self._epoch = 0

    @classmethod
    def restored(
        cls, spec: JobSpec, placement: Placement, server: int, request: RestoreRequest
    ) -> "AppliedBatches":
        """The bitmaps that a server begins with.

        Args:
            placement: The placement now.
            request: Names the servers that took the cut and their bitmaps.
        """
        first, last = placement.range_of(server)
        before = balanced_placement(
            replace(spec, num_parameter_servers=max(len(request.bitmaps), 1))
        )
        ranges = request.ranges or before.dense
        cuts = {first, last, *(place for bounds in ranges for place in bounds)}
        for bitmaps in request.bitmaps:
            for bitmap in bitmaps:
                if bitmap.scope is not None:
                    cuts.update(place for bounds in bitmap.scope.dense for place in bounds)
        edges = sorted(place for place in cuts if first <= place <= last)
        pieces = tuple(pairwise(edges)) or ((first, last),)
        applied = cls(Units(placement.partitions_of(server), pieces))
        for unit, source in enumerate(applied._sources(request, before.owners, ranges)):
            for bitmap in request.bitmaps[source] if request.bitmaps else ():
                if applied._covers(bitmap.scope, unit):
                    masks = applied._make_masks_by_unit((bitmap.epoch, bitmap.task))
                    masks[unit] |= np.uint64(bitmap.mask)
        for task in list(applied._masks_by_unit):
            applied._unite(task)
        epochs = [epoch for epoch, _ in (*applied._masks, *applied._masks_by_unit)]
        applied._begin_epoch(max(epochs, default=0))
        return applied

    def regrouped(self, units: Units, incoming: HoldReply | None) -> "AppliedBatches":
        """The bitmaps of other units: those kept as they are, new ones as another server had them.

        Args:
            units: Units that the server holds from now on.
            incoming: Bitmaps of the server that new units come from; None if there are none.
        """
        found = AppliedBatches(units)
        places = {unit: place for place, unit in enumerate(self.units.all())}
        own = np.array([places.get(unit, -1) for unit in units.all()], np.int64)
        is_new = (own < 0) | units.are_empty()
        arriving: dict[_TaskOfEpoch, list[TaskBitmap]] = {}
        for bitmap in () if incoming is None else incoming.bitmaps:
            arriving.setdefault((bitmap.epoch, bitmap.task), []).append(bitmap)
        for task in {*self._masks, *self._masks_by_unit, *arriving}:
            before = self._masks_by_unit.get(task)
            alike = self._masks.get(task, 0)
            bitmaps = arriving.get(task, ())
            masks = np.full(len(units), alike, np.uint64)
            if before is not None:
                masks = before[np.maximum(own, 0)]
            if incoming is not None:
                masks[is_new] = 0
            for bitmap in bitmaps:
                if bitmap.scope is None:
                    masks[is_new] |= np.uint64(bitmap.mask)
                    continue
                for unit in np.flatnonzero(is_new).tolist():
                    if found._covers(bitmap.scope, unit):
                        masks[unit] |= np.uint64(bitmap.mask)
            found._masks_by_unit[task] = masks
            found._unite(task)
        found._attempts = dict(self._attempts)
        for epoch, number, attempt in () if incoming is None else incoming.attempts:
            known = found._attempts.get((epoch, number), 0)
            found._attempts[epoch, number] = max(known, attempt)
        found._begin_epoch(max(self._epoch, 0 if incoming is None else incoming.epoch))
        return found

    @property
    def epoch(self) -> int:
        """The newest one that has begun here."""
        return self._epoch

    @property
    def attempts(self) -> tuple[tuple[int, int, int], ...]:
        """The newest attempt at each task: epoch, task, attempt."""
        return tuple((*task, attempt) for task, attempt in self._attempts.items())

    def begin(self, batch: BatchId) -> bool:
        """Notes an attempt; False if a later one, or a later epoch, has begun: refuse it."""
        if batch.epoch > self._epoch:
            self._begin_epoch(batch.epoch)
        task = (batch.epoch, batch.task)
        if batch.epoch < self._epoch or batch.attempt < self._attempts.get(task, 0):
            return False
        self._attempts[task] = batch.attempt
        return True

    def missing_units(self, batch: BatchId) -> BoolArray:
        """Which units do not have the batch yet, bool [units]."""
        task = (batch.epoch, batch.task)
        masks = self._masks_by_unit.get(task)
        if masks is None:
            is_missing = not self._masks.get(task, 0) >> batch.batch & 1
            return np.full(len(self.units), is_missing)
        missing: BoolArray = (masks >> np.uint64(batch.batch)) & np.uint64(1) == 0
        return missing

    def missing_keys(self, missing: BoolArray, partitions_U: Int32Array) -> BoolArray:
        """Whether the partition of each key is among the missing units, bool [U].

        Args:
            missing: bool [units], as `missing_units` says.
            partitions_U: int32, of the server's partitions.
        """
        num_partitions = len(self.units.partitions)
        is_missing = np.zeros(max(self.units.partitions, default=0) + 1, np.bool_)
        is_missing[list(self.units.partitions)] = missing[:num_partitions]
        chosen_U: BoolArray = is_missing[partitions_U]
        return chosen_U

    def missing_pieces(self, missing: BoolArray) -> BoolArray:
        """Whether each piece of the dense range is among the missing units."""
        return missing[len(self.units.partitions) :]

    def mark(self, batch: BatchId) -> None:
        """Notes that all units have the batch now."""
        task = (batch.epoch, batch.task)
        masks = self._masks_by_unit.get(task)
        if masks is None:
            self._masks[task] = self._masks.get(task, 0) | 1 << batch.batch
        else:
            masks |= np.uint64(1 << batch.batch)
            self._unite(task)

    def copy(self) -> "AppliedBatches":
        """The bitmaps as they are now."""
        found = AppliedBatches(self.units)
        found._masks = dict(self._masks)
        found._masks_by_unit = {task: masks.copy() for task, masks in self._masks_by_unit.items()}
        found._epoch = self._epoch
        return found

    def to_messages(self) -> tuple[TaskBitmap, ...]:
        """The bitmaps as they stand in a cut."""
        alike = [TaskBitmap(*task, mask, None) for task, mask in self._masks.items() if mask]
        others = [
            TaskBitmap(*task, mask, scope)
            for task, masks in self._masks_by_unit.items()
            for mask, scope in self._scopes(masks)
            if mask
        ]
        return tuple(sorted((*alike, *others), key=lambda bitmap: (bitmap.epoch, bitmap.task)))

    def _sources(
        self,
        request: RestoreRequest,
        owners: tuple[int, ...],
        ranges: tuple[tuple[int, int], ...],
    ) -> Iterable[int]:
        """The server that each unit comes from."""
        named = {files.partition: files.bitmaps_of for files in request.partitions}
        for partition in self.units.partitions:
            # One without rows may not be named; its owner was the one that the job's rule says.
            yield named.get(partition, owners[partition])
        for begin, _ in self.units.pieces:
            holders = [number for number, (low, high) in enumerate(ranges) if low <= begin < high]
            # An empty piece takes anyone's bitmaps: there is nothing to apply to it.
            yield holders[0] if holders else 0

    def _scopes(self, masks: _MaskArray) -> Iterable[tuple[int, BitmapScope]]:
        """Each distinct mask with the units that have it."""
        num_partitions = len(self.units.partitions)
        for mask in np.unique(masks):
            chosen = [int(unit) for unit in np.flatnonzero(masks == mask)]
            scope = BitmapScope(
                partitions=tuple(
                    self.units.partitions[unit] for unit in chosen if unit < num_partitions
                ),
                dense=tuple(
                    self.units.pieces[unit - num_partitions]
                    for unit in chosen
                    if unit >= num_partitions
                ),
            )
            yield int(mask), scope

    def _covers(self, scope: BitmapScope | None, unit: int) -> bool:
        if scope is None:
            return True
        if unit < len(self.units.partitions):
            return self.units.partitions[unit] in scope.partitions
        begin, _ = self.units.pieces[unit - len(self.units.partitions)]
        return any(low <= begin < high for low, high in scope.dense)

    def _make_masks_by_unit(self, task: _TaskOfEpoch) -> _MaskArray:
        if task not in self._masks_by_unit:
            self._masks_by_unit[task] = np.zeros(len(self.units), np.uint64)
        return self._masks_by_unit[task]

    def _unite(self, task: _TaskOfEpoch) -> None:
        """Keeps one mask for all units, once they are alike."""
        masks = self._masks_by_unit[task]
        if (masks == masks[0]).all():
            self._masks[task] = int(masks[0])
            del self._masks_by_unit[task]

    def _begin_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        self._masks = {task: mask for task, mask in self._masks.items() if task[0] >= epoch}
        self._masks_by_unit = {
            task: masks for task, masks in self._masks_by_unit.items() if task[0] >= epoch
        }
        self._attempts = {
            task: attempt for task, attempt in self._attempts.items() if task[0] >= epoch
        }
