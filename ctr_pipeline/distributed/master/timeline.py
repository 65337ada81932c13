"""What a job had over time: members, records and speed, in moments few enough to keep."""

from collections.abc import Sequence
from dataclasses import dataclass

_MOST = 240


@dataclass(frozen=True)
class JobMoment:
    """A job at one moment.

    Attributes:
        time: Unix time, seconds.
        workers: Workers that run.
        servers: Parameter servers that run.
        trained: Records counted so far.
        samples_per_second: Over the seconds before.
    """

    time: float
    workers: int
    servers: int
    trained: int
    samples_per_second: float


class Timeline:
    """The moments of a job, oldest first; the longer it lives, the further apart they are.

    Args:
        moments: As an earlier master kept them.
    """

    def __init__(self, moments: Sequence[JobMoment] = ()) -> None:
        self._moments = list(moments)

    @property
    def moments(self) -> tuple[JobMoment, ...]:
        """The moments, at most 240, the first and the last one among them."""
        return tuple(self._moments)

    def note(self, moment: JobMoment) -> bool:
        """Keeps a moment if the one before is far enough away, or had other members.

        Returns:
            Whether it was kept.
        """
        kept = self._moments
        if kept:
            first, last = kept[0], kept[-1]
            spacing = 2 * (moment.time - first.time) / _MOST
            is_same = (moment.workers, moment.servers) == (last.workers, last.servers)
            if moment.time <= last.time or (is_same and moment.time - last.time < spacing):
                return False
        kept.append(moment)
        if len(kept) > _MOST:
            self._moments = [*kept[:-1:2], moment]
        return True
