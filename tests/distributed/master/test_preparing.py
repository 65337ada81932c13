"""Units are given to workers, phase after phase, and what they report is in the ledger."""

import threading
import time
from contextlib import contextmanager

import pytest

from ctr_pipeline.distributed.coordination.preparation import (
    PreparationBoard,
    Unit,
    plan_units,
)
from ctr_pipeline.distributed.master.ledger.unit_file import UnitLedger
from ctr_pipeline.distributed.master.preparing import PreparationServer, ServedPhase
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.endpoint import Endpoint, save_endpoint
from ctr_pipeline.distributed.rpc.failures import PeerUnavailable
from ctr_pipeline.distributed.worker import preparing
from ctr_pipeline.distributed.worker.preparing import work_on_units
from ctr_pipeline.errors import (
    ConfigError,
    ConfigProblem,
    DataError,
    ExportError,
    StorageError,
)
from ctr_pipeline.storage.protocol import StorageAwayError

UNITS = plan_units("train", [10, 10, 10], 10)
PATIENCE_SECONDS = 60.0


class Work:
    """What a test has a worker do with units."""

    def __init__(self, work_on, fingerprint="rows", is_final=lambda error: False):
        self.work_on = work_on
        self.fingerprint = fingerprint
        self.is_final = is_final


def phase_of(folder, units=UNITS, *, name="encode", fingerprint="rows", max_failures=2):
    board = PreparationBoard(units, {}, silence_seconds=5.0, max_failures=max_failures)
    return ServedPhase(name, fingerprint, board, UnitLedger(folder, fingerprint, len(units)))


@pytest.fixture
def server(tmp_path):
    """Serves on the loopback device; workers find it by the folder of the test."""
    access = Access.create(tmp_path, tls=False)
    with PreparationServer(
        bind="127.0.0.1:0", access=access, most_clock_step_seconds=1.0
    ) as opened:
        save_endpoint(tmp_path, Endpoint(opened.address, "", "here", 1))
        yield opened


@contextmanager
def working(folder, open_work, report_seconds=0.01):
    """A worker in a thread, which has left when the block ends."""
    arguments = {"report_seconds": report_seconds}
    worker = threading.Thread(
        target=work_on_units, args=(folder, "a", open_work), kwargs=arguments, daemon=True
    )
    worker.start()
    yield worker
    worker.join(PATIENCE_SECONDS)
    assert not worker.is_alive()


def wait_for(what):
    until = time.monotonic() + PATIENCE_SECONDS
    while not what():
        assert time.monotonic() < until
        time.sleep(0.001)


def serve(server, phase, folder, work, **arguments):
    """Has a worker do a phase, the only one, until it is over or fails."""
    server.begin(phase)
    with working(folder, lambda _: work, **arguments):
        wait_for(lambda: phase.board.is_over or phase.board.failure)
        server.end()


def test_a_worker_does_all_units_and_the_ledger_says_so(server, tmp_path):
    done = []

    def encode(lease, report):
        report.add(lease.unit.size)
        report.say(f"{lease.part} is encoded")
        done.append(lease.part)

    phase = phase_of(tmp_path)
    serve(server, phase, tmp_path, Work(encode))
    assert done == phase.board.parts_of("train") == ["00000-1", "00001-1", "00002-1"]
    assert phase.board.take_said() == [f"{part} is encoded" for part in done]
    assert phase.board.take_said() == []
    records = UnitLedger(tmp_path, "rows", len(UNITS)).records
    board = PreparationBoard(UNITS, records, silence_seconds=5.0, max_failures=3)
    assert board.is_over
    assert UnitLedger(tmp_path, "others", len(UNITS)).records == {}


def test_a_worker_goes_on_from_phase_to_phase(server, tmp_path):
    opened, done = [], []
    phases = [
        phase_of(tmp_path / name, name=name, fingerprint=f"{name} rows")
        for name in ("read", "encode")
        if (tmp_path / name).mkdir() is None
    ]

    def open_work(name):
        opened.append(name)
        return Work(lambda lease, _: done.append((name, lease.part)), f"{name} rows")

    with working(tmp_path, open_work) as worker:
        for phase in phases:
            server.begin(phase)
            wait_for(lambda board=phase.board: board.is_over)
        assert worker.is_alive()
        server.end()
    parts = [f"0000{number}-1" for number in range(3)]
    assert opened == ["read", "encode"]
    assert done == [(name, part) for name in opened for part in parts]


