"""The interface between the trainer and the other replicas of its model.

Each replica holds all parameters. In a step each computes the gradients of a batch of its own, and
all apply the same total. `distributed.replicas` implements the interface between processes.

Axes: U distinct keys, W values of a row, P dense parameters, B batch, F fields, A leading values
of a row, D the others.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ctr_pipeline.training.lookup import SavedRows

Floats = NDArray[np.float32]


class ReplicatedRows(SavedRows, Protocol):
    """Embedding rows of one replica, updated by the gradients of all."""

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


class WorldChanged(Exception):  # noqa: N818  an event
    """The replicas that train together are about to change; nothing was applied."""


@dataclass(frozen=True)
class Share:
    """What one replica brings to a step; of its batch, if there was one left for it.

    Attributes:
        num_examples: Rows of the batch; 0: there was none.
        loss_sum: Weighted sum of the rows' logloss.
        parameters_P: Gradient of the batch's mean loss, its norm not bounded.
        prepared: What `EmbeddingLookup.prepare` made of the ids; None without a batch.
        gradients: Gradients of the loss sum, [B, F, A] and [B, F, D]; None without a batch.
    """

    num_examples: int
    loss_sum: float
    parameters_P: Floats
    prepared: Any = None
    gradients: tuple[Floats, Floats] | None = None


@dataclass(frozen=True)
class Total:
    """The sum over all replicas, which is the same bits for each of them.

    Attributes:
        num_batches: Batches of the step.
        num_examples: Rows of all of them.
        loss_sum: Weighted sum of the rows' logloss.
        parameters_P: Gradient of the mean loss over all rows, its norm not bounded.
        keys_U: int64, each once.
        num_occurrences_U: int32, of each key in all batches.
        sums_UW: Gradients of the loss sum by key.
    """

    num_batches: int
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
            held: Step and checksum of the parameters here, as of `describe_held`; empty: none yet.
            save_state: Called, in another thread, if another member needs the parameters. They do
                not change then, as a step waits for all members.
        """

    def require_unchanged(self) -> None:
        """Raises `WorldChanged` if other replicas wait to join, or some are lost."""

    def add(self, step: int, share: Share) -> Total:
        """Waits for the shares of all replicas in a step; raises `WorldChanged`."""

    def meet(self, tag: str) -> None:
        """Returns when all replicas have come to the same place; raises `WorldChanged`."""


def describe_held(step: int, checksum: int) -> str:
    """What a replica holds, in words that compare: the further step, then the checksum."""
    return f"{step:020d}:{checksum:08x}"
