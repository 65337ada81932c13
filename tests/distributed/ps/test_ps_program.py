"""A parameter server as a process, with a master that says what the test wants."""

import os
import signal
import subprocess
import sys
import threading
import urllib.request
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from ctr_pipeline.distributed.coordination.messages import (
    Empty,
    HeartbeatReply,
    HeartbeatRequest,
    RegisterReply,
    RegisterRequest,
    RestoreReply,
    RestoreRequest,
)
from ctr_pipeline.distributed.coordination.rounds import BatchId
from ctr_pipeline.distributed.ps.program import run_ps
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.client import RpcClient
from ctr_pipeline.distributed.rpc.endpoint import Endpoint, save_endpoint
from ctr_pipeline.distributed.rpc.server import Method, RpcServer
from ctr_pipeline.distributed.rpc.spec_file import save_spec
from ctr_pipeline.distributed.worker.ps_client import PsClient
from ctr_pipeline.errors import CtrPipelineError, RunFolderError
from tests.distributed.waiting import wait_until

LOOPBACK = "127.0.0.1:0"


class Master:
    """A master of one server."""

    def __init__(self, run_folder, spec, access=None):
        self.spec = spec
        self.access = access or Access.create(run_folder / "job", tls=False)
        save_spec(run_folder / "job", spec)
        self.registered = []
        self.heartbeats = []
        self.directive = "go_on"
        self.lets_go = True
        self.server = RpcServer(
            "MasterService",
            (
                Method("Register", RegisterRequest, RegisterReply, self._register),
                Method("Heartbeat", HeartbeatRequest, HeartbeatReply, self._heartbeat),
            ),
            address=LOOPBACK,
            access=self.access,
        )
        self.address = self.server.start()
        save_endpoint(run_folder / "job", Endpoint(self.address, "", "here", os.getpid()))

    def _register(self, request):
        self.registered.append(request)
        return RegisterReply("", 1, self.spec, (request.address,), 0.05)

    def _heartbeat(self, request):
        self.heartbeats.append(request)
        if request.leaves_in_seconds is not None and self.lets_go:
            self.directive = "leave"
        return HeartbeatReply(self.directive, 1, (), (), ("worker",))

    def wait_registered(self):
        wait_until(lambda: self.registered)
        return self.registered[-1]

    def restore(self):
        client = RpcClient("PsService", self.wait_registered().address, self.access)
        request = RestoreRequest(1, 0, (), (), ())
        reply = client.call("Restore", request, RestoreReply, deadline_seconds=60)
        client.close()
        return reply

    def train_a_batch(self):
        client = PsClient(self.spec, self.access, incarnation="worker")
        client.route(1, (self.wait_registered().address,))
        client.init_dense(np.zeros(self.spec.num_dense, np.float32))
        prepared = client.prepare(np.array([[1, 2, 3], [4, 5, 6]], np.int32), 2)
        pull = client.start_pull(prepared, create=True, batch=BatchId(0, 0, 1, 0))
        linear, embeddings = client.gather_parts(pull, 1)
        dense = client.dense(pull)
        outcome = client.start_push(
            pull,
            (linear, embeddings),
            dense,
            BatchId(0, 0, 1, 0),
            step=1,
            learning_rate_factor=1.0,
            num_examples=2,
            refresh=None,
        ).wait()
        client.close()
        return outcome.verdict


@pytest.fixture
def master(make_spec, tmp_path):
    found = Master(tmp_path, make_spec())
    yield found
    found.server.stop(0)


def run_in_thread(*arguments):
    codes = []
    thread = threading.Thread(target=lambda: codes.append(run_ps(*arguments)), daemon=True)
    thread.start()
    return thread, codes


def test_server_registers_serves_and_leaves(master, tmp_path):
    thread, codes = run_in_thread(tmp_path, 0, None, LOOPBACK)
    assert not master.restore().refused
    assert master.train_a_batch() == "applied"
    wait_until(lambda: master.heartbeats and master.heartbeats[-1].stats.version == 1)
    stats = master.heartbeats[-1].stats
    assert stats.rows_held == 6
    assert stats.bytes_received > 0
    assert stats.bytes_sent > 0
    assert stats.rss_bytes > 0
    assert master.heartbeats[-1].generation == 1
    address = master.registered[0].metrics_address
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    for line in (
        'ctrpipe_ps_pushes_total{outcome="applied"} 1.0',
        "ctrpipe_ps_rows 6.0",
        "ctrpipe_ps_spilled_row_bytes 0.0",
        "ctrpipe_ps_evicted_rows_total 0.0",
        "ctrpipe_ps_longest_hold_seconds ",
        "ctrpipe_ps_longest_lock_seconds ",
        "ctrpipe_ps_lock_seconds_total ",
        "ctrpipe_ps_generation 1.0",
        "ctrpipe_ps_version 1.0",
    ):
        assert line in text
    master.directive = "leave"
    thread.join(60)
    assert codes == [0]


