"""Which shares of a step an owner has, and when they are complete; pure.

The dense vector and the rows' keys are divided among the members of a world: each owns a part, and
adds what all members bring to it. Whoever comes first waits; the shares are added by rank, so the
sum has the same bits whatever order they came in.
"""

from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Complete(Generic[T]):
    """All members have brought their shares of a step.

    Attributes:
        shares: By rank.
        calls: Calls to be answered with the sum, by rank.
    """

    shares: tuple[T, ...]
    calls: tuple[int, ...]


@dataclass(frozen=True)
class Waiting:
    """Some shares have yet to come."""


@dataclass(frozen=True)
class Void:
    """The share is of a world that is over, or of no member: it is never added."""

    reason: str


@dataclass
class StepSums(Generic[T]):
    """The shares that one owner has, and whose call waits for the sum.

    A share of a world that this owner is not in yet waits: its sender was told of it sooner.

    Attributes:
        version: Number of the world; 0: none yet.
        size: Members of it.
        is_open: The world goes on, as far as is known here.
    """

    version: int = 0
    size: int = 0
    is_open: bool = False
    _waiting: dict[tuple[int, int], dict[int, tuple[T, int]]] = field(default_factory=dict)

    def begin(self, version: int, size: int) -> tuple[int, ...]:
        """A world begins; returns calls of earlier ones, which are void."""
        self.version, self.size, self.is_open = version, size, True
        return self._take_until(version - 1)

    def end(self) -> tuple[int, ...]:
        """The world is over; returns its calls, which are void."""
        self.is_open = False
        return self._take_until(self.version)

    def bring(
        self, *, version: int, step: int, rank: int, share: T, call: int
    ) -> Complete[T] | Waiting | Void:
        """A member brings its share of a step.

        Args:
            call: Number of the call that brings it; waits for the sum.
        """
        if version < self.version or (version == self.version and not self.is_open):
            return Void(f"world {version} is over")
        if rank < 0 or (version == self.version and rank >= self.size):
            return Void(f"world {version} has no rank {rank}")
        shares = self._waiting.setdefault((version, step), {})
        if rank in shares:
            return Void(f"rank {rank} has brought its share of step {step}")
        shares[rank] = (share, call)
        if version != self.version or len(shares) < self.size:
            return Waiting()
        del self._waiting[version, step]
        by_rank = [shares[one] for one in range(self.size)]
        return Complete(tuple(one for one, _ in by_rank), tuple(number for _, number in by_rank))

    def _take_until(self, version: int) -> tuple[int, ...]:
        over = [key for key in self._waiting if key[0] <= version]
        return tuple(call for key in over for _, call in self._waiting.pop(key).values())
