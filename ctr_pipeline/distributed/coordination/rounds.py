"""When a push becomes an update, at once or in a round with others, and when a pull has to wait.

A parameter server counts its updates; the count is its *version*. A pull carries the version that
its values have, a push names the version that its gradients were computed at, and the difference
is the push's *staleness*: the updates that its values do not know of.

No work is thrown away. Where staleness is bounded, the fast wait for the slow before they pull
(`Pace`). Where a round does not wait for all, gradients that come too late for theirs join the next
one and weigh less (`admit_push`).
"""

import hashlib
from dataclasses import dataclass, replace
from typing import Literal

from ctr_pipeline.specs.course import UpdateRule

ROUND_TIMEOUT_SECONDS = 15.0
"""A push waits so long for its round, longer than a lost worker's leases live; then it is stale.
A worker that is not heard of for so long holds nobody back."""

PushAction = Literal["apply", "join"]


@dataclass(frozen=True)
class BatchId:
    """One batch of a training task under a lease.

    Attributes:
        epoch: From 0.
        task: Number of the task in its epoch, from 0.
        batch: Number of the batch in its task, from 0.
    """

    epoch: int
    task: int
    attempt: int
    batch: int


@dataclass(frozen=True)
class Admission:
    """What becomes of a push.

    Attributes:
        action: `apply` it at once, or let it `join` the open round.
        weight: Factor on its learning rate; in a round, on its part of the mean.
    """

    action: PushAction
    weight: float


def admit_push(rule: UpdateRule, *, version: int, pulled_version: int) -> Admission:
    """Decides on a push by its staleness alone.

    In synchronous mode gradients that missed their round join the next with weight
    1 / (1 + staleness): n-softsync of Zhang, Gupta, Lian and Liu, "Staleness-aware Async-SGD for
    distributed deep learning" (IJCAI 2016), equation 6, whose staleness counts from 1.

    Args:
        version: Version of the server now.
        pulled_version: Version of the values that the gradients were computed with.
    """
    staleness = max(version - pulled_version, 0)
    if rule.update == "sync":
        action: PushAction = "apply" if rule.grads_to_wait == 1 else "join"
        return Admission(action, 1.0 / (1 + staleness))
    scale = 1.0 / max(1, staleness) if rule.scale_learning_rate_by_staleness else 1.0
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


@dataclass
class _Progress:
    """How far a worker is.

    Attributes:
        batches: Pushed, counted from where the slowest other one was when this one came.
        last: Newest of them; a call that is tried again counts once.
        heard: When it last called.
    """

    batches: int
    last: BatchId | None
    heard: float


class Pace:
    """How far the workers are, so that none runs away from the slowest.

    Stale-synchronous parallel: Ho et al., "More effective distributed ML via a stale synchronous
    parallel parameter server" (NIPS 2013), section 2, with batches as clocks. What differs: workers
    come and go. Who comes, or comes back, begins where the slowest other one is. Nobody waits for a
    worker that the master does not name among those that hold training leases, nor for one that
    was not heard of for `timeout_seconds`.

    Args:
        max_staleness: Batches that a worker may be ahead of the slowest.
        timeout_seconds: See above; so no pull waits for longer.
    """

    def __init__(self, max_staleness: int, timeout_seconds: float) -> None:
        self._max_staleness = max_staleness
        self._timeout_seconds = timeout_seconds
        self._workers: dict[int, _Progress] = {}

    def note_heard(self, worker: int, active: frozenset[int] | None, now: float) -> None:
        """Notes that a worker called.

        Args:
            worker: Its number.
            active: Workers that can still push; None: nobody knows yet.
            now: Seconds.
        """
        known = self._workers.get(worker)
        was_away = known is None or self._is_silent(worker, now)
        if known is not None and not was_away and (active is None or worker in active):
            known.heard = now
            return
        others = self.slowest(None if active is None else active - {worker}, now)
        if known is None:
            for gone in [number for number in self._workers if self._is_silent(number, now)]:
                del self._workers[gone]
            known = self._workers[worker] = _Progress(0, None, now)
        known.batches = max(known.batches, others)
        known.heard = now

    def count(self, worker: int, batch: BatchId) -> None:
        """Notes that a worker that was heard of has pushed a batch."""
        progress = self._workers[worker]
        if progress.last != batch:
            progress.last = batch
            progress.batches += 1

    def slowest(self, active: frozenset[int] | None, now: float) -> int:
        """Batches of the slowest worker that others wait for, 0 if there is none.

        Arguments as of `note_heard`.
        """
        return min(
            (
                progress.batches
                for worker, progress in self._workers.items()
                if (active is None or worker in active) and not self._is_silent(worker, now)
            ),
            default=0,
        )

    def must_wait(self, worker: int, slowest: int) -> bool:
        """Whether a worker that was heard of is too far ahead of the slowest to get values."""
        return self._workers[worker].batches - slowest > self._max_staleness

    def _is_silent(self, worker: int, now: float) -> bool:
        return now - self._workers[worker].heard >= self._timeout_seconds


def worker_number(incarnation: str) -> int:
    """A worker's name as 64 bits."""
    digest = hashlib.blake2b(incarnation.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
