"""The rendezvous with a clock of numbers: no network, no waiting."""

import math

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from ctr_pipeline.distributed.coordination.rendezvous import (
    EXIT_TAG,
    CutOff,
    Met,
    Refused,
    Rendezvous,
    RendezvousTimes,
    World,
    decide_left_out,
)

TIMES = RendezvousTimes(gather_seconds=0.5, lease_seconds=10.0, straggler_seconds=60.0)


class Nodes:
    """A rendezvous, its clock, and the answers that came."""

    def __init__(self, least=2, most=3):
        self.machine = Rendezvous(TIMES)
        self.now = 100.0
        self.range = (least, most)
        self.calls = 0
        self.answers = {}

    def _take(self, actions):
        for action in actions:
            assert action.call not in self.answers, "answered twice"
            self.answers[action.call] = action.reply

    def join(self, address, *, reset=False, nodes=None, has_failed=False, unreachable=()):
        self.calls += 1
        least, most = nodes or self.range
        self._take(
            self.machine.get_cluster_spec(
                address,
                least,
                most,
                reset=reset,
                call=self.calls,
                now=self.now,
                has_failed=has_failed,
                unreachable=unreachable,
            )
        )
        return self.calls

    def poll(self, address, version=None):
        version = self.machine.version if version is None else version
        return self.machine.get_waiting_nodes(address, version, self.now)

    def barrier(self, address, tag="t", timeout=5.0):
        self.calls += 1
        self._take(self.machine.barrier(address, tag, timeout, call=self.calls, now=self.now))
        return self.calls

    def synchronize(self, address, data, tag="t", timeout=5.0):
        self.calls += 1
        self._take(
            self.machine.synchronize(address, tag, data, timeout, call=self.calls, now=self.now)
        )
        return self.calls

    def leave(self, address):
        self._take(self.machine.leave(address, self.now))

    def abandon(self, call):
        self._take(self.machine.abandon(call, self.now))

    def wait(self, seconds):
        """Lets time pass as the ticker does: it looks only when a deadline has come."""
        end = self.now + seconds
        while (deadline := self.machine.next_deadline()) <= end:
            self.now = max(self.now, deadline)
            self._take(self.machine.tick(self.now))
            assert self.machine.next_deadline() > self.now, "the ticker would spin"
        self.now = end

    def form(self, *addresses):
        """A first world of these."""
        calls = [self.join(address) for address in addresses]
        self.wait(0.5)
        return [self.answers[call] for call in calls]


@pytest.fixture
def nodes():
    return Nodes()


def test_a_node_alone_waits_for_the_smallest_number(nodes):
    call = nodes.join("a")
    nodes.wait(1000.0)
    assert call not in nodes.answers


def test_a_world_is_formed_after_the_gather_timeout_by_age(nodes):
    first, second = nodes.join("b"), nodes.join("a")
    nodes.wait(0.4)
    assert nodes.answers == {}
    nodes.wait(0.1)
    assert nodes.answers == {first: World(1, ("b", "a"), 0), second: World(1, ("b", "a"), 1)}


def test_a_full_world_is_formed_at_once(nodes):
    calls = [nodes.join(address) for address in "abc"]
    assert [nodes.answers[call].rank for call in calls] == [0, 1, 2]


def test_world_takes_at_most_the_largest_number_and_others_wait_for_room(nodes):
    nodes.form("a", "b", "c")
    late = nodes.join("d")
    assert [nodes.poll(one) for one in "abc"] == [0, 0, 0]
    nodes.leave("a")
    assert [nodes.poll(one) for one in "bc"] == [-1, -1]
    nodes.join("c")
    nodes.join("b")
    assert nodes.answers[late] == World(2, ("b", "c", "d"), 2)


def test_another_range_is_refused_with_both_ranges(nodes):
    nodes.join("a")
    refused = nodes.answers[nodes.join("b", nodes=(2, 4))]
    assert refused.code == "range"
    assert "2:4" in refused.reason
    assert "2:3" in refused.reason


