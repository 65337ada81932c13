"""Whether and when a member is started again after its end."""

from dataclasses import dataclass

from ctr_pipeline.distributed.coordination.exit_codes import EXIT_CUT_OFF, format_exit, signal_of
from ctr_pipeline.distributed.coordination.launching import ExitReason
from ctr_pipeline.distributed.coordination.timeouts import backoff_seconds
from ctr_pipeline.machine import EXIT_NO_THREAD

_FIRST_DELAY_SECONDS = 0.5
_MOST_DELAY_SECONDS = 60.0
_MOST_REFUSED_SECONDS = 8.0


@dataclass(frozen=True)
class Relaunch:
    """How a member that ended while it is wanted is started again.

    Attributes:
        delay_seconds: Pause before the start.
        blames_program: The program or its memory is at fault, not its surroundings; too many of
            these in a row without progress fail the job.
    """

    delay_seconds: float
    blames_program: bool


def decide_relaunch(
    reason: ExitReason, *, registered: bool, ends_in_row: int, is_remedied: bool = False
) -> Relaunch:
    """Decides by the reason of the end.

    A process that was killed, evicted, preempted, lost with its node or not started is not at
    fault: it is started again at once, and after a pause from the second end in a row. One that
    failed or ran out of memory would probably do so again: it pauses from the first end, and is
    counted. One that completed without being stopped was probably ended by a person (`kill`, a
    deleted pod) and is treated as killed, unless it had not registered. Where the launcher changes
    what it ended by, the next one may fare better, and nothing is at fault.

    Args:
        reason: As the launcher reports it.
        registered: It had joined the job.
        ends_in_row: Ends of this member without progress between them, this one included.
        is_remedied: The launcher reports a remedy.
    """
    blames_program = not is_remedied and (
        reason in {"error", "out_of_memory"} or (reason == "completed" and not registered)
    )
    waits_after = ends_in_row - (0 if blames_program else 1)
    delay = 0.0
    if waits_after > 0:
        delay = backoff_seconds(waits_after, first=_FIRST_DELAY_SECONDS, most=_MOST_DELAY_SECONDS)
    return Relaunch(delay, blames_program)


def start_again_seconds(refusals_in_row: int) -> float:
    """Pause before a start that the launcher refused is asked for again."""
    return backoff_seconds(refusals_in_row, first=_FIRST_DELAY_SECONDS, most=_MOST_REFUSED_SECONDS)


def explain_end(
    reason: ExitReason,
    exit_code: int | None,
    *,
    member: str,
    rss_bytes: int,
    remedy: str = "",
    advice: str = "",
) -> str:
    """One sentence on the end of a member, with a remedy where there is one.

    Args:
        reason: As the launcher reports it.
        exit_code: As the launcher reports it; negative: minus the signal.
        member: Its name, such as `worker-0`.
        rss_bytes: Resident memory that it last reported; 0 if none.
        remedy: As the launcher reports it.
        advice: As the launcher reports it.
    """
    if reason == "out_of_memory":
        seen = f" (it last held {rss_bytes / 2**30:.1f} GiB)" if rss_bytes else ""
        what = f"{member} ran out of memory{seen}"
        advice = advice or "give it more, or set a smaller train.batch_size"
        return f"{what}; {remedy}" if remedy else f"{what}: {advice}"
    if reason == "completed":
        return f"{member} ended without being asked to"
    ending = "" if exit_code is None else format_exit(exit_code)
    if reason == "not_started":
        if exit_code == EXIT_NO_THREAD:
            return f"{member} ended, as the system allowed it no more threads"
        return f"{member} could not be started"
    if exit_code == EXIT_CUT_OFF:
        return f"{member} left, as it and another worker cannot reach each other"
    by_signal = exit_code is not None and signal_of(exit_code) is not None
    if reason == "killed" and by_signal:
        return f"{member} was {ending}"
    if reason == "error" and by_signal:
        return f"{member} {ending}"
    verbs = {
        "error": "failed",
        "killed": "was killed",
        "evicted": "was evicted",
        "preempted": "gave way to a pod of higher priority",
        "node_lost": "was lost with its node",
    }
    code = "" if exit_code is None or by_signal else f" ({ending})"
    return f"{member} {verbs[reason]}{code}"