def test_server_can_be_ended_by_whoever_may_call_it(master, tmp_path):
    thread, codes = run_in_thread(tmp_path, 0, master.address, LOOPBACK)
    client = RpcClient("PsService", master.wait_registered().address, master.access)
    client.call("Shutdown", Empty(), Empty, deadline_seconds=60)
    client.close()
    thread.join(60)
    assert codes == [0]


def test_server_finds_a_master_that_comes_back_elsewhere(master, tmp_path):
    thread, codes = run_in_thread(tmp_path, 0, None, LOOPBACK)
    master.wait_registered()
    master.server.stop(0)
    again = Master(tmp_path, master.spec, master.access)
    wait_until(lambda: again.heartbeats)
    again.directive = "leave"
    thread.join(60)
    again.server.stop(0)
    assert codes == [0]


@pytest.mark.parametrize("index", [-1, 16])
def test_a_server_that_the_job_has_not_is_told_so(master, tmp_path, index):
    with pytest.raises(CtrPipelineError, match="a job of 16 partitions has no parameter server"):
        run_ps(tmp_path, index, master.address, LOOPBACK)


def test_a_folder_without_a_job_is_told_so(tmp_path):
    with pytest.raises(RunFolderError):
        run_ps(tmp_path, 0, None, LOOPBACK)


def test_a_port_that_is_taken_is_told_so(master, tmp_path):
    with pytest.raises(CtrPipelineError, match="in use"):
        run_ps(tmp_path, 0, master.address, master.address)


CODE = """
import sys
from pathlib import Path
from ctr_pipeline.distributed.ps.program import run_ps
code = run_ps(Path(sys.argv[1]), 0, None, "127.0.0.1:0")
print(" ".join(sorted(m for m in sys.modules if "." not in m)), flush=True)
raise SystemExit(code)
"""


@pytest.mark.slow
@pytest.mark.parametrize("num_signals", [1, 2])
def test_a_process_that_is_asked_to_end_stays_until_the_master_lets_it_go(
    master, tmp_path, num_signals
):
    master.lets_go = False
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, str(tmp_path)], stdout=subprocess.DEVNULL
    )
    try:
        assert not master.restore().refused
        process.send_signal(signal.SIGTERM)
        wait_until(
            lambda: master.heartbeats and master.heartbeats[-1].leaves_in_seconds is not None
        )
        assert 20 < master.heartbeats[-1].leaves_in_seconds <= 27
        assert master.train_a_batch() == "applied"
        assert process.poll() is None
        # A second signal means at once.
        if num_signals == 2:
            process.send_signal(signal.SIGTERM)
        else:
            master.lets_go = True
        assert process.wait(timeout=60) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_a_process_is_small_loads_no_tensorflow_and_ends_cleanly(master, tmp_path):
    # As large as a server of many rows: what is reserved is not resident.
    tables = tuple(replace(table, num_ids=10**6) for table in master.spec.tables)
    master.spec = replace(master.spec, tables=tables, counts_file="")
    save_spec(tmp_path / "job", master.spec)
    with subprocess.Popen(
        [sys.executable, "-c", CODE, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert not master.restore().refused
            # Without pages of files, of which the system maps as many as it likes.
            memory = psutil.Process(process.pid).memory_info()
            before_rows = memory.rss - memory.shared
            assert master.train_a_batch() == "applied"
            process.send_signal(signal.SIGTERM)
            output, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 128 + signal.SIGTERM
    loaded = set(output.split())
    assert loaded.isdisjoint({"tensorflow", "keras", "duckdb", "pandas", "sklearn", "pyarrow"})
    assert before_rows < 160e6
    assert Path(tmp_path / "job" / "spec.json").exists()
