"""Records per second from counts."""

from collections import deque

_WINDOW_SECONDS = 10.0
_STEP_SECONDS = 0.5


class SpeedMeter:
    """How fast a count grows, over the last seconds.

    A count that shrinks, as it does when a job goes back to a cut, starts it over.
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def note(self, now: float, count: int) -> None:
        """Takes in a count."""
        seen = self._seen
        if seen and count < seen[-1][1]:
            seen.clear()
        if len(seen) > 1 and now - seen[-2][0] < _STEP_SECONDS:
            seen.pop()
        seen.append((now, count))
        while len(seen) > 2 and now - seen[1][0] >= _WINDOW_SECONDS:
            seen.popleft()

    @property
    def per_second(self) -> float:
        """Over the last ten seconds, or what there is; 0 before anything is known."""
        if len(self._seen) < 2:
            return 0.0
        (first_at, first), (last_at, last) = self._seen[0], self._seen[-1]
        return (last - first) / max(last_at - first_at, 1e-9)
