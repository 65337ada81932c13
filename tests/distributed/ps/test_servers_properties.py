"""Whatever befalls the parameter servers of a job: every batch is in them once, and nothing else.

The servers are the real ones, without their network; so are the bugs that these tests must find.
"""

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from ctr_pipeline.distributed.rpc.failures import Refusal
from tests.distributed.ps.rounds_machine import RoundsMachine
from tests.distributed.ps.server_bugs import BUGS_OF_ROUNDS, BUGS_OF_SERVERS
from tests.distributed.ps.servers_machine import ServersMachine, small
from tests.distributed.ps_requests import counting

SETTINGS = settings(
    stateful_step_count=12,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
)
# The first failure is enough: nobody has to read a small example of it.
UNTIL_FOUND = settings(SETTINGS, max_examples=400, phases=(Phase.generate,))
FEW_AND_MANY = pytest.mark.parametrize(
    "num_examples", [10, pytest.param(60, marks=pytest.mark.slow)]
)


def each_of(bugs):
    """A test for each."""
    return pytest.mark.parametrize("seed_bug", bugs, ids=lambda bug: bug.__name__)


@pytest.fixture
def make_servers(make_spec, make_optimizer, tmp_path):
    spec = counting(small(make_spec(), tmp_path), make_optimizer)
    return lambda: ServersMachine(spec, tmp_path)


@pytest.fixture
def make_rounds(make_spec, make_optimizer):
    spec = counting(make_spec(), make_optimizer)
    return lambda: RoundsMachine(spec)


@FEW_AND_MANY
def test_every_batch_is_held_once_whatever_befalls_the_servers(make_servers, num_examples):
    run_state_machine_as_test(make_servers, settings=settings(SETTINGS, max_examples=num_examples))


@FEW_AND_MANY
def test_every_push_comes_to_what_it_should_whatever_befalls_its_round(make_rounds, num_examples):
    run_state_machine_as_test(make_rounds, settings=settings(SETTINGS, max_examples=num_examples))


def excuse_for_one_round(machine):
    """A rare course of things: a worker that waits elsewhere is excused, from one round only."""
    machine.begin(grads_to_wait=2, active=False)
    try:
        rounds = machine.rounds
        rounds.push(0, 0)
        rounds.name_active("b")
        rounds.settle()
        rounds.name_active("bc")
        rounds.push(0, 0)  # Repeated: b has what it wants, and will not come to this round.
        rounds.push(1, 0)
        rounds.settle()
        assert rounds.rounds == 2
        rounds.push(1, 1)
        machine.check()
        assert len(rounds.waiting) == 1
    finally:
        machine.teardown()


def test_a_worker_is_excused_from_one_round(make_rounds):
    excuse_for_one_round(make_rounds())


@pytest.mark.slow
@pytest.mark.nightly
@each_of(BUGS_OF_SERVERS)
def test_a_bug_of_a_server_is_found(seed_bug, make_servers, monkeypatch):
    seed_bug(monkeypatch.setattr)
    with pytest.raises((AssertionError, RuntimeError, ValueError, Refusal)):
        run_state_machine_as_test(make_servers, settings=UNTIL_FOUND)


# A bug may also end the thread that closes a round that nobody else can come to.
@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@each_of(BUGS_OF_ROUNDS)
def test_a_bug_of_rounds_is_found(seed_bug, make_rounds, monkeypatch):
    seed_bug(monkeypatch.setattr)

    def look_for_it():
        excuse_for_one_round(make_rounds())
        run_state_machine_as_test(make_rounds, settings=UNTIL_FOUND)

    with pytest.raises((AssertionError, LookupError)):
        look_for_it()
