"""The interface between the trainer and the other replicas of its model.

Each replica holds all parameters. In a step each computes the gradients of a batch of its own, and
all apply the same total. `distributed.replicas` implements the interface between processes.

Axes: U distinct keys, W values of a row, P dense parameters, B batch, F fields, A leading values
of a row, D the others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ctr_pipeline.training.lookup import SavedRows

Floats = NDArray[np.float32]


class ReplicatedRows(SavedRows, Protocol):
    """Embedding rows of one replica, updated by the gradients of all."""

    def load(self, file: IO[bytes]) -> None:
        """Replaces all rows with the ones that `save` wrote."""

    def read_rows(self, keys_U: NDArray[np.int64], *, create: bool) -> Floats:
        """Values by key; makes the missing rows if asked to."""

    def apply_gradients(
        self,
        keys_U: NDArray[np.int64],
        sums_UW: Floats,
        num_occurrences_U: NDArray[np.int32],
        *,
        step: int,
        learning_rate_factor: float,
        num_examples: int,
    ) -> int:
        """Updates rows by gradients that are summed by key; returns how many have no row."""


@runtime_checkable
class ServedRows(SavedRows, Protocol):
    """Embedding rows on servers, which all replicas share; each replica holds only its position.

    Any call of the trainer may raise `WorldChanged`, where a server cannot answer.
    """

    @property
    def position(self) -> str:
        """Where this replica is; the texts of later positions sort after those of earlier ones."""

    def adopt(self, position: str) -> None:
        """This replica has the dense parameters of another one, or of a checkpoint."""

    def is_held(self) -> bool:
        """Whether the servers can go on from where this replica is; waits until all answer."""

    def restore(self, world: int, step: int) -> None:
        """Has all servers take their rows from the checkpoint of a step; 0: from none."""

    def enter(self, world: int, size: int) -> None:
        """Enters a world whose members have all come to the position of this replica."""

    def leave(self) -> None:
        """This replica cannot go on in its world: nobody is to wait for it there."""


class WorldChanged(Exception):  # noqa: N818  an event
    """The replicas that train together are about to change; nothing was applied."""


@dataclass(frozen=True)
class Pace:
    """What a step is to the optimizers.

    Attributes:
        step: The step.
        total_step: The step, counted with those before this training.
        learning_rate_factor: On every learning rate.
    """

    step: int
    total_step: int
    learning_rate_factor: float


@dataclass(frozen=True)
class Share:
    """What one replica brings to a step: of one batch.

    Attributes:
        num_examples: Rows of the batch.
        loss_sum: Weighted sum of the rows' logloss.
        parameters_P: Gradient of the batch's mean loss, its norm not bounded.
        prepared: What `EmbeddingLookup.prepare` made of the ids.
        gradients: Gradients of the loss sum, [B, F, A] and [B, F, D].
    """

    num_examples: int
    loss_sum: float
    parameters_P: Floats
    prepared: Any
    gradients: tuple[Floats, Floats]


@dataclass(frozen=True)
class Total:
    """The sum over all replicas, which is the same bits for each of them.

    Attributes:
        num_examples: Rows of all of them.
        loss_sum: Weighted sum of the rows' logloss.
        parameters_P: Gradient of the mean loss over all rows, its norm not bounded.
        keys_U: int64, each once.
        num_occurrences_U: int32, of each key in all batches.
        sums_UW: Gradients of the loss sum by key.
    """

    num_examples: int
    loss_sum: float
    parameters_P: Floats
    keys_U: NDArray[np.int64]
    num_occurrences_U: NDArray[np.int32]
    sums_UW: Floats


@dataclass(frozen=True)
class Joined:
    """The world that this replica belongs to from now on.

    Attributes:
        version: Number of the world.
        rank: Place of this replica among its members, by age; the first one writes the files.
        size: Number of members.
        state: The parameters of a member that is further, as its `save_state` wrote them; None:
            those of this replica are the newest.
        is_first: No member holds parameters yet: all begin from the newest checkpoint, if there is
            one.
    """

    version: int
    rank: int
    size: int
    state: bytes | None
    is_first: bool


class Replicas(Protocol):
    """The other replicas, as the trainer sees them. Every call is made by the trainer's thread."""

    def join(self, held: str, save_state: Callable[[], bytes]) -> Joined:
        """Waits for the next world.

        Args:
            held: What this replica has, as of `describe_held`; empty: nothing yet.
            save_state: Called, in another thread, if another member needs the parameters. They do
                not change then, as a step waits for all members.
        """

    def require_unchanged(self) -> None:
        """Raises `WorldChanged` if other replicas wait to join, or some are lost."""

    def add(self, pace: Pace, shares: Sequence[Share]) -> Total:
        """Waits for the shares of all replicas in a step; raises `WorldChanged`.

        Rows on servers are updated by this; the total is of the others.

        Args:
            shares: One for each batch that was trained here; none if others have the last of an
                epoch.
        """

    def meet(self, tag: str, text: str = "") -> tuple[str, ...]:
        """Waits until all replicas have come to the same place; raises `WorldChanged`.

        Returns:
            What each of them brought, by rank.
        """


def describe_held(step: int, checksum: int, *, awaits_validation: bool) -> str:
    """What a replica holds, in words that compare: those of whoever is further are greater.

    Args:
        step: Its last step.
        checksum: Checksum of the parameters.
        awaits_validation: Whether that step ended an epoch, which it has not validated yet. Where
            another one has, both would wait for the other one at different places.
    """
    return f"{step:020d}:{not awaits_validation:d}:{checksum:08x}"
