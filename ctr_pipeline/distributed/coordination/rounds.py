"""When a push becomes an update: at once, in a round with others, or never.

A parameter server counts its updates; the count is its *version*. A pull carries the version that
its values have, a push names the version that its gradients were computed at, and the difference
is the push's *staleness*: the updates that its values do not know of.
"""

import hashlib
from dataclasses import dataclass, replace
from typing import Literal

from ctr_pipeline.distributed.coordination.spec import UpdateRule

ROUND_PATIENCE_SECONDS = 15.0
"""A push waits so long for its round, longer than a lost worker's leases live; then it is stale."""

PushAction = Literal["apply", "join", "stale"]


@dataclass(frozen=True)
class BatchId:
    """One batch of a training task under a lease.

    Attributes:
        epoch: From 0.
        task: Of the epoch, from 0.
        attempt: Of the lease.
        batch: Of the task, from 0.
    """

    epoch: int
    task: int
    attempt: int
    batch: int


@dataclass(frozen=True)
class Admission:
    """What becomes of a push.

    Attributes:
        action: `apply` it at once; let it `join` the open round; it is too `stale`: pull again and
            compute it again.
        learning_rate_scale: Factor on its learning rate.
    """

    action: PushAction
    learning_rate_scale: float


def admit_push(rule: UpdateRule, *, version: int, pulled_version: int) -> Admission:
    """Decides on a push by its staleness alone.

    Args:
        rule: Of the job.
        version: Of the server now.
        pulled_version: Of the values that the gradients were computed with.
    """
    staleness = version - pulled_version
    if rule.mode == "sync":
        if staleness != 0:
            return Admission("stale", 1.0)
        return Admission("apply" if rule.grads_to_wait == 1 else "join", 1.0)
    if rule.mode == "bounded" and staleness > rule.max_staleness:
        return Admission("stale", 1.0)
    scale = 1.0 / max(1, staleness) if rule.scale_by_staleness else 1.0
    return Admission("apply", scale)


@dataclass(frozen=True)
class Round:
    """Pushes that wait to become one update.

    Attributes:
        members: Number of the worker and its batch, in the order of arrival; each batch once.
        excused: Workers that are not waited for: they pushed what had been applied here before, and
            may be waiting for a round of another server, which may wait for these members.
    """

    members: tuple[tuple[int, BatchId], ...] = ()
    excused: frozenset[int] = frozenset()

    def joined_by(self, worker: int, batch: BatchId) -> "Round":
        """The round with a push more; the same round if the batch is in it already."""
        if any(other == batch for _, other in self.members):
            return self
        return replace(self, members=(*self.members, (worker, batch)))

    def excusing(self, worker: int) -> "Round":
        """The round that does not wait for a worker any more."""
        return replace(self, excused=self.excused | {worker})

    def left_by(self, batch: BatchId) -> "Round":
        """The round without a batch."""
        return replace(self, members=tuple(member for member in self.members if member[1] != batch))

    def is_complete(self, rule: UpdateRule, active_workers: frozenset[int] | None) -> bool:
        """Whether its pushes are to be applied now.

        Args:
            rule: Of the job.
            active_workers: Workers that can still push; None: nobody knows yet, and the round
                waits for as many as the rule says.
        """
        if not self.members:
            return False
        if len(self.members) >= rule.grads_to_wait:
            return True
        if active_workers is None:
            return False
        return active_workers - self.excused <= {worker for worker, _ in self.members}


def worker_number(incarnation: str) -> int:
    """A worker's name as 64 bits."""
    digest = hashlib.blake2b(incarnation.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
