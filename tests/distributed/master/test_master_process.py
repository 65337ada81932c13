"""The master as a process of its own: how light it is, and that it may be killed."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import psutil
import pytest

from ctr_pipeline.distributed.rpc.endpoint import load_endpoint
from tests.distributed.master.fake_members import World, all_batches, prepare_job

HEAVY = {"tensorflow", "keras", "numba", "llvmlite", "pyarrow", "pandas", "duckdb", "sklearn"}
PROGRAM = """
import sys
from pathlib import Path
from ctr_pipeline.distributed.master.program import run_master
from ctr_pipeline.errors import Interrupted
from ctr_pipeline.interruption import handle_signals
try:
    with handle_signals():
        code = run_master(Path(sys.argv[1]), "127.0.0.1:0")
except Interrupted as stop:
    code = stop.exit_code
print("modules:", *sorted(sys.modules))
sys.exit(code)
"""


class MasterProcess:
    """`run_master` in a process; members are threads here, started by hand."""

    def __init__(self, world):
        self.world = world
        self.output = world.run_folder / "master.out"
        self.process = None

    def start(self):
        """Starts one and waits until it answers."""
        started = time.monotonic()
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(self.world.run_folder)],
                stdout=output,
                stderr=output,
            )
        while True:
            assert self.process.poll() is None, self.output.read_text()
            assert time.monotonic() - started < 60
            endpoint = load_endpoint(self.world.run_folder / "job")
            if endpoint is not None and endpoint.pid == self.process.pid:
                return
            time.sleep(0.01)

    def end(self, number):
        self.process.send_signal(number)
        return self.process.wait(60)

    def wait_for(self, condition):
        give_up = time.monotonic() + 90
        while time.monotonic() < give_up:
            assert self.process.poll() is None, self.output.read_text()
            view = self.world.status()
            if condition(view):
                return view
            time.sleep(0.02)
        raise AssertionError(f"it did not come to that: {view}")


@contextmanager
def job(tmp_path, **wishes):
    world = World(tmp_path / "run", prepare_job(tmp_path / "run", **wishes))
    master = MasterProcess(world)
    try:
        yield world, master
    finally:
        if master.process is not None and master.process.poll() is None:
            master.end(signal.SIGKILL)
        world.close()


def start_members(world):
    for index in range(2):
        world.launcher.start("ps", index)
        world.launcher.start("worker", index)


@pytest.mark.slow
def test_master_starts_fast_and_stays_light(tmp_path):
    with job(tmp_path) as (world, master):
        master.start()
        # Of the processor, as others may use it too; about a second on an idle machine.
        assert min(_restart(master) for _ in range(3)) < 2.0
        start_members(world)
        master.wait_for(lambda view: view.state == "finished")
        assert psutil.Process(master.process.pid).memory_info().rss < 100 * 2**20
        # Nobody tells it that its members are gone, so it waits for them: the other tests do not.
        assert master.process.wait(60) == 0
        modules = set(re.findall(r"^modules: (.*)$", master.output.read_text(), re.M)[-1].split())
        assert "ctr_pipeline.distributed.master.program" in modules
        assert not HEAVY & modules


def _restart(master):
    master.end(signal.SIGKILL)
    master.start()
    used = psutil.Process(master.process.pid).cpu_times()
    return used.user + used.system


@pytest.mark.slow
def test_killed_again_and_again_it_loses_nothing_and_repeats_nothing(tmp_path):
    with job(tmp_path, num_rows=4000, batch_size=2, epochs=1) as (world, master):
        world.batch_seconds = 0.003
        address, trained_alone = None, 0
        master.start()
        start_members(world)
        generation = master.wait_for(lambda view: view.records.trained > 100).generation
        for number in range(3):
            enough = 200 * (number + 1)
            master.wait_for(lambda view, enough=enough: view.records.trained > enough)
            address = load_endpoint(world.run_folder / "job").address
            assert master.end(signal.SIGKILL) == -signal.SIGKILL
            before = world.launcher.members[("ps", 0)].core.serving.version
            time.sleep(0.3)
            after = world.launcher.members[("ps", 0)].core.serving.version
            trained_alone += after - before
            master.start()
            assert load_endpoint(world.run_folder / "job").address == address
        world.batch_seconds = 0.0
        view = master.wait_for(lambda view: view.state == "finished")
        assert dict(world.model()) == dict.fromkeys(all_batches(world.spec, 1), 1)
        # Workers went on without a master, on what they had leased.
        assert trained_alone > 0
        assert view.records.trained == 4000
        assert view.records.repeated == 0
        assert view.generation == generation
        assert view.members[0].restarts == 3
        lost = [event for event in view.events if event.what == "the master was lost"]
        # What a master says of its start may wait a second for its record.
        assert 1 <= len(lost) <= 3
        assert all(event.recovery_seconds < 30 for event in lost)


@pytest.mark.slow
def test_sigterm_ends_it_in_order_and_the_next_one_goes_on(tmp_path):
    with job(tmp_path, num_rows=4000, batch_size=2, epochs=1) as (world, master):
        world.batch_seconds = 0.002
        master.start()
        start_members(world)
        master.wait_for(lambda view: view.records.trained > 200)
        assert master.end(signal.SIGTERM) == 128 + signal.SIGTERM
        master.start()
        world.batch_seconds = 0.0
        master.wait_for(lambda view: view.state == "finished")
        assert dict(world.model()) == dict.fromkeys(all_batches(world.spec, 1), 1)


@pytest.mark.slow
def test_a_stopped_process_is_no_disaster(tmp_path):
    """SIGSTOP for longer than members may be silent: nobody is declared dead for our sleep."""
    with job(tmp_path, num_rows=4000, batch_size=2, epochs=1) as (world, master):
        world.batch_seconds = 0.002
        master.start()
        start_members(world)
        generation = master.wait_for(lambda view: view.records.trained > 200).generation
        os.kill(master.process.pid, signal.SIGSTOP)
        time.sleep(7.0)
        os.kill(master.process.pid, signal.SIGCONT)
        world.batch_seconds = 0.0
        view = master.wait_for(lambda view: view.state == "finished")
        assert view.generation == generation
        assert dict(world.model()) == dict.fromkeys(all_batches(world.spec, 1), 1)
