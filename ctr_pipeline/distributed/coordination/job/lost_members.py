"""Gives up members that count as lost: silent ones, and those that never came up.

A worker that is lost loses its leases: they go to others at once, and its process is killed.
"""

from ctr_pipeline.distributed.coordination.job import members
from ctr_pipeline.distributed.coordination.job.state import JobState
from ctr_pipeline.distributed.coordination.liveness import is_lost


def check(state: JobState) -> None:
    """Gives up members that have gone silent, and those that did not register in time."""
    now, supervision = state.now, state.settings.supervision
    for member in list(state.members.values()):
        if not state.is_wanted(member):
            continue
        if member.incarnation:
            silence = supervision.silence_seconds
            if is_lost(member.heard_at, now, silence):
                members.kill(state, member, f"{member.name} was not heard for {silence:g} s")
        elif (
            member.process is not None
            and member.coming_since is not None
            and now - member.coming_since > supervision.startup_timeout_seconds
        ):
            limit = supervision.startup_timeout_seconds
            why = f"{member.name} did not register within {limit:g} s"
            again = "it is started again; on a slow machine raise runtime.startup_timeout_seconds"
            state.announce(why, again, topic="member")
            member.give_up(member.process.incarnation)
            # It counts once, however long its end takes.
            member.coming_since = None
            members.kill(state, member, why)
            members.count_error(state, member, why, member.process.traceback)
