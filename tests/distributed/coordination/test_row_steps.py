import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.distributed.coordination.row_steps import Made, RowSteps
from ctr_pipeline.distributed.coordination.step_sums import Complete, Void, Waiting


def bring(steps, rank, *, version=1, step=1, call=0):
    return steps.bring(version=version, step=step, rank=rank, share=f"{step}/{rank}", call=call)


@pytest.fixture
def steps():
    """Two members are in world 1."""
    steps = RowSteps()
    steps.restore("a", 0)
    for _ in range(2):
        assert steps.enter("a", 1, 2, Made(0, 0)).action == "nothing"
    return steps


def keep_a_sum(steps):
    assert bring(steps, 0, call=10)[1] == Waiting()
    assert bring(steps, 1, call=11)[1] == Complete(("1/0", "1/1"), (10, 11))


def test_a_sum_is_applied_once_its_step_is_named(steps):
    keep_a_sum(steps)
    assert steps.read(1, 0).action == "nothing"
    settled = steps.read(1, 1)
    assert (settled.action, settled.shares) == ("apply", ("1/0", "1/1"))
    assert steps.read(1, 1).action == "nothing"
    assert steps.now == Made(1, 1)


def test_a_share_of_the_next_step_applies_the_one_before(steps):
    keep_a_sum(steps)
    settled, outcome = bring(steps, 0, step=2)
    assert settled.action == "apply"
    assert outcome == Waiting()


def test_a_sum_that_nobody_made_a_step_of_is_dropped(steps):
    keep_a_sum(steps)
    assert steps.enter("a", 2, 1, Made(0, 0)).action == "nothing"
    assert steps.steps == (Made(0, 0),)
    assert isinstance(steps.read(2, 1), Void)


def test_a_sum_of_a_world_that_is_over_is_applied_where_its_step_was_made(steps):
    keep_a_sum(steps)
    assert steps.enter("a", 2, 1, Made(1, 1)).action == "apply"


def test_a_step_that_one_member_alone_has_made_is_taken_back(steps):
    keep_a_sum(steps)
    assert steps.read(1, 1).action == "apply"
    # Who made it is lost before it brings its share of the next step.
    assert bring(steps, 0, step=2, call=20)[1] == Waiting()
    settled = steps.enter("a", 2, 1, Made(0, 0))
    assert (settled.action, settled.over) == ("take_back", (20,))
    assert steps.now == Made(0, 0)
    # It comes back with a step that is void.
    assert isinstance(steps.enter("a", 3, 1, Made(1, 1)), Void)


def test_step_is_not_taken_back_once_all_members_have_made_it(steps):
    keep_a_sum(steps)
    for rank in range(2):
        bring(steps, rank, step=2)
    assert isinstance(steps.enter("a", 2, 1, Made(0, 0)), Void)
    assert steps.steps == (Made(1, 1), Made(2, 1))


def test_the_same_step_of_another_world_is_another_step(steps):
    keep_a_sum(steps)
    assert steps.enter("a", 2, 1, Made(0, 0)).action == "nothing"
    assert isinstance(bring(steps, 0, version=2)[1], Complete)
    assert isinstance(steps.enter("a", 3, 1, Made(1, 1)), Void)
    assert steps.enter("a", 3, 1, Made(1, 2)).action == "apply"


@pytest.mark.parametrize(
    ("version", "step", "rank"),
    [
        pytest.param(2, 1, 0, id="of a world that nobody entered"),
        pytest.param(0, 1, 0, id="of a world before"),
        pytest.param(1, 2, 0, id="of a step too far"),
        pytest.param(1, 1, 0, id="brought twice"),
        pytest.param(1, 1, 2, id="of no member"),
    ],
)
def test_a_share_that_nobody_may_bring_is_void(steps, version, step, rank):
    bring(steps, 0)
    assert isinstance(bring(steps, rank, version=version, step=step)[1], Void)
    assert isinstance(bring(steps, 1)[1], Complete)


def test_a_complete_step_takes_no_second_share(steps):
    keep_a_sum(steps)
    assert isinstance(bring(steps, 0)[1], Void)


