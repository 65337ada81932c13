"""Runs with `output: s3://…` in real S3 servers: killed, lost with their machines, resumed."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from watched_run import CTRPIPE, WatchedRun, slowed

from ctr_pipeline.errors import FolderInUseError, StorageError
from ctr_pipeline.pipeline.stored_run import StoredRun
from ctr_pipeline.storage.commit_log import FencedError
from ctr_pipeline.training.history import load_history
from tests.distributed.waiting import wait_until
from tests.pipeline.clicks import settings_of, write_clicks
from tests.storage.http_faults import Fault
from tests.storage.store_servers import SERVERS

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(1200)]

PATIENCE_SECONDS = 400.0
EPOCHS = 6
MODES = {
    "local": {"mode": "local"},
    "processes": {
        "mode": "processes",
        "parameter_servers": 2,
        "workers": {"min": 1, "max": 1},
        "partitions": 8,
    },
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "rows.tsv"
    write_clicks(path, 20_000)
    return path


def config_of(data, mode):
    return settings_of(
        data,
        "run",
        features=[{"columns": "C1..C8", "id": [{"vocabulary": {"min_count": 2}}]}],
        train={
            "epochs": EPOCHS,
            "batch_size": 32,
            "checkpoint_seconds": 1.0,
            "early_stopping": None,
        },
        report={"importance": False},
        runtime=MODES[mode],
    )


def machine(folder, name):
    """The environment of another machine: nothing of the run lies there."""
    return {**os.environ, "XDG_CACHE_HOME": str(folder / name), "TF_CPP_MIN_LOG_LEVEL": "3"}


def start(folder, name, *arguments):
    return subprocess.Popen(
        [*CTRPIPE, *arguments],
        env=machine(folder, name),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def call(folder, name, *arguments):
    process = start(folder, name, *arguments)
    said, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, said
    return said


def lose_the_machine(run, store):
    """Kills a run once it has committed some checkpoints, and deletes its working copy."""

    def checkpoints():
        keys = [one.key for one in store.list("checkpoints")]
        return [key for key in keys if "/manifests/" in key]

    run.start("run")
    run.wait_for("an epoch", (run.output / "history.csv").exists, PATIENCE_SECONDS)
    # However fast the machine is, the run outlasts the seconds between two commits.
    with contextlib.ExitStack() as slow:
        for process in run.processes():
            slow.enter_context(slowed(process.pid, 0.95))
        run.wait_for("three checkpoints", lambda: len(checkpoints()) >= 3, PATIENCE_SECONDS)
        run.wait_for("a commit of them", lambda: has_history(store), PATIENCE_SECONDS)
        os.kill(run.pid, signal.SIGKILL)
    run.wait(PATIENCE_SECONDS)
    run.kill_what_is_left()
    shutil.rmtree(run.output)


def said_of(run):
    file = run.output / "sessions.json"
    return file.read_text() if file.exists() else ""


def has_history(store):
    """Whether the newest commit names it; parts alone count for nothing."""
    commits = sorted(one.key for one in store.list("manifests"))
    return bool(commits) and b"history.csv" in store.read(commits[-1])


def begin(address, scratch):
    with StoredRun(address, scratch, "clicks").kept():
        (scratch / "metrics.json").write_text("{}")


@pytest.mark.parametrize(
    ("method", "status", "code", "message"),
    [
        ("GET", 403, "AccessDenied", r"refuses it \(AccessDenied.*Check the credentials"),
        ("PUT", 403, "AccessDenied", r"refuses it \(AccessDenied.*Check the credentials"),
        ("GET", 400, "ExpiredToken", r"no longer valid .*Renew the credentials"),
        ("GET", 403, "RequestTimeTooSkewed", r"signed at another time.*Set the clock of this"),
        ("GET", 301, "PermanentRedirect", r"not in the region us-east-1\. Set AWS_REGION to"),
        ("GET", 400, "AuthorizationHeaderMalformed", r"Check the address, the region and the"),
    ],
)
def test_a_refusal_is_told_before_any_work(open_store, tmp_path, method, status, code, message):
    server, store = open_store("moto")
    server.faults.trouble(Fault(method, times=99, status=status, code=code))
    with pytest.raises(StorageError, match=message) as caught:
        begin(store.address, tmp_path / "scratch")
    assert caught.value.place.startswith(store.address)
    server.faults.trouble()
    assert store.list("") == []


@pytest.mark.parametrize("server", SERVERS)
def test_a_second_run_at_an_address_is_refused_while_the_first_one_works(
    open_store, tmp_path, server
):
    _, store = open_store(server)
    with StoredRun(store.address, tmp_path / "first", "first").kept():
        with pytest.raises(FolderInUseError, match=r"the run 'first' \(process \d+ on .*Wait for"):
            begin(store.address, tmp_path / "second")
        (tmp_path / "first/metrics.json").write_text("first")
    copy = StoredRun(store.address, tmp_path / "reader")
    copy.fetch(is_used=lambda: False)
    assert (copy.folder / "metrics.json").read_text() == "first"


def test_a_bucket_that_is_not_there_is_told(open_store, tmp_path):
    open_store("moto")
    with pytest.raises(StorageError, match="s3://no-such-bucket/run: the bucket is not there"):
        begin("s3://no-such-bucket/run", tmp_path / "scratch")


def test_run_is_worked_on_by_one_of_16_that_begin_at_once(open_store, tmp_path):
    faults, store = open_store("moto")
    faults.faults.trouble(*(Fault("PUT", times=4, status=status) for status in (409, 412, 503)))
    faults.network.slow(delay_seconds=0.05)
    together, have_begun = threading.Barrier(16), set()

    def work(number):
        run = StoredRun(store.address, tmp_path / str(number), f"run-{number}")
        together.wait()
        try:
            with run.kept():
                (run.folder / "metrics.json").write_text(str(number))
                have_begun.add(number)
                # Whoever came later would go on with a run that is over.
                wait_until(lambda: len(have_begun) == 16, seconds=PATIENCE_SECONDS)
        except (FencedError, FolderInUseError):
            have_begun.add(number)
            return None
        return number

    with ThreadPoolExecutor(16) as pool:
        done = [one for one in pool.map(work, range(16)) if one is not None]
    assert len(done) == 1
    copy = StoredRun(store.address, tmp_path / "reader")
    copy.fetch(is_used=lambda: False)
    assert (copy.folder / "metrics.json").read_text() == str(done[0])


@pytest.mark.parametrize(
    ("mode", "server"),
    [
        ("local", "moto"),
        pytest.param("processes", "seaweedfs", marks=pytest.mark.nightly),
    ],
)
def test_any_machine_goes_on_scores_and_reports_by_the_address(
    data, open_store, tmp_path, mode, server
):
    _, store = open_store(server)
    with WatchedRun(tmp_path / "first", config_of(data, mode), stored_at=store.address) as run:
        lose_the_machine(run, store)
    said = call(tmp_path, "second", "status", store.address)
    assert f"ctrpipe run {store.address} --resume" in said
    said = call(tmp_path, "second", "run", store.address, "--resume")
    assert f"run          {store.address}" in said
    (copy,) = (tmp_path / "second/ctrpipe/runs").iterdir()
    assert [one.epoch for one in load_history(copy / "history.csv")] == list(range(EPOCHS))
    for name in ("job/token", "job/ledger.sqlite", "cache", ".lock"):
        assert not [one.key for one in store.list("parts") if f"-{name}" in one.key]
    said = call(tmp_path, "third", "report", store.address)
    page = said.split("report", 1)[1].strip()
    assert "<html" in (tmp_path / page).read_text()
    scores = tmp_path / "scores.parquet"
    call(tmp_path, "third", "predict", store.address, "--data", str(data), "--output", str(scores))
    assert scores.stat().st_size > 20_000
    assert "finished" in call(tmp_path, "third", "status", store.address)


def test_run_is_resumed_by_one_of_two_processes_at_once(data, open_store, tmp_path):
    _, store = open_store("seaweedfs")
    with WatchedRun(tmp_path / "first", config_of(data, "local"), stored_at=store.address) as run:
        lose_the_machine(run, store)
    rivals = [start(tmp_path, name, "run", store.address, "--resume") for name in ("a", "b")]
    said = [rival.communicate(timeout=PATIENCE_SECONDS)[0] for rival in rivals]
    codes = [rival.returncode for rival in rivals]
    assert sorted(codes) == [0, 1], said
    (refusal,) = (text for text, code in zip(said, codes, strict=True) if code == 1)
    assert "works on this run" in refusal or "has taken over this run" in refusal
    assert "the run 'clicks' (process " in refusal


@pytest.mark.parametrize("server", ["seaweedfs", pytest.param("moto", marks=pytest.mark.nightly)])
def test_a_store_in_trouble_loses_nothing(data, open_store, tmp_path, server):
    faults, store = open_store(server)
    with WatchedRun(tmp_path / "run", config_of(data, "local"), stored_at=store.address) as run:
        faults.faults.trouble(
            *(Fault("PUT", times=3, status=status) for status in (503, 500, 409, 412)),
            Fault("PUT", times=2, loses_answer=True),
            Fault("GET", times=3, cuts_body=True),
            Fault("GET", times=3, status=503),
        )
        run.start("run")
        assert run.wait(PATIENCE_SECONDS) == 0, run.tail(40)
        there = (run.output / "metrics.json").read_text()
    call(tmp_path, "second", "status", store.address)
    (copy,) = (tmp_path / "second/ctrpipe/runs").iterdir()
    assert (copy / "metrics.json").read_text() == there


def test_a_store_that_is_away_is_told_and_waited_for(data, open_store, tmp_path):
    """At the start for two minutes, which end a run; later for as long as it takes."""
    server, store = open_store("moto")
    away = WatchedRun(tmp_path / "away", config_of(data, "local"), stored_at=store.address)
    with away:
        server.network.cut()
        away.start("run")
        wait_for_a_store_that_is_away(data, open_store, tmp_path)
        assert away.wait(PATIENCE_SECONDS) == 75
        said = away.tail(40)
    assert "the store does not answer" in said
    assert re.search(r"trying for \d+ s more", said)
    assert said.count("error: ") == 1
    assert "Check the network and the endpoint" in said
    assert "Traceback" not in said


def wait_for_a_store_that_is_away(data, open_store, tmp_path):
    server, store = open_store("seaweedfs")
    config = config_of(data, "local")
    with WatchedRun(tmp_path / "run", config, stored_at=store.address) as run:
        run.start("run")
        # A store that is away before then ends the run after two minutes.
        run.wait_for("the answer to its first commit", lambda: said_of(run), PATIENCE_SECONDS)
        server.network.cut()
        began = time.monotonic()
        try:
            run.wait_for(
                "a word about it",
                lambda: "not kept there since" in said_of(run),
                PATIENCE_SECONDS,
            )
            time.sleep(max(0.0, 60 - (time.monotonic() - began)))
        finally:
            server.network.heal()
        assert run.wait(PATIENCE_SECONDS) == 0, run.tail(40)
    assert "finished" in call(tmp_path, "second", "status", store.address)
