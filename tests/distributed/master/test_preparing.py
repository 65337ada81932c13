"""Workers that end while units are left are started again, and those that hang are killed."""

import threading
from dataclasses import replace

import pytest

from ctr_pipeline.distributed.coordination.launching import LauncherBusyError, ProcessState
from ctr_pipeline.distributed.coordination.preparation import (
    PreparationBoard,
    UnitReply,
    UnitReport,
    UnitRequest,
    plan_units,
)
from ctr_pipeline.distributed.master.ledger.unit_file import UnitLedger
from ctr_pipeline.distributed.master.preparing import PreparationServer, WorkerKeeper
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.client import RpcClient
from ctr_pipeline.distributed.rpc.endpoint import Endpoint, save_endpoint
from ctr_pipeline.distributed.rpc.failures import CallRefused
from ctr_pipeline.distributed.worker.preparing import encode_units
from ctr_pipeline.errors import DataError

UNITS = plan_units("train", [10, 10, 10], 10)


class PlainLauncher:
    """Notes what it is asked for; the test says how processes end."""

    def __init__(self):
        self.states = {}
        self.starts = []
        self.is_busy = False

    def start(self, role, index):
        assert role == "worker"
        if self.is_busy:
            raise LauncherBusyError("no more processes")
        self.starts.append(index)
        name = f"w{index}-{self.starts.count(index)}"
        self.states[index] = ProcessState("worker", index, name, 1, True, None, None, "", 0)

    def stop(self, role, index, incarnation, *, grace_seconds):
        assert (role, grace_seconds) == ("worker", 0.0)
        if self.states[index].incarnation == incarnation:
            self.end(index, "killed", -9)

    def end(self, index, reason, exit_code, traceback=""):
        self.states[index] = replace(
            self.states[index],
            running=False,
            reason=reason,
            exit_code=exit_code,
            traceback=traceback,
        )

    def observe(self):
        return tuple(self.states.values())


def make_board(max_failures=3):
    return PreparationBoard(UNITS, {}, silence_seconds=5.0, max_failures=max_failures)


def make_keeper(num_workers=2):
    launcher = PlainLauncher()
    return launcher, WorkerKeeper(launcher, num_workers=num_workers, max_failures=3)


def test_a_killed_worker_is_started_at_once_and_its_unit_is_for_others():
    board, (launcher, keeper) = make_board(), make_keeper()
    keeper.look(board, 0.0)
    keeper.look(board, 0.1)
    assert launcher.starts == [0, 1]
    lost = board.lease("w0-1", 0.2).lease
    launcher.end(0, "killed", -9)
    keeper.look(board, 0.3)
    assert launcher.starts == [0, 1, 0]
    assert board.lease("w1-1", 0.4).lease.unit == lost.unit
    keeper.look(board, 0.5)
    assert launcher.starts == [0, 1, 0]
    assert not board.failure


def test_a_silent_worker_is_killed_and_replaced():
    board, (launcher, keeper) = make_board(), make_keeper(num_workers=1)
    keeper.look(board, 0.0)
    board.lease("w0-1", 0.0)
    keeper.look(board, 5.1)
    keeper.look(board, 5.2)
    assert launcher.starts == [0, 0]
    assert board.unit_of("w0-1") is None


def test_a_worker_that_fails_at_once_pauses_and_then_fails_the_job():
    board, (launcher, keeper) = make_board(), make_keeper(num_workers=1)
    now = 0.0
    for _ in range(3):
        keeper.look(board, now)
        launcher.end(0, "error", 1, "ImportError: no module")
        keeper.look(board, now)
        num_starts = len(launcher.starts)
        keeper.look(board, now + 0.1)
        assert len(launcher.starts) == num_starts
        now += 60.0
    assert "worker-0 failed" in board.failure
    assert "ImportError" in board.failure
    assert len(launcher.starts) == 3


