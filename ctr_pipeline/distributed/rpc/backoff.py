"""Pauses between attempts."""

import logging
import random
from collections.abc import Callable, Iterator
from itertools import count

from ctr_pipeline.distributed.coordination.messages import Member
from ctr_pipeline.distributed.coordination.timeouts import backoff_seconds

_LOGGER = logging.getLogger(__name__)
_FIRST_PAUSE_SECONDS = 0.1


def delays(first: float, factor: float, most: float, seed: int) -> Iterator[float]:
    """Endless pauses in seconds: growing by `factor` up to `most`, each shortened by up to half.

    The shortening is random, so that members that failed together do not all return together.

    Args:
        first: Seconds before the second attempt, at most.
        factor: Growth, 1 or more.
        most: Longest pause.
        seed: Seed of the randomness; the same seed gives the same pauses.
    """
    chance = random.Random(seed)  # noqa: S311  spreads retries, guards nothing
    for failures in count(1):
        longest = backoff_seconds(failures, first=first, most=most, factor=factor)
        yield longest * chance.uniform(0.5, 1.0)


class MasterAbsence:
    """Whether the master answers, as one member sees it, and when to ask it again.

    Args:
        member: Spreads the pauses, so that members do not all come back at once.
        meanwhile: What goes on without a master, for the log.
        longest_pause_seconds: Between two attempts.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        member: Member,
        meanwhile: str,
        *,
        longest_pause_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._seed = sum(map(ord, member.incarnation)) + member.index
        self._meanwhile = meanwhile
        self._longest = longest_pause_seconds
        self._clock = clock
        self._since: float | None = None
        self._pauses = self._new_pauses()

    def begin(self, reason: str) -> float:
        """It did not answer: seconds until it is asked again."""
        if self._since is None:
            self._since = self._clock()
            _LOGGER.warning("The master does not answer, %s: %s", self._meanwhile, reason)
        return next(self._pauses)

    def end(self) -> None:
        """It has answered."""
        if self._since is not None:
            _LOGGER.info("The master answers again after %.1f s", self._clock() - self._since)
            self._since = None
            self._pauses = self._new_pauses()

    def _new_pauses(self) -> Iterator[float]:
        return delays(_FIRST_PAUSE_SECONDS, 2.0, self._longest, self._seed)