@pytest.mark.parametrize("bounds", [(0, 2), (3, 2), (-1, -1)])
def test_an_impossible_range_is_refused(nodes, bounds):
    assert nodes.answers[nodes.join("a", nodes=bounds)].code == "range"


@pytest.mark.parametrize(
    ("cut", "left_out"),
    [
        ([], ""),
        (["ab"], "b"),
        (["ac"], "c"),
        # a complains about all others, or all about a: either way, its network is at fault.
        (["ab", "ac", "ad"], "a"),
        (["ab", "bc"], "b"),
        (["ab", "cd"], "db"),
        (["ab", "bc", "ca"], "cb"),
        (["ab", "bc", "cd", "da"], "db"),
    ],
)
def test_node_cut_off_from_most_is_left_out_or_else_the_youngest(cut, left_out):
    assert decide_left_out("abcd", {frozenset(pair) for pair in cut}) == tuple(left_out)


def test_one_of_two_members_that_are_cut_off_is_left_out_of_the_next_world(nodes):
    nodes.form("a", "b", "c")
    # Of two sides, one may not have noticed.
    first, cut_off = nodes.join("a", unreachable=["b"]), nodes.join("b")
    assert nodes.answers.keys().isdisjoint({first, cut_off}), "c may be cut off from others, too"
    last = nodes.join("c")
    nodes.wait(0.5)
    assert nodes.answers[cut_off] == CutOff("b", ("a",))
    assert nodes.answers[cut_off].reason == "b and a cannot reach each other"
    assert nodes.answers[first] == World(2, ("a", "c"), 0)
    assert nodes.answers[last] == World(2, ("a", "c"), 1)
    # What was said of it does not stick to the address.
    back = nodes.join("b")
    nodes.join("a")
    nodes.join("c")
    assert nodes.answers[back] == World(3, ("a", "c", "b"), 2)


def test_nodes_wait_for_another_when_too_few_reach_each_other(nodes):
    nodes.form("a", "b")
    waiting = nodes.join("a")
    cut_off = nodes.join("b", unreachable=["a"])
    assert nodes.answers[cut_off] == CutOff("b", ("a",))
    nodes.wait(100.0)
    assert waiting not in nodes.answers
    nodes.join("c")
    nodes.wait(0.5)
    assert nodes.answers[waiting] == World(2, ("a", "c"), 0)


def test_one_that_was_away_for_longer_than_its_lease_accuses_nobody(nodes):
    nodes.form("a", "b", "c")
    nodes.wait(9.0)
    for one in "ab":
        nodes.poll(one)
    nodes.wait(2.0)
    calls = [nodes.join(one) for one in "ab"]
    back = nodes.join("c", unreachable=["a", "b"])
    assert [nodes.answers[call] for call in (*calls, back)] == [
        World(2, ("a", "b", "c"), rank) for rank in range(3)
    ]


def test_one_that_was_lost_since_is_no_cut(nodes):
    nodes.form("a", "b", "c")
    nodes.join("a", unreachable=["b"])
    nodes.join("c", unreachable=["b"])
    nodes.leave("b")
    nodes.wait(0.5)
    assert nodes.machine.addresses == ("a", "c")


def test_a_joiner_is_reported_and_ends_nothing_until_a_member_asks(nodes):
    nodes.form("a", "b")
    late = nodes.join("c")
    nodes.wait(5.0)
    assert late not in nodes.answers
    assert [nodes.poll(one) for one in "ab"] == [1, 1]
    nodes.join("a")
    nodes.wait(5.0)
    assert late not in nodes.answers, "b is expected, too"
    assert nodes.poll("b") == 1
    nodes.join("b")
    assert nodes.answers[late] == World(2, ("a", "b", "c"), 2)


def test_a_restart_of_one_member_is_seen_by_the_others(nodes):
    nodes.form("a", "b")
    assert nodes.poll("b") == 0
    nodes.join("a")
    assert nodes.poll("b") == 1