def test_member_that_leaves_ends_calls_of_the_others_and_rows_stay_readable(steps):
    bring(steps, 0, call=10)
    assert steps.leave(1) == (10,)
    assert isinstance(bring(steps, 1)[1], Void)
    assert isinstance(steps.enter("a", 1, 2, Made(0, 0)), Void)
    assert steps.read(1, 0).action == "nothing"


def test_rows_of_another_restore_are_refused():
    steps = RowSteps()
    assert isinstance(steps.enter("", 1, 1, Made(0, 0)), Void)
    steps.restore("b", 7)
    assert isinstance(steps.enter("a", 1, 1, Made(7, 0)), Void)
    assert isinstance(steps.enter("b", 1, 1, Made(6, 0)), Void)
    assert steps.enter("b", 1, 1, Made(7, 0)).action == "nothing"


class Member:
    """One that trains by the rules: what it has made, and what it has heard of the current step."""

    def __init__(self):
        self.made, self.rank = Made(0, 0), None


class Rehearsal:
    """Two servers and members that are lost at any moment; rows are the list of what was applied.

    Attributes:
        rows: Of each server, the worlds whose sums of each step were applied, in order.
    """

    def __init__(self, num_members):
        self.servers = [RowSteps(), RowSteps()]
        self.rows, self.before = [[], []], [None, None]
        for server in self.servers:
            server.restore("a", 0)
        self.members = [Member() for _ in range(num_members)]
        self.version = 0
        self.history = {Made(0, 0): []}

    def settle(self, server, settled):
        assert not isinstance(settled, Void), settled.reason
        if settled.action == "apply":
            self.before[server] = list(self.rows[server])
            self.rows[server].append(settled.shares[0])
        elif settled.action == "take_back":
            self.rows[server] = self.before[server]

    def begin(self, alive):
        """Those that live enter a world, with the newest step of them."""
        newest = max(
            (one.made for one in alive if all(one.made in server.steps for server in self.servers)),
            key=lambda made: (made.step, made.world),
        )
        self.version += 1
        for rank, one in enumerate(alive):
            one.made, one.rank = newest, rank
            for number, server in enumerate(self.servers):
                self.settle(number, server.enter("a", self.version, len(alive), newest))

    def step(self, alive, stop_after):
        """Members make a step, of whose small parts only the first few happen."""
        step = alive[0].made.step + 1
        share = (self.version, step)
        parts = []
        for one in alive:
            parts += [("read", one, number) for number in (0, 1)]
        for one in alive:
            parts += [("bring", one, number) for number in (0, 1)]
        parts += [("make", one, None) for one in alive]
        # Whoever has made the step reads for the next one before the others have made it.
        parts.sort(key=lambda part: {"read": 0, "bring": 1, "make": 2}[part[0]])
        made = Made(step, self.version)
        self.history[made] = [*self.history[alive[0].made], share]
        for what, one, number in parts[:stop_after]:
            if what == "read":
                self.settle(number, self.servers[number].read(self.version, one.made.step))
                assert self.rows[number] == self.history[one.made]
            elif what == "bring":
                settled, outcome = self.servers[number].bring(
                    version=self.version, step=step, rank=one.rank, share=share, call=0
                )
                self.settle(number, settled)
                assert not isinstance(outcome, Void)
            else:
                one.made = made
                # It goes on, at one server only.
                self.settle(1, self.servers[1].read(self.version, step))
                assert self.rows[1] == self.history[made]


@given(st.lists(st.tuples(st.integers(0, 18), st.sets(st.integers(0, 2), min_size=1)), max_size=12))
def test_each_step_is_applied_once_whoever_is_lost_and_comes_back(happened):
    rehearsal = Rehearsal(3)
    alive = rehearsal.members
    for num_parts, who in happened:
        rehearsal.begin(alive)
        rehearsal.step(alive, num_parts)
        # Those that are lost hold what they held, and may come back; one that was there goes on.
        others = [rehearsal.members[index] for index in sorted(who)]
        going_on = alive[min(who) % len(alive)]
        alive = [going_on, *(one for one in others if one is not going_on)]
    rehearsal.begin(alive)
    made = alive[0].made
    for number, server in enumerate(rehearsal.servers):
        rehearsal.settle(number, server.read(rehearsal.version, made.step))
        assert rehearsal.rows[number] == rehearsal.history[made]
        assert [step for _, step in rehearsal.rows[number]] == list(range(1, made.step + 1))
