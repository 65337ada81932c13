"""Which members count as lost: those silent for `runtime.silence_seconds`, or that never came up.

A worker that is lost loses its leases: they go to others at once, and its process is killed.
"""

from ctr_pipeline.distributed.coordination.job import members
from ctr_pipeline.distributed.coordination.job.state import JobState


def check(state: JobState) -> None:
    """Gives up members that have gone silent, and those that did not register in time."""
    now, settings = state.now, state.settings
    for member in list(state.members.values()):
        if not state.is_wanted(member):
            continue
        if member.incarnation:
            is_server = member.role == "ps"
            silence = (
                settings.server_silence_seconds if is_server else settings.worker_silence_seconds
            )
            if now - member.heard_at > silence:
                members.kill(state, member, f"{member.name} was not heard for {silence:g} s")
        elif (
            member.process is not None
            and member.coming_since is not None
            and now - member.coming_since > settings.start_seconds
        ):
            why = f"{member.name} did not register within {settings.start_seconds:g} s"
            member.give_up(member.process.incarnation)
            members.kill(state, member, why)
            members.count_error(state, member, why, member.process.traceback)
