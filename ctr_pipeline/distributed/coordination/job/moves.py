"""Partitions move between parameter servers while training goes on."""

from dataclasses import replace

from ctr_pipeline.distributed.coordination.events import (
    AnnouncePlacement,
    MoveFailed,
    MovePartitions,
    MoveReady,
    ServersAsked,
)
from ctr_pipeline.distributed.coordination.job.state import JobState
from ctr_pipeline.distributed.coordination.moves import HotServer, PlannedMove, plan_balance


def set_servers(state: JobState, event: ServersAsked) -> None:
    """Another number of parameter servers is asked for."""
    wanted = min(max(1, event.num_parameter_servers), len(state.servers.placement.owners))
    state.servers = replace(state.servers, wanted=wanted, is_balancing=True)
    state.announce(
        f"{wanted} parameter servers are asked for",
        "partitions move while training goes on",
        topic="scaling",
    )


def begin_if_due(state: JobState) -> None:
    """Begins the next move that is needed for servers to have as many partitions as others."""
    if not state.servers.is_balancing or not state.move_schedule.may_begin(state.now):
        return
    if state.cut_schedule.in_flight or not state.head.is_restored:
        return
    placement = state.servers.placement
    planned = plan_balance(placement, state.servers.wanted)
    if planned is None:
        state.servers = replace(state.servers, is_balancing=False)
        what, done = "partitions are where they are to be", f"{placement.num_servers} servers"
        state.announce(what, done, topic="scaling")
    elif state.member("ps", planned.target).address:
        _begin(state, planned)


def cool_servers(state: JobState) -> None:
    """Partitions of a server that was busy for long move, unless something else is going on."""
    schedule = state.move_schedule
    if state.head.phase != "training" or state.servers.is_balancing or schedule.in_flight:
        state.heat.interrupt()
        return
    now, servers = state.now, range(state.servers.placement.num_servers)
    found = state.heat.poll(now, [state.member("ps", index).stats for index in servers])
    if isinstance(found, HotServer):
        state.announce(found.what, found.remedy)
    elif found is not None and schedule.may_begin(now) and not state.cut_schedule.in_flight:
        _begin(state, found)


def _begin(state: JobState, planned: PlannedMove) -> None:
    placement = state.servers.placement
    state.move_schedule.begin(planned, placement)
    state.actions.append(
        MovePartitions(state.head.generation, state.move_schedule.version, placement, planned)
    )


def _awaited(state: JobState, event: MoveReady | MoveFailed) -> PlannedMove | None:
    is_current = event.generation == state.head.generation
    is_ours = is_current and event.version == state.move_schedule.in_flight
    return state.move_schedule.planned if is_ours else None


def take_in(state: JobState, event: MoveReady) -> None:
    """The target holds what was to move; from now on it is its owner."""
    planned = _awaited(state, event)
    if planned is None:
        return
    state.move_schedule.succeed()
    state.heat.end_move(state.now, planned.partitions)
    placement = planned.applied_to(state.servers.placement, event.version)
    placement = placement.without_idle(state.servers.wanted)
    state.servers = replace(state.servers, placement=placement)
    state.counted_since_cut = True
    state.actions.append(AnnouncePlacement(state.head.generation, placement, planned, is_done=True))


def take_in_failure(state: JobState, event: MoveFailed) -> None:
    """A move did not come about; the source is still the owner."""
    planned = _awaited(state, event)
    if planned is None:
        return
    state.move_schedule.fail(state.now)
    state.heat.end_move(state.now, ())
    placement = state.servers.placement
    state.actions.append(
        AnnouncePlacement(state.head.generation, placement, planned, is_done=False)
    )
    state.announce(f"partitions did not move: {event.reason}", "it is tried again")
