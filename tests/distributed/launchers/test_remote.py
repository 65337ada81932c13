"""A launcher behind its service: what the master asks arrives, and what goes wrong comes back."""

from contextlib import closing

import pytest

from ctr_pipeline.distributed.coordination.launching import (
    CannotLaunchError,
    LauncherBusyError,
    ProcessState,
)
from ctr_pipeline.distributed.launchers.remote import LauncherService, RemoteLauncher
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.failures import CallRefused, PeerUnavailable

ACCESS = Access("open-secret", tls=None)
STATE = ProcessState("ps", 1, "a" * 16, 7, False, -9, "out_of_memory", "last words", 2)


class Recorded:
    """A launcher that remembers what it is asked."""

    def __init__(self):
        self.asked = []
        self.error = None

    def start(self, role, index):
        self.asked.append(("start", role, index))
        if self.error is not None:
            raise self.error

    def stop(self, role, index, incarnation, *, grace_seconds):
        self.asked.append(("stop", role, index, incarnation, grace_seconds))
        if self.error is not None:
            raise self.error

    def observe(self):
        return (STATE,)


@pytest.fixture
def launcher():
    return Recorded()


@pytest.fixture
def service():
    with closing(LauncherService(ACCESS, "127.0.0.1")) as service:
        yield service


@pytest.fixture
def remote(service):
    with closing(RemoteLauncher(service.address, ACCESS)) as remote:
        yield remote


def test_launcher_receives_what_the_master_asks(service, launcher, remote):
    service.serve(launcher)
    remote.start("worker", 0)
    remote.stop("ps", 1, "b" * 16, grace_seconds=2.5)
    assert launcher.asked == [("start", "worker", 0), ("stop", "ps", 1, "b" * 16, 2.5)]
    assert remote.observe() == (STATE,)


@pytest.mark.parametrize("error", [LauncherBusyError, CannotLaunchError])
def test_why_a_member_is_not_started_or_ended_comes_back(service, launcher, remote, error):
    service.serve(launcher)
    launcher.error = error("no more processes")
    with pytest.raises(error, match="no more processes"):
        remote.start("ps", 0)
    with pytest.raises(error, match="no more processes"):
        remote.stop("ps", 0, "b" * 16, grace_seconds=0.0)


def test_launcher_is_busy_until_it_is_open(service, launcher, remote):
    with pytest.raises(LauncherBusyError, match="not open yet"):
        remote.start("ps", 0)
    service.serve(launcher)
    remote.start("ps", 0)


def test_strangers_are_refused(service, launcher):
    service.serve(launcher)
    stranger = RemoteLauncher(service.address, Access("open-other", tls=None))
    with closing(stranger), pytest.raises(CallRefused):
        stranger.start("ps", 0)
    assert launcher.asked == []


@pytest.mark.parametrize(("role", "index"), [("master", 0), ("ps", -1)])
def test_the_master_starts_neither_masters_nor_members_without_a_number(
    service, launcher, remote, role, index
):
    service.serve(launcher)
    with pytest.raises(CallRefused, match=f"{role}-{index} is not the master's"):
        remote.start(role, index)
    assert launcher.asked == []


def test_a_closed_one_is_unavailable(service, launcher, remote):
    service.serve(launcher)
    service.close()
    with pytest.raises(PeerUnavailable):
        remote.observe()
