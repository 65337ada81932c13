"""How long a job waits for the storage of its checkpoints."""

from ctr_pipeline.distributed.coordination.timeouts import backoff_seconds

_MOST_RETRY_SECONDS = 10.0


class StorageWait:
    """Whether checkpoints cannot be read or written at the moment, and since when.

    Args:
        timeout_seconds: After so long the job fails.

    Attributes:
        reason: Why not, for a person; empty while they can.
    """

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._since = 0.0
        self._failures = 0
        self.reason = ""

    def fail(self, now: float, reason: str) -> None:
        """Checkpoints cannot be read or written."""
        if not self.reason:
            self._since, self._failures = now, 0
        self.reason = reason
        self._failures += 1

    def start_over(self, now: float) -> None:
        """Work cannot go on without storage from now on; until now it could."""
        self._since = now

    def end(self, now: float) -> float | None:
        """Storage answers again: after how many seconds, None if it always did."""
        seconds = now - self._since if self.reason else None
        self.reason = ""
        return seconds

    def is_over(self, now: float) -> bool:
        """Whether the job has waited as long as it may."""
        return bool(self.reason) and now - self._since >= self._timeout_seconds

    @property
    def is_new(self) -> bool:
        """Whether this is the first failure of several."""
        return self._failures == 1

    @property
    def retry_seconds(self) -> float:
        """Until the next attempt."""
        return backoff_seconds(self._failures, most=_MOST_RETRY_SECONDS)