def test_a_launcher_that_is_busy_is_asked_again():
    board, (launcher, keeper) = make_board(), make_keeper(num_workers=1)
    launcher.is_busy = True
    keeper.look(board, 0.0)
    launcher.is_busy = False
    keeper.look(board, 0.1)
    assert launcher.starts == []
    keeper.look(board, 10.0)
    assert launcher.starts == [0]


def test_members_of_an_earlier_start_are_left_alone():
    board, (launcher, keeper) = make_board(), make_keeper(num_workers=1)
    for role, index in (("ps", 0), ("worker", 7)):
        state = ProcessState(role, index, f"{role}-old", 1, False, 1, "error", "", 0)
        launcher.states[role, index] = state
    keeper.look(board, 0.0)
    assert launcher.starts == [0]
    assert not board.failure


def test_nobody_is_started_when_all_is_done():
    board, (launcher, keeper) = make_board(), make_keeper()
    keeper.look(board, 0.0)
    for _ in UNITS:
        lease = board.lease("w0-1", 0.0).lease
        board.report(UnitReport("w0-1", lease, 10, finished=True), 0.0)
    launcher.end(0, "completed", 0)
    keeper.look(board, 100.0)
    assert launcher.starts == [0, 1]


@pytest.fixture
def serving(tmp_path):
    """A board that is served on the loopback device, and the folder where workers find it."""
    access = Access.create(tmp_path, tls=False)
    board = make_board(max_failures=2)
    ledger = UnitLedger(tmp_path, "these", len(UNITS))
    with PreparationServer(
        board,
        ledger,
        fingerprint="rows",
        bind="127.0.0.1:0",
        access=access,
        most_clock_step_seconds=1.0,
    ) as server:
        save_endpoint(tmp_path, Endpoint(server.address, "", "here", 1))
        yield tmp_path, board, server


def test_a_worker_encodes_all_units_and_the_ledger_says_so(serving):
    folder, board, _ = serving
    done = []

    def encode(lease, on_rows):
        on_rows(lease.unit.num_rows)
        done.append(lease.part)

    encode_units(folder, "a", "rows", encode, report_seconds=0.01)
    assert done == board.parts_of("train") == ["00000-1", "00001-1", "00002-1"]
    records = UnitLedger(folder, "these", len(UNITS)).records
    assert make_board_of(records).is_over
    assert UnitLedger(folder, "others", len(UNITS)).records == {}


def make_board_of(records):
    return PreparationBoard(UNITS, records, silence_seconds=5.0, max_failures=3)


def test_a_unit_that_cannot_be_encoded_is_tried_again_and_then_named(serving):
    folder, board, _ = serving

    def encode(lease, _on_rows):
        if lease.unit.number == 1:
            raise DataError("is damaged", place="part-00001.arrow")

    encode_units(folder, "a", "rows", encode, report_seconds=0.01)
    assert "rows 10 to 19 of train" in board.failure
    assert "part-00001.arrow" in board.failure
    assert board.num_done == 1


def test_an_attempt_that_lost_its_lease_is_given_up(serving):
    folder, board, server = serving
    attempts = []

    def encode(lease, on_rows):
        attempts.append(lease.part)
        if len(attempts) == 1:
            server.change(lambda board, _now: board.release("a"))
            never = threading.Event()
            for _ in range(1000):
                on_rows(0)
                never.wait(0.01)
            pytest.fail("nobody said that the lease is lost")

    encode_units(folder, "a", "rows", encode, report_seconds=0.001)
    assert attempts[:2] == ["00000-1", "00000-2"]
    assert board.is_over


def test_a_worker_of_other_rows_is_refused(serving):
    folder, board, server = serving
    client = RpcClient("MasterService", server.address, Access.load(folder, "worker"))
    with pytest.raises(CallRefused, match="other rows"):
        client.call("LeaseUnit", UnitRequest("a", "others"), UnitReply, deadline_seconds=5.0)
    client.close()
    assert board.unit_of("a") is None
