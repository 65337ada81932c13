"""A set of task numbers, as the runs that they make."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator


class TaskSet:
    """Numbers of tasks, as runs of neighbours: few, however many tasks there are.

    Args:
        runs: The first number of each run and the one after its last, ascending and apart.
    """

    def __init__(self, runs: Iterable[Iterable[int]] = ()) -> None:
        pairs = [tuple(run) for run in runs]
        self._firsts = [first for first, _ in pairs]
        self._ends = [end for _, end in pairs]
        self.num_tasks = sum(end - first for first, end in pairs)
        """Tasks in all runs."""

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The first number of each run and the one after its last, ascending."""
        return zip(self._firsts, self._ends, strict=True)

    def __contains__(self, number: int) -> bool:
        place = bisect_right(self._firsts, number) - 1
        return place >= 0 and number < self._ends[place]

    @property
    def end(self) -> int:
        """The one after the last."""
        return self._ends[-1] if self._ends else 0

    def add(self, number: int) -> None:
        """One more, which need not be new."""
        if number in self:
            return
        self.num_tasks += 1
        place = bisect_right(self._firsts, number)
        joins_before = place > 0 and self._ends[place - 1] == number
        joins_after = place < len(self._firsts) and self._firsts[place] == number + 1
        if joins_before and joins_after:
            self._ends[place - 1] = self._ends.pop(place)
            del self._firsts[place]
        elif joins_before:
            self._ends[place - 1] += 1
        elif joins_after:
            self._firsts[place] -= 1
        else:
            self._firsts.insert(place, number)
            self._ends.insert(place, number + 1)

    def gaps(self, end: int) -> Iterator[int]:
        """Numbers before the end that are not among these."""
        before = 0
        for first, after in (*self, (end, end)):
            yield from range(before, min(first, end))
            before = after

    def common_with(self, other: "TaskSet") -> Iterator[tuple[int, int]]:
        """Runs of the numbers that are among both."""
        ours, theirs = list(self), list(other)
        while ours and theirs:
            first, end = max(ours[0][0], theirs[0][0]), min(ours[0][1], theirs[0][1])
            if first < end:
                yield first, end
            (ours if ours[0][1] == end else theirs).pop(0)