def test_a_member_whose_step_failed_is_missed_like_one_that_is_lost_until_the_next_world(nodes):
    nodes.form("a", "b", "c")
    nodes.join("a", has_failed=True)
    assert [nodes.poll(one) for one in "bc"] == [-1, -1]
    nodes.join("b", has_failed=True)
    assert nodes.poll("c") == -2
    nodes.join("c")
    assert nodes.machine.version == 2
    assert [nodes.poll(one) for one in "abc"] == [0, 0, 0]


def test_a_lease_that_ends_counts_as_a_loss_before_joiners(nodes):
    nodes.form("a", "b")
    nodes.join("c")
    nodes.wait(9.0)
    assert nodes.poll("a") == 1
    nodes.wait(2.0)
    assert nodes.poll("a") == -1
    nodes.join("a")
    nodes.wait(0.5)
    assert nodes.machine.addresses == ("a", "c")


def test_a_lost_member_that_comes_back_learns_that_its_world_is_over(nodes):
    nodes.form("a", "b")
    nodes.wait(5.0)
    nodes.poll("a")
    nodes.wait(6.0)
    assert nodes.poll("b") == -1


def test_a_member_of_an_older_world_learns_it(nodes):
    nodes.form("a", "b")
    nodes.join("a")
    nodes.join("b")
    nodes.wait(0.5)
    assert nodes.poll("a", version=1) == -1
    assert nodes.poll("a", version=2) == 0


def test_a_member_that_never_asks_is_not_waited_for_endlessly(nodes):
    nodes.form("a", "b", "c")
    nodes.join("a")
    nodes.join("b")
    for _ in range(12):
        nodes.wait(5.0)
        nodes.poll("c")
    nodes.wait(0.5)
    assert nodes.machine.addresses == ("a", "b")


def test_a_reset_drops_the_own_registration_and_its_age(nodes):
    nodes.form("a", "b")
    again = nodes.join("a", reset=True)
    assert nodes.poll("b") == -1
    nodes.join("b")
    nodes.wait(0.5)
    assert nodes.answers[again] == World(2, ("b", "a"), 1)


def test_a_second_call_of_an_address_supersedes_the_first(nodes):
    first = nodes.join("a")
    second = nodes.join("a")
    assert nodes.answers[first].code == "superseded"
    nodes.join("b")
    nodes.wait(0.5)
    assert nodes.answers[second] == World(1, ("a", "b"), 0)


def test_a_joiner_whose_connection_breaks_is_forgotten(nodes):
    call = nodes.join("a")
    nodes.abandon(call)
    nodes.join("b")
    nodes.wait(5.0)
    assert nodes.machine.version == 0


def test_a_member_whose_connection_breaks_while_it_waits_keeps_its_age_for_a_lease(nodes):
    nodes.form("a", "b", "c")
    nodes.abandon(nodes.join("a"))
    nodes.poll("b")
    nodes.poll("c")
    nodes.wait(9.0)
    again = nodes.join("a")
    nodes.join("c")
    nodes.join("b")
    assert nodes.answers[again].rank == 0


def test_a_barrier_lets_all_pass_when_the_last_has_entered(nodes):
    nodes.form("a", "b")
    first = nodes.barrier("a")
    assert first not in nodes.answers
    second = nodes.barrier("b")
    assert nodes.answers[first] == nodes.answers[second] == Met(("", ""))


def test_a_barrier_that_times_out_names_who_is_missing(nodes):
    nodes.form("a", "b", "c")
    call = nodes.barrier("b", timeout=3.0)
    nodes.wait(2.9)
    assert call not in nodes.answers
    nodes.wait(0.1)
    assert nodes.answers[call] == Refused("timeout", "the barrier 't' timed out: a, c did not come")


def test_barriers_of_other_tags_are_others(nodes):
    nodes.form("a", "b")
    first = nodes.barrier("a", "one")
    nodes.barrier("b", "two")
    nodes.synchronize("b", "x", "one")
    assert first not in nodes.answers


def test_a_tag_may_be_used_again(nodes):
    nodes.form("a", "b")
    for _ in range(2):
        calls = [nodes.barrier("a"), nodes.barrier("b")]
        assert all(nodes.answers[call] == Met(("", "")) for call in calls)