def test_a_report_on_a_unit_of_the_phase_before_changes_nothing(server, tmp_path):
    first = phase_of(tmp_path, plan_units("train", [10], 10, "bytes"), name="read")
    second = phase_of(tmp_path, fingerprint="others")
    has_begun, goes_on, attempts = threading.Event(), threading.Event(), []

    def read(lease, report):
        attempts.append(lease.unit.measure)
        if lease.unit.measure == "bytes":
            has_begun.set()
            assert goes_on.wait(PATIENCE_SECONDS)
            report.add(lease.unit.size)

    server.begin(first)
    with working(tmp_path, lambda name: Work(read, "rows" if name == "read" else "others"), 60.0):
        assert has_begun.wait(PATIENCE_SECONDS)
        server.begin(second)
        goes_on.set()
        wait_for(lambda: second.board.is_over)
        server.end()
    assert attempts == ["bytes", *["rows"] * len(UNITS)]
    assert first.board.num_done == 0
    assert second.board.num_done == len(UNITS)


def test_a_unit_that_cannot_be_encoded_is_tried_again_and_then_named(server, tmp_path):
    def encode(lease, _report):
        if lease.unit.number == 1:
            raise DataError("is damaged", place="part-00001.arrow")

    phase = phase_of(tmp_path)
    serve(server, phase, tmp_path, Work(encode))
    assert "rows 10 to 19 of train" in phase.board.failure
    assert "part-00001.arrow" in phase.board.failure
    assert phase.board.num_done == 1


@pytest.mark.parametrize("what", ["other rows", "cannot be opened"])
def test_a_worker_that_would_do_something_else_does_nothing(server, tmp_path, what):
    done, opened = [], []

    def open_work(name):
        opened.append(name)
        if what == "cannot be opened":
            raise DataError("cannot be opened", place="facts.json")
        return Work(lambda lease, _: done.append(lease), "others")

    phase = phase_of(tmp_path)
    server.begin(phase)
    with working(tmp_path, open_work):
        wait_for(lambda: phase.board.failure)
        server.end()
    assert "rows 0 to 9 of train" in phase.board.failure
    assert what in phase.board.failure
    assert opened == ["encode", "encode"]
    assert done == []


def test_an_export_that_does_not_score_as_it_should_is_not_made_again(server, tmp_path):
    attempts = []

    def export(lease, _report):
        attempts.append(lease.part)
        raise ExportError("scores otherwise", place="export/1")

    phase = phase_of(tmp_path)
    work = Work(export, is_final=lambda error: isinstance(error, ExportError))
    serve(server, phase, tmp_path, work)
    assert attempts == ["00000-1"]
    assert "export/1: scores otherwise" in phase.board.failure


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConfigError([ConfigProblem("c.yaml:7", "features", "all are missing")]), ConfigError),
        (StorageAwayError("does not answer", place="s3://rows", remedy="Start it"), StorageError),
    ],
    ids=["config", "storage"],
)
def test_stage_error_of_a_worker_is_raised_as_in_one_process(server, tmp_path, error, kind):
    stages = Unit("statistics", 0, 0, num_parts=1, start=0, size=3, measure="stages")
    phase = phase_of(tmp_path, [stages], name="analyze", max_failures=1)
    told = []

    def analyze(_lease, report):
        report.note("Statistics: 3 of 40 columns")
        wait_for(lambda: phase.board.doing)
        told.append(phase.board.doing)
        raise error

    serve(server, phase, tmp_path, Work(analyze), report_seconds=0.001)
    assert told == ["Statistics: 3 of 40 columns"]
    assert phase.board.doing == ""
    assert phase.board.failure == f"the statistics could not be computed: {error}"
    raised = phase.board.error.to_error()
    assert (type(raised), raised.exit_code) == (kind, error.exit_code)
    assert str(raised) == str(error)


def test_a_worker_leaves_whom_nobody_gives_units_any_more(tmp_path, monkeypatch):
    monkeypatch.setattr(preparing, "_PATIENCE_SECONDS", 0.1)
    access = Access.create(tmp_path, tls=False)
    server = PreparationServer(bind="127.0.0.1:0", access=access, most_clock_step_seconds=1.0)
    save_endpoint(tmp_path, Endpoint(server.address, "", "here", 1))
    server.begin(phase_of(tmp_path))
    attempts = []

    def encode(lease, _report):
        attempts.append(lease.part)
        server.__exit__()

    work_on_units(tmp_path, "a", lambda _: Work(encode), report_seconds=60.0)
    assert attempts == ["00000-1"]
    with pytest.raises(PeerUnavailable):
        work_on_units(tmp_path, "b", lambda _: pytest.fail("a unit"), report_seconds=60.0)


def test_an_attempt_that_lost_its_lease_is_given_up(server, tmp_path):
    attempts = []

    def encode(lease, report):
        attempts.append(lease.part)
        if len(attempts) == 1:
            server.change(lambda board, _now: board.release("a"))
            never = threading.Event()
            for _ in range(1000):
                report.add(0)
                never.wait(0.01)
            pytest.fail("nobody said that the lease is lost")

    phase = phase_of(tmp_path)
    serve(server, phase, tmp_path, Work(encode), report_seconds=0.001)
    assert attempts[:2] == ["00000-1", "00000-2"]
    assert phase.board.is_over
