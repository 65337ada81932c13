"""Who is told of a move, and in which order."""

import pytest

from ctr_pipeline.distributed.coordination.events import AnnouncePlacement
from ctr_pipeline.distributed.coordination.messages import Empty, PlacementReply
from ctr_pipeline.distributed.coordination.moves import PlannedMove
from ctr_pipeline.distributed.coordination.placement import even_placement
from ctr_pipeline.distributed.master.moves import Mover
from ctr_pipeline.distributed.rpc.failures import PeerUnavailable

PLANNED = PlannedMove(source=0, target=2, partitions=(0,), takes_dense=False)
PLACED = PLANNED.applied_to(even_placement(6, 10, 3, is_divided=True), 1)
ACTION = AnnouncePlacement(1, PLACED, PLANNED, is_done=True)


class Calls:
    """Notes who is called together; each server held updates up for a tenth of its number."""

    def __init__(self, silent=()):
        self.silent = silent
        self.calls = []

    def call_all(self, method, addresses, message, reply, *, first_number=0, **_):
        self.calls.append((method, tuple(addresses)))
        if set(self.silent) & set(addresses):
            raise PeerUnavailable("is not there")
        if reply is Empty:
            return [Empty()]
        return [PlacementReply(0.5 + first_number + number) for number in range(len(addresses))]


def test_the_source_waits_for_the_target_alone():
    calls = Calls()
    held = Mover(calls).place(ACTION, ("a", "b", "c", "d"), abandoned=lambda: False)
    assert held == 0.5
    assert calls.calls == [
        ("Place", ("c",)),
        ("Place", ("a", "b", "c", "d")),
        ("DropForeignRows", ("a",)),
        ("DropForeignRows", ("c",)),
    ]


def test_a_server_that_is_still_to_come_holds_nobody_up():
    calls = Calls()
    assert Mover(calls).place(ACTION, ("a", "b", "c", ""), abandoned=lambda: False) == 0.5
    assert calls.calls[1] == ("Place", ("a", "b", "c"))


def test_a_source_that_leaves_is_told_at_once():
    planned = PlannedMove(source=2, target=0, partitions=(2, 5), takes_dense=False)
    placement = planned.applied_to(even_placement(6, 0, 3, is_divided=True), 1).without_idle(2)
    calls = Calls()
    action = AnnouncePlacement(1, placement, planned, is_done=True)
    assert Mover(calls).place(action, ("a", "b", "c"), abandoned=lambda: False) == 2.5
    assert calls.calls == [
        ("Place", ("a",)),
        ("Place", ("a", "b", "c")),
        # The other rows go with their server.
        ("DropForeignRows", ("a",)),
    ]


@pytest.mark.parametrize("silent", ["a", "b", "c"])
def test_server_that_is_not_reached_hears_the_placement_by_heartbeat(silent):
    calls = Calls(silent)
    assert Mover(calls).place(ACTION, ("a", "b", "c"), abandoned=lambda: False) is None
    assert calls.calls[0] == ("Place", ("c",))
    assert calls.calls[-1] == ("DropForeignRows", ("c",))
