"""Workers that end while units are left are started again, and those that hang are killed."""

from dataclasses import replace

from ctr_pipeline.distributed.coordination.launching import LauncherBusyError, ProcessState
from ctr_pipeline.distributed.coordination.preparation import (
    PreparationBoard,
    UnitReport,
    plan_units,
)
from ctr_pipeline.distributed.launchers.restarts import MAX_CRASHES, KeptWorkers
from ctr_pipeline.pipeline.job.preparing import keep_preparing

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


def make_board():
    return PreparationBoard(UNITS, {}, silence_seconds=5.0, max_failures=3)


def make_workers(num_workers=2):
    launcher = PlainLauncher()
    return launcher, KeptWorkers(launcher, num_workers)


def test_a_killed_worker_is_started_at_once_and_its_unit_is_for_others():
    board, (launcher, workers) = make_board(), make_workers()
    keep_preparing(workers, board, 0.0)
    keep_preparing(workers, board, 0.1)
    assert launcher.starts == [0, 1]
    lost = board.lease("w0-1", 0.2)
    launcher.end(0, "killed", -9)
    keep_preparing(workers, board, 0.3)
    assert launcher.starts == [0, 1, 0]
    assert board.lease("w1-1", 0.4).unit == lost.unit
    keep_preparing(workers, board, 0.5)
    assert launcher.starts == [0, 1, 0]
    assert not board.failure


def test_a_silent_worker_is_killed_and_replaced():
    board, (launcher, workers) = make_board(), make_workers(num_workers=1)
    keep_preparing(workers, board, 0.0)
    board.lease("w0-1", 0.0)
    keep_preparing(workers, board, 5.1)
    keep_preparing(workers, board, 5.2)
    assert launcher.starts == [0, 0]
    assert board.unit_of("w0-1") is None


def test_a_worker_that_crashes_at_once_pauses_and_then_fails_the_job():
    board, (launcher, workers) = make_board(), make_workers(num_workers=1)
    now = 0.0
    for _ in range(MAX_CRASHES + 1):
        keep_preparing(workers, board, now)
        launcher.end(0, "error", 3, "ImportError: no module")
        keep_preparing(workers, board, now)
        num_starts = len(launcher.starts)
        keep_preparing(workers, board, now + 0.1)
        assert len(launcher.starts) == num_starts
        now += 30.0
    assert "worker-0 crashed 5 times in a row" in board.failure
    assert "ImportError" in board.failure
    assert len(launcher.starts) == MAX_CRASHES + 1


def test_crashes_between_units_that_are_done_are_no_crash_loop():
    board, (launcher, workers) = make_board(), make_workers(num_workers=1)
    for turn in range(3 * (MAX_CRASHES + 1)):
        keep_preparing(workers, board, 30.0 * turn)
        name = launcher.states[0].incarnation
        if turn % MAX_CRASHES == MAX_CRASHES - 1 and not board.is_over:
            lease = board.lease(name, 30.0 * turn)
            board.report(UnitReport(name, lease, 10, finished=True), 30.0 * turn)
        launcher.end(0, "error", 3, "out of luck")
        keep_preparing(workers, board, 30.0 * turn)
        if board.is_over:
            break
    assert board.is_over
    assert not board.failure


def test_units_that_are_done_in_each_phase_make_up_for_a_crash_in_each():
    """A worker that crashes once in each phase has done something in between."""
    launcher, workers = make_workers(num_workers=1)
    for phase in range(2 * MAX_CRASHES):
        board, now = make_board(), 100.0 * phase
        keep_preparing(workers, board, now, done_before=phase * len(UNITS))
        name = launcher.states[0].incarnation
        board.report(UnitReport(name, board.lease(name, now), 10, finished=True), now)
        launcher.end(0, "error", 3, "out of luck")
        keep_preparing(workers, board, now, done_before=phase * len(UNITS))
        assert not board.failure


def test_an_error_that_only_the_user_can_mend_fails_the_job():
    board, (launcher, workers) = make_board(), make_workers(num_workers=1)
    keep_preparing(workers, board, 0.0)
    launcher.end(0, "error", 1, "error: rows.csv: is gone")
    keep_preparing(workers, board, 0.1)
    keep_preparing(workers, board, 100.0)
    assert "worker-0 ended with an error" in board.failure
    assert "rows.csv: is gone" in board.failure
    assert launcher.starts == [0]


def test_a_launcher_that_is_busy_is_asked_again():
    board, (launcher, workers) = make_board(), make_workers(num_workers=1)
    launcher.is_busy = True
    keep_preparing(workers, board, 0.0)
    launcher.is_busy = False
    keep_preparing(workers, board, 0.1)
    assert launcher.starts == []
    keep_preparing(workers, board, 10.0)
    assert launcher.starts == [0]


def test_members_of_an_earlier_start_are_left_alone():
    board, (launcher, workers) = make_board(), make_workers(num_workers=1)
    for role, index in (("ps", 0), ("worker", 7)):
        state = ProcessState(role, index, f"{role}-old", 1, False, 1, "error", "", 0)
        launcher.states[role, index] = state
    keep_preparing(workers, board, 0.0)
    assert launcher.starts == [0]
    assert not board.failure


def test_worker_is_not_started_when_all_units_are_done():
    board, (launcher, workers) = make_board(), make_workers()
    keep_preparing(workers, board, 0.0)
    for _ in UNITS:
        lease = board.lease("w0-1", 0.0)
        board.report(UnitReport("w0-1", lease, 10, finished=True), 0.0)
    launcher.end(0, "completed", 0)
    keep_preparing(workers, board, 100.0)
    assert launcher.starts == [0, 1]