def test_synchronize_gives_everyone_the_data_by_rank(nodes):
    nodes.form("b", "a")
    calls = [nodes.synchronize("a", "of a"), nodes.synchronize("b", "of b")]
    assert {nodes.answers[call] for call in calls} == {Met(("of b", "of a"))}


def test_a_synchronisation_that_times_out_names_who_is_missing(nodes):
    nodes.form("a", "b")
    call = nodes.synchronize("a", "x", timeout=1.0)
    nodes.wait(1.0)
    assert nodes.answers[call].code == "timeout"
    assert "b did not come" in nodes.answers[call].reason


@pytest.mark.parametrize("timeout", [math.nan, math.inf, -1.0])
def test_a_timeout_that_is_none_is_refused(nodes, timeout):
    nodes.form("a", "b")
    assert nodes.answers[nodes.barrier("a", timeout=timeout)].code == "timeout"


@pytest.mark.parametrize("what", ["join", "reset", "leave", "loss"])
def test_meetings_are_void_once_the_world_is_over(nodes, what):
    nodes.form("a", "b")
    calls = [nodes.barrier("a", timeout=50.0), nodes.synchronize("a", "x", timeout=50.0)]
    if what == "leave":
        nodes.leave("b")
    elif what == "loss":
        nodes.wait(10.0)
    else:
        nodes.join("b", reset=what == "reset")
    assert [nodes.answers[call].code for call in calls] == ["void", "void"]
    assert nodes.answers[nodes.barrier("a")].code == "void"
    assert nodes.poll("a") != 0


def test_a_stranger_enters_no_barrier(nodes):
    nodes.form("a", "b")
    assert nodes.answers[nodes.barrier("c")].code == "not_member"


def test_a_member_whose_call_waits_needs_no_other_sign_of_life(nodes):
    nodes.form("a", "b")
    call = nodes.barrier("a", timeout=100.0)
    for _ in range(10):
        nodes.wait(5.0)
        assert nodes.poll("b") == 0
    nodes.barrier("b")
    assert nodes.answers[call] == Met(("", ""))
    nodes.wait(9.0)
    assert nodes.poll("a") == 0


def test_the_job_has_finished_when_all_have_succeeded(nodes):
    nodes.form("a", "b", "c")
    waiting = nodes.join("d")
    calls = [nodes.barrier(one, EXIT_TAG) for one in "abc"]
    assert all(nodes.answers[call] == Met(("", "", "")) for call in calls)
    assert nodes.answers[waiting].code == "finished"
    assert nodes.answers[nodes.join("e")].code == "finished"
    for one in "abc":
        nodes.leave(one)
    assert not nodes.machine.nodes


def test_node_joins_no_world_in_which_a_member_has_succeeded(nodes):
    nodes.form("a", "b")
    nodes.barrier("a", EXIT_TAG)
    nodes.join("c")
    assert nodes.poll("b") == 0


def test_a_member_that_succeeded_and_left_is_not_missed(nodes):
    nodes.form("a", "b")
    call = nodes.barrier("a", EXIT_TAG, timeout=1.0)
    nodes.wait(1.0)
    assert nodes.answers[call].code == "timeout"
    nodes.leave("a")
    assert nodes.poll("b") == 0
    last = nodes.barrier("b", EXIT_TAG)
    assert nodes.answers[last] == Met(("",))
    assert nodes.machine.finished


def test_a_member_that_fails_after_another_succeeded_is_not_waited_for_by_it(nodes):
    nodes.form("a", "b", "c")
    done = nodes.barrier("a", EXIT_TAG, timeout=100.0)
    nodes.join("b")
    assert nodes.answers[done].code == "void"
    nodes.join("c")
    nodes.wait(0.5)
    assert nodes.machine.addresses == ("b", "c")


ADDRESSES = st.sampled_from("abcde")


