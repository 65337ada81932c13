"""What a member says, held against what can be: a message of good form may still be nonsense."""

import math
from collections.abc import Iterable

from ctr_pipeline.distributed.coordination.messages import RegisterRequest, ScoreSummary, TaskReport
from ctr_pipeline.distributed.coordination.tasks import Task

LONGEST_FAILURE = 16_384
"""Characters that are kept of why a task failed; the end of a traceback says most."""

_LONGEST_LINE = 500
_LONGEST_NAME = 300
_MOST_WORKERS = 100_000
_NUM_BINS = 1 << 14
"""Bins of `evaluation.histogram`."""
_MOST_ROWS = 1 << 53
_LARGEST_SUM = 1e15
"""Sum of losses or probabilities: sums of so many of them are still finite."""


def find_nonsense(report: TaskReport, task: Task) -> str:
    """What of a report cannot be; empty if all of it can."""
    if not _is_sum(report.seconds) or report.seconds < 0:
        return f"{report.seconds} seconds"
    if report.key.kind == "score":
        return "" if report.scores is None else _nonsense_in(report.scores)
    for mask in (report.done_mask, report.repeated_mask):
        if mask & ~task.full_mask:
            return f"batches beyond the {task.num_batches} of its task"
    for loss in report.losses:
        if not 0 <= loss.batch < task.num_batches:
            return f"a loss of batch {loss.batch} of {task.num_batches}"
        if not _is_sum(loss.loss_sum):
            return f"a loss of {loss.loss_sum}"
    return ""


def _nonsense_in(scores: ScoreSummary) -> str:
    for total in (scores.loss_sum, scores.probability_sum):
        if not _is_sum(total):
            return f"a sum of {total}"
    for counts in (scores.positives, scores.negatives):
        if len({place for place, _ in counts}) < len(counts):
            return "a bin of its histogram twice"
        for place, count in counts:
            if not (0 <= place < _NUM_BINS and 0 < count < _MOST_ROWS):
                return f"{count} rows in bin {place} of its histogram"
    return ""


def _is_sum(value: float) -> bool:
    return math.isfinite(value) and abs(value) <= _LARGEST_SUM


def find_false_identity(request: RegisterRequest) -> str:
    """What of a registration cannot be; empty if all of it can."""
    who = request.member
    if not 0 <= who.index < _MOST_WORKERS:
        return f"no job has a {who.role} {who.index}"
    if not who.incarnation:
        return "it has no name"
    texts: Iterable[str] = (
        who.incarnation,
        request.host,
        request.address,
        request.metrics_address,
    )
    if any(len(text) > _LONGEST_NAME or not text.isprintable() for text in texts):
        return f"a name or address is longer than {_LONGEST_NAME} characters or cannot be printed"
    return ""


def last_line_of(failure: str) -> str:
    """The line of a failure that says what it was, bounded."""
    lines = failure.strip().splitlines()
    last = lines[-1].strip() if lines else "no reason given"
    return last if len(last) <= _LONGEST_LINE else f"{last[:_LONGEST_LINE]}…"
