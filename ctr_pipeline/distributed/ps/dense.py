"""A parameter server's range of the dense parameters.

The range may consist of pieces that came from different servers, see `applied_batches`; each is
updated by itself. Optimizers work value by value (those that do not are never divided), so pieces
change no result.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ctr_pipeline.embeddings.arrays import Float32Array
from ctr_pipeline.embeddings.cut_storage import CutStorage
from ctr_pipeline.embeddings.dense import DenseParameters
from ctr_pipeline.embeddings.dense_log import restore_range, save_range
from ctr_pipeline.embeddings.log_chain import CutFile
from ctr_pipeline.embeddings.optimizers import Slot, rule_of
from ctr_pipeline.specs.optimizer import OptimizerSpec


@dataclass(frozen=True)
class DenseCopy:
    """A range as it was at one instant.

    Attributes:
        values: float32 [n].
        slots: As `DenseParameters.slots`.
    """

    values: Float32Array
    slots: Float32Array


class DenseRange:
    """Dense parameters `first` to before `last` with their optimizer state.

    Args:
        pieces: Consecutive: places from the first to before the second.
        values: float32 [n], the initial values.

    Attributes:
        bounds: Bounds of each piece, counted from `first`.
    """

    def __init__(
        self, pieces: Sequence[tuple[int, int]], optimizer: OptimizerSpec, values: Float32Array
    ) -> None:
        self.first, self.last = pieces[0][0], pieces[-1][1]
        self._optimizer = optimizer
        self.bounds = tuple((low - self.first, high - self.first) for low, high in pieces)
        self._pieces = tuple(
            DenseParameters(values[low:high], optimizer) for low, high in self.bounds
        )

    @classmethod
    def restored(
        cls,
        pieces: Sequence[tuple[int, int]],
        optimizer: OptimizerSpec,
        storage: CutStorage,
        files: Sequence[CutFile],
        num_dense: int,
    ) -> "DenseRange":
        """The range as a cut has it.

        Raises:
            CheckpointError: A file is missing, damaged or of other parameters.
        """
        found = cls(pieces, optimizer, np.zeros(pieces[-1][1] - pieces[0][0], np.float32))
        for (first, last), piece in zip(pieces, found._pieces, strict=True):
            if first < last:
                restore_range(piece, storage, files, first=first, num_dense=num_dense)
        return found

    def __len__(self) -> int:
        return self.last - self.first

    @property
    def pieces(self) -> tuple[tuple[int, int], ...]:
        """Places of each, from the first to before the second."""
        return tuple((low + self.first, high + self.first) for low, high in self.bounds)

    def records(self) -> Float32Array:
        """Values and state of each piece after the other, float32; a copy."""
        return np.concatenate(
            [np.concatenate([piece.values, piece.slots]) for piece in self._pieces]
        )

    def joined(self, pieces: Sequence[tuple[int, int]], records: Float32Array) -> "DenseRange":
        """The range that this one and another one, which touches it, make.

        Args:
            records: The `records` of the other server.

        Raises:
            ValueError: The records are not of these pieces.
        """
        own = dict(zip(self.pieces, self._pieces, strict=True))
        both = sorted(piece for piece in {*self.pieces, *pieces} if piece[0] < piece[1])
        length = sum(high - low for low, high in both)
        found = DenseRange(both or self.pieces, self._optimizer, np.zeros(length, np.float32))
        place = 0
        for bounds in pieces:
            target = DenseParameters(np.zeros(bounds[1] - bounds[0], np.float32), self._optimizer)
            for part in (target.values, target.slots):
                part[:] = records[place : place + len(part)]
                place += len(part)
            own[bounds] = target
        if place != len(records):
            raise ValueError(f"{len(records)} values, not {place}")
        for bounds, piece in zip(found.pieces, found._pieces, strict=True):
            piece.values[:], piece.slots[:] = own[bounds].values, own[bounds].slots
        return found

    def copy_values(self) -> Float32Array:
        """The values, float32 [n], which later updates leave as they are."""
        return np.concatenate([piece.values for piece in self._pieces])

    def update(
        self, number: int, gradient: Float32Array, *, step: int, learning_rate_factor: float
    ) -> None:
        """Moves the values of one piece by one step.

        Args:
            gradient: float32, of the piece.
            step: Global step, from 1.
            learning_rate_factor: The schedule's factor.
        """
        if len(gradient):
            self._pieces[number].update(
                gradient, step=step, learning_rate_factor=learning_rate_factor
            )

    def copy(self) -> DenseCopy:
        """Values and state as one range."""
        slots: list[Float32Array] = []
        places = [0] * len(self._pieces)
        for slot in rule_of(self._optimizer).slots:
            for number, piece in enumerate(self._pieces):
                size = 1 if slot is Slot.ROW_ACCUMULATOR else len(piece.values)
                slots.append(piece.slots[places[number] : places[number] + size])
                places[number] += size
        return DenseCopy(
            self.copy_values(), np.concatenate(slots) if slots else np.empty(0, np.float32)
        )


def save_copy(
    storage: CutStorage,
    copy: DenseCopy,
    optimizer: OptimizerSpec,
    *,
    cut: int,
    first: int,
    num_dense: int,
) -> tuple[CutFile, ...]:
    """Writes a range durably; no file for an empty one.

    Raises:
        RunFolderError: The disk is full or the folder cannot be written.
    """
    if not len(copy.values):
        return ()
    file = save_range(
        storage, copy.values, copy.slots, optimizer, cut=cut, first=first, num_dense=num_dense
    )
    return (file,)
