import pytest

from ctr_pipeline.distributed.coordination.messages import Empty, Member
from ctr_pipeline.distributed.rpc.failures import PeerUnavailable
from ctr_pipeline.distributed.rpc.master_calls import MasterCalls


class Link:
    """A connection to a master that answers once it is back."""

    is_back = False
    num_closed = 0

    def call(self, method, message, reply, *, deadline_seconds):
        if not self.is_back:
            raise PeerUnavailable("refused")
        return Empty()

    def close(self):
        self.num_closed += 1


@pytest.fixture
def link():
    return Link()


@pytest.fixture
def now():
    return [0.0]


@pytest.fixture
def calls(link, now):
    return MasterCalls(
        Member("worker", 3, "w", "s"),
        lambda: link,
        meanwhile="training goes on",
        longest_pause_seconds=1.0,
        clock=lambda: now[0],
    )


def test_an_absence_is_told_once_and_begins_anew_after_the_master_was_back(
    calls, link, now, caplog
):
    def fail():
        with pytest.raises(PeerUnavailable) as caught:
            calls.call("Heartbeat", Empty(), Empty)
        return calls.pause_after(caught.value)

    with caplog.at_level("INFO"):
        pauses = [fail() for _ in range(8)]
        assert link.num_closed == 8
        now[0], link.is_back = 2.5, True
        calls.call("Heartbeat", Empty(), Empty)
        calls.call("Heartbeat", Empty(), Empty)
        link.is_back = False
        assert fail() == pauses[0]
    assert pauses[0] <= 0.1
    assert 0.5 <= pauses[-1] <= 1.0
    assert [record.getMessage() for record in caplog.records] == [
        "The master does not answer, training goes on: refused",
        "The master answers again after 2.5 s",
        "The master does not answer, training goes on: refused",
    ]