class RendezvousMachine(RuleBasedStateMachine):
    """Any order of calls, time and ends of connections."""

    @initialize(bounds=st.sampled_from([(1, 1), (1, 3), (2, 2), (2, 3), (3, 4)]))
    def begin(self, bounds):
        self.nodes = Nodes(*bounds)
        self.asked = {}
        self.gone = set()

    @rule(
        address=ADDRESSES,
        reset=st.booleans(),
        has_failed=st.booleans(),
        unreachable=st.just(()) | st.lists(ADDRESSES, max_size=2),
    )
    def join(self, address, reset, has_failed, unreachable):
        call = self.nodes.join(address, reset=reset, has_failed=has_failed, unreachable=unreachable)
        self.asked[call] = address

    @rule(address=ADDRESSES, back=st.integers(0, 1))
    def poll(self, address, back):
        machine = self.nodes.machine
        number = self.nodes.poll(address, machine.version - back)
        if back or address not in machine.members:
            assert number < 0
        elif machine._waiting.keys() & set(machine.members):
            # A member has asked for the next world; one that waits in a barrier has not.
            assert number != 0

    @rule(address=ADDRESSES, tag=st.sampled_from(["t", "t", EXIT_TAG]), seconds=st.floats(0.0, 9.0))
    def barrier(self, address, tag, seconds):
        self.asked[self.nodes.barrier(address, tag, seconds)] = address

    @rule(address=ADDRESSES, seconds=st.floats(0.0, 30.0))
    def synchronize(self, address, seconds):
        self.asked[self.nodes.synchronize(address, address, timeout=seconds)] = address

    @rule(address=ADDRESSES)
    def leave(self, address):
        self.nodes.leave(address)
        assert address not in self.nodes.machine.members

    @precondition(lambda self: self.waiting())
    @rule(data=st.data())
    def lose_connection(self, data):
        calls = [call for call in self.asked if call not in self.nodes.answers]
        calls = [call for call in calls if call not in self.gone]
        if calls:
            call = data.draw(st.sampled_from(calls))
            self.gone.add(call)
            self.nodes.abandon(call)

    @rule(seconds=st.floats(0.0, 20.0))
    def wait(self, seconds):
        self.nodes.wait(seconds)

    def waiting(self):
        """Addresses with a call that waits for a world, a barrier or data."""
        return [
            address
            for call, address in self.asked.items()
            if call not in self.nodes.answers and call not in self.gone
        ]

    @invariant()
    def worlds_are_sound(self):
        least, most = self.nodes.range
        worlds = {}
        for call, reply in self.nodes.answers.items():
            if isinstance(reply, World):
                worlds.setdefault(reply.version, []).append((self.asked[call], reply))
        assert sorted(worlds) == list(range(1, len(worlds) + 1))
        for answered in worlds.values():
            (addresses,) = {reply.addresses for _, reply in answered}
            assert least <= len(addresses) <= most
            assert len(set(addresses)) == len(addresses)
            assert {(address, reply.rank) for address, reply in answered} <= {
                (address, rank) for rank, address in enumerate(addresses)
            }
            assert sorted(reply.rank for _, reply in answered) == list(range(len(addresses)))

    @invariant()
    def data_come_by_rank(self):
        for call, reply in self.nodes.answers.items():
            if isinstance(reply, Met) and any(reply.data):
                assert self.asked[call] in reply.data
                assert len(set(reply.data)) == len(reply.data)

    def teardown(self):
        """Every call is answered once everybody who lives does what an agent does."""
        if not hasattr(self, "nodes"):
            return
        nodes = self.nodes
        nodes.wait(100.0)
        for address in "abcde":
            nodes.leave(address)
        assert self.waiting() == []
        assert not nodes.machine.nodes
        if not nodes.machine.finished:
            version = nodes.machine.version
            for address in "abcde"[: nodes.range[1]]:
                self.asked[nodes.join(address)] = address
            assert nodes.machine.version == version + 1
            self.worlds_are_sound()


TestRendezvousMachine = RendezvousMachine.TestCase
TestRendezvousMachine.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    suppress_health_check=[HealthCheck.too_slow],
)
