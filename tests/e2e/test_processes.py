"""A run of several processes ends as a run of one, and so it does when its members are killed."""

import contextlib
import json
import os
import signal
import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import log_loss
from watched_run import WatchedRun, command_lines, slowed, with_word

from ctr_pipeline.apps.sample import write_criteo_sample
from ctr_pipeline.dataset.ingested import load_ingested
from ctr_pipeline.distributed.coordination.messages import Empty
from ctr_pipeline.distributed.master.status import JobView
from ctr_pipeline.errors import CtrPipelineError
from ctr_pipeline.pipeline.job.control import Job, ask_master
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.training.history import load_history
from tests.e2e.both_modes import assert_same_epochs

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(900)]

NUM_ROWS = 20_000
# 250 steps and four tasks an epoch.
NUM_TRAINING_ROWS = 16_000
BATCH_SIZE = 64
PATIENCE_SECONDS = 300.0


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "train.txt"
    write_criteo_sample(path, num_rows=NUM_ROWS, seed=1, progress=SilentProgress())
    return path


def config_of(data, *, epochs=2, mode="processes", train=None, **runtime):
    members = {"workers": {"min": 1, "max": 1}, **runtime} if mode == "processes" else {}
    return {
        "name": "members",
        "data": {
            "train": str(data),
            "format": "tsv",
            "columns": ["label", "I1..I13", "C1..C26"],
            "key_columns": ["C1"],
        },
        "features": [
            {
                "columns": "I1..I6",
                "number": ["log", "standardize"],
                "id": {"bucketize": {"quantiles": 10}},
            },
            {"columns": "C1..C10", "id": {"vocabulary": {"min_count": 2}}},
        ],
        "model": {"name": "deepfm", "embedding_dim": 4, "hidden_units": [16]},
        "train": {
            "epochs": epochs,
            "batch_size": BATCH_SIZE,
            "early_stopping": None,
            "deterministic": True,
            "seed": 3,
            "checkpoint_seconds": 3,
            **(train or {}),
        },
        "export": {"parity_rows": 50},
        "runtime": {"mode": mode, **members},
    }


def finish(run, command="run", *arguments):
    run.start(command, *arguments)
    code = run.wait(PATIENCE_SECONDS)
    assert code == 0, run.tail(40)


@pytest.fixture(scope="module")
def alone(data, tmp_path_factory):
    """What one process makes of it."""
    with WatchedRun(tmp_path_factory.mktemp("alone"), config_of(data, mode="local")) as run:
        finish(run)
    return run


def assert_all_counted(view, epochs):
    assert view.state == "finished"
    assert view.records.total == epochs * NUM_TRAINING_ROWS
    assert view.records.trained == view.records.total
    assert view.records.dropped == 0
    assert view.dropped_tasks == ()


def test_members_know_weights_and_sampling_and_stop_early(data, tmp_path):
    """Uneven weights, a third of the negatives, the best of some epochs: all as in one process."""
    lines = data.read_text().splitlines()
    weighted = [f"{line}\t{(number * 7) % 5 / 4}" for number, line in enumerate(lines)]
    (tmp_path / "rows.tsv").write_text("\n".join(weighted) + "\n")
    found = {}
    for mode in ("local", "processes"):
        # Learns by heart in a few epochs.
        fast = {"name": "adam", "learning_rate": 0.01}
        vector = {
            "optimizer": fast,
            "reduction": "mean",
            "initializer": {"name": "uniform", "scale": 0.02},
        }
        eager = {
            "early_stopping": {"metric": "logloss", "tolerance": 0.5, "patience": 1},
            "optimizer": fast,
            "embeddings": {"vector": vector},
        }
        config = config_of(tmp_path / "rows.tsv", mode=mode, epochs=12, train=eager)
        config["data"] |= {
            "columns": ["label", "I1..I13", "C1..C26", "times"],
            "weight": "times",
            "sample": {"negatives": 0.3},
        }
        (tmp_path / mode).mkdir()
        with WatchedRun(tmp_path / mode, config) as run:
            finish(run)
        found[mode] = run.metrics(), load_history(run.output / "history.csv")
    (ours, our_epochs), (theirs, their_epochs) = found["processes"], found["local"]
    for split in ("valid", "test"):
        for name in ("auc", "logloss", "calibration", "weight_sum"):
            assert ours[split][name] == pytest.approx(theirs[split][name], abs=1e-6), (split, name)
    assert_same_epochs(our_epochs, their_epochs)
    # The epoch before the last one was the best: its model was tested, in both.
    assert len(our_epochs) < 12
    for name in ("epochs", "best_epoch", "stopped_because"):
        assert ours["training"][name] == theirs["training"][name], name
    assert ours["training"]["best_epoch"] == len(our_epochs) - 1
    assert 0.7 < ours["test"]["calibration"] < 1.4


def hold_workers_when(run, what, is_so):
    """Workers that do units stand still as soon as something is so."""
    return run.hold_workers_when(what, is_so, "--units", PATIENCE_SECONDS)


def kill_who_writes(run, pattern):
    """Kills the worker that writes such files before training, as soon as it does."""
    (worker,) = hold_workers_when(run, pattern, lambda: any(run.output.glob(pattern)))
    worker.kill()


def attempts_at(run, folder, unit):
    """How often a worker was given some stages of the run."""
    with contextlib.suppress(OSError):
        records = json.loads((run.output / folder / "ledger.json").read_text())["records"]
        return records[unit]["attempt"] if unit in records else 0
    return 0


def kill_the_finisher(run):
    """Kills the worker that finishes the run, while it does: it has evaluated the model."""
    run.wait_for("test predictions", (run.output / "predictions.parquet").exists, PATIENCE_SECONDS)
    forked = with_word(run.processes(), "ctr_pipeline.cli.fork_server")
    worker = max(forked, key=lambda one: one.create_time())
    assert len(forked) == 2
    worker.kill()


def test_members_train_on_rows_that_workers_encoded(data, tmp_path):
    """One is killed in each stage: it divides, analyzes or encodes rows, or finishes the run."""
    tasks = {"bytes_per_reading_task": 100_000, "rows_per_encoding_task": 1}
    configs = [config_of(data, mode="local"), config_of(data, **tasks)]
    for config in configs:
        # All rows must be known before they are divided: a worker does it.
        config["data"]["split"] = {"valid": 0.1, "test": 0.1, "by": "random"}
    with WatchedRun(tmp_path / "alone", configs[0]) as alone:
        finish(alone)
    with WatchedRun(tmp_path / "by-workers", configs[1]) as run:
        run.start("run")
        for stages, unit in (("dividing", "rows/0"), ("analyzing", "statistics/0")):
            folder = f"cache/{stages}"
            kill_who_writes(run, f"{folder}/attempts/*")
            for worker in hold_workers_when(
                run,
                f"a second attempt at {stages}",
                lambda folder=folder, unit=unit: attempts_at(run, folder, unit) == 2,
            ):
                worker.resume()
        kill_who_writes(run, "cache/encoded/*/parts/*/rows.bin")
        kill_the_finisher(run)
        run.wait_for(
            "a second attempt to finish",
            lambda: attempts_at(run, "cache/finishing", "run/0") == 2,
            PATIENCE_SECONDS,
        )
        assert run.wait(PATIENCE_SECONDS) == 0, run.tail(40)
        assert run.leaves_none()
    assert "Writing the report" in run.log.read_text()
    for name in ("statistics.json", "features.json", "preprocessing.json"):
        assert (run.output / name).read_bytes() == (alone.output / name).read_bytes()
    assert load_ingested(run.output / "cache/ingested").fingerprint == (
        load_ingested(alone.output / "cache/ingested").fingerprint
    )
    assert [path.name for path in run.output.glob("export/*")] == ["1"]
    assert (run.output / "report.html").exists()
    found, expected = (
        pq.read_table(one.output / "predictions.parquet").to_pandas() for one in (run, alone)
    )
    assert found[["C1", "label"]].equals(expected[["C1", "label"]])
    assert np.allclose(found["probability"], expected["probability"], rtol=0, atol=1e-6)
    parts = {path.name for path in run.output.glob("cache/encoded/train/parts/*")}
    assert parts & {"00000-2", "00001-2"}
    ours, theirs = run.metrics(), alone.metrics()
    for split in ("valid", "test"):
        for name in ("auc", "logloss", "calibration"):
            assert ours[split][name] == pytest.approx(theirs[split][name], abs=1e-6), (split, name)
    found, expected = (load_history(one.output / "history.csv") for one in (run, alone))
    assert_same_epochs(found, expected)


def await_worker(run):
    """The pid of the worker of a job that trains, before its first step or soon after it."""

    def is_known():
        return run.now.state == "training" and run.member_view("worker").pid

    run.wait_for("a worker", is_known, PATIENCE_SECONDS)
    return run.member_view("worker").pid


def run_members(folder, config):
    """A run that has ended; the command lines of its processes, and what lets a member in."""
    with WatchedRun(folder, config) as run:
        run.start("run")
        with slowed(await_worker(run), 0.9):
            lines = command_lines(run.processes())
            secrets = secrets_of(run.output)
            if "tls" in config["runtime"]:
                knock_without_certificate(run)
        assert run.wait(PATIENCE_SECONDS) == 0, run.tail(40)
        assert run.leaves_none()
    return run, lines, secrets


@pytest.fixture(scope="module")
def members(data, tmp_path_factory):
    """`run_members` with three servers."""
    return run_members(tmp_path_factory.mktemp("members"), config_of(data, parameter_servers=3))


@pytest.mark.parametrize(
    ("num_servers", "runtime"),
    [
        (3, {}),
        (3, {"update": "sync", "tls": "always"}),
        pytest.param(1, {}, marks=pytest.mark.nightly),
        pytest.param(1, {"update": "sync"}, marks=pytest.mark.nightly),
    ],
)
def test_members_train_what_one_process_trains(
    data, alone, tmp_path, request, num_servers, runtime
):
    if (num_servers, runtime) == (3, {}):
        run, lines, secrets = request.getfixturevalue("members")
    else:
        config = config_of(data, parameter_servers=num_servers, **runtime)
        run, lines, secrets = run_members(tmp_path, config)
    ours, theirs = run.metrics(), alone.metrics()
    for split in ("valid", "test"):
        for name in ("auc", "logloss", "calibration", "mean_probability"):
            assert ours[split][name] == pytest.approx(theirs[split][name], abs=1e-6), (split, name)
    for name in ("epochs", "best_epoch", "steps", "stopped_because", "embedding_rows"):
        assert ours["training"][name] == theirs["training"][name]
    assert_same_epochs(
        load_history(run.output / "history.csv"), load_history(alone.output / "history.csv")
    )
    assert_all_counted(run.final_view(), epochs=2)

    # It was the parameter servers that held the rows, and nobody else.
    members = ours["runtime"]["members"]
    servers = [one for one in members if one["role"] == "ps"]
    assert [one["index"] for one in servers] == list(range(num_servers))
    pids = {one["pid"] for one in members}
    assert len(pids) == num_servers + 2
    assert pids.isdisjoint({os.getpid(), run.pid})
    assert sum(one["rows_held"] for one in servers) == theirs["training"]["embedding_rows"]
    assert all(one["rows_held"] > 0 for one in servers)
    # Each step sends at least the gradient of the dense parameters.
    least = 500 * 4 * ours["training"]["dense_parameters"]
    assert sum(one["bytes_received"] for one in servers) > least
    assert ours["runtime"]["records"]["repeated"] == 0

    # What lets a member in is in files of the job alone.
    assert len(lines) >= num_servers + 3
    written = [path.read_text("utf-8", "replace") for path in logs_of(run)]
    assert len(written) >= num_servers + 4
    for secret in secrets:
        assert not any(secret in text for text in (*lines, *written))
    master_log = (run.output / "logs" / "master-0.log").read_text()
    assert ("Handshake failed" in master_log) == ("tls" in runtime)


def knock_without_certificate(run):
    """A stranger at the master's door, who hears nothing but the end of the connection."""
    endpoint = json.loads((run.output / "job" / "endpoint.json").read_text())
    host, _, port = endpoint["address"].rpartition(":")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with (
        contextlib.suppress(ssl.SSLError, ConnectionError),
        socket.create_connection((host, int(port)), timeout=30) as connection,
        context.wrap_socket(connection) as stranger,
    ):
        assert stranger.recv(100) == b""


def logs_of(run):
    """The terminal's, and those of members."""
    return [run.log, run.output / "run.log", *(run.output / "logs").glob("*.log")]


def secrets_of(folder):
    """The job's token, and the first line of its private key if it has one."""
    token = (folder / "job" / "token").read_text().strip()
    keys = [path.read_text().splitlines()[1] for path in (folder / "job").rglob("*.key")]
    assert len(keys) == (5 if token.startswith("tls-") else 0)
    return [token, *keys]


def test_model_serves_every_other_command_when_a_job_trained_it(data, members, tmp_path):
    run, _, _ = members
    metrics = run.metrics()["test"]
    path = str(run.config_path)
    evaluated = json.loads(run.call("evaluate", path, "--json", timeout_seconds=120))
    for name in ("auc", "logloss", "num_rows"):
        assert evaluated[name] == pytest.approx(metrics[name], abs=1e-9)
    rows = tmp_path / "few.txt"
    rows.write_text("\n".join(data.read_text().splitlines()[-50:]) + "\n")
    found = predictions_of(run, rows)
    assert len(found) == 50
    assert found == pytest.approx(predictions_of(run, rows, "runtime.mode=local"), abs=1e-6)
    by_job = json.loads(
        run.call("evaluate", path, "--data", str(rows), "--json", timeout_seconds=120)
    )
    assert by_job["num_rows"] == 50
    log = (run.output / "run.log").read_text()
    # The run's own rows, those to predict, those to evaluate; not those of local mode.
    assert log.count("Scoring with checkpoint") == 3
    assert list((run.output / "scoring").iterdir()) == []
    run.call("export", path, "--set", "export.model_version=2", timeout_seconds=240)
    assert run.metrics()["test"]["auc"] == pytest.approx(metrics["auc"], abs=1e-9)
    # However often it is exported, the same rows are.
    second, first = (variables_of(run.output / "export" / name) for name in "21")
    assert second.keys() == first.keys()
    assert len(second["row_keys"]) > 1000
    for name, values in first.items():
        assert np.array_equal(second[name], values), name


def variables_of(export):
    """All variables of a servable model, by name."""
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(export / "variables" / "variables"))
    return {
        name.partition("/.ATTRIBUTES")[0]: reader.get_tensor(name)
        for name in reader.get_variable_to_dtype_map()
        if not name.startswith("_CHECKPOINTABLE")
    }


def predictions_of(run, rows, *overrides, kill_server=False):
    """Probabilities by `ctrpipe predict`, a server of whose job may be killed on the way."""
    output = run.folder / "predictions.csv"
    arguments = ["predict", str(run.config_path), "--data", str(rows), "--output", str(output)]
    arguments.append("--overwrite")
    for override in overrides:
        arguments += ["--set", override]
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(run.call, *arguments, timeout_seconds=PATIENCE_SECONDS)
        if kill_server:
            kill_scoring_server(run, done)
        done.result()
    return [float(line.rpartition(",")[2]) for line in output.read_text().splitlines()[1:]]


def kill_scoring_server(run, done):
    """Kills a parameter server that has begun to serve scores."""
    until = time.monotonic() + PATIENCE_SECONDS
    with contextlib.ExitStack() as stack:
        slow_workers = set()
        while time.monotonic() < until and not done.done():
            for endpoint in (run.output / "scoring").glob("*/job/endpoint.json"):
                with contextlib.suppress(CtrPipelineError):
                    view = ask_master(Job(endpoint.parent.parent), "Status", Empty(), JobView)
                    pids = {one.pid for one in view.members if one.role == "worker" and one.pid}
                    # Rows are scored quickly: they are to last until the server is killed.
                    for pid in pids - slow_workers:
                        stack.enter_context(slowed(pid, 0.9))
                    slow_workers |= pids
                    if view.state == "scoring" and slow_workers:
                        server = next(one for one in view.members if one.role == "ps")
                        run.send(server.pid, signal.SIGKILL)
                        return
            time.sleep(0.02)
    raise AssertionError(f"no job scores: {done.result(0)}")


SCORED = 6


def test_rows_are_scored_while_the_model_trains_and_a_server_is_killed(data, tmp_path):
    with WatchedRun(tmp_path / "alone", config_of(data, epochs=SCORED, mode="local")) as alone:
        finish(alone)
    config = config_of(data, epochs=SCORED, parameter_servers=2)
    with WatchedRun(tmp_path / "beside", config) as run:
        run.start("run")
        run.wait_for("the folder's lock", (run.output / ".lock").exists, PATIENCE_SECONDS)
        with pytest.raises(RuntimeError, match="taken no checkpoint yet"):
            run.call("evaluate", str(run.config_path), timeout_seconds=120)
        # Only then is there a best epoch, which `predict` asks for.
        run.wait_for("an epoch", lambda: history_of(run), PATIENCE_SECONDS)
        # However busy the machine is, the model trains for as long as questions are asked.
        with slowed(run.member_view("worker").pid, 0.9):
            own = evaluate_own_rows(run)
            found = predictions_of(run, data, kill_server=True)
        assert run.wait(PATIENCE_SECONDS) == 0, run.tail(40)
        assert run.leaves_none()
    assert len(found) == NUM_ROWS
    assert len(set(found)) > NUM_ROWS / 2
    assert "Parameter server 0 was killed" in (run.output / "run.log").read_text()
    view = run.final_view()
    assert_all_counted(view, SCORED)
    assert view.records.repeated == 0
    assert {one.restarts for one in view.members} == {0}

    # What was asked beside it has changed nothing of what the run comes to.
    expected = alone.metrics()["test"]
    for name in ("auc", "logloss", "calibration", "mean_probability"):
        assert run.metrics()["test"][name] == pytest.approx(expected[name], abs=1e-6), name
    assert_same_epochs(
        load_history(run.output / "history.csv"), load_history(alone.output / "history.csv")
    )
    kept = run.output / "evaluations" / f"checkpoint-{own['checkpoint']['number']:06d}"
    assert own["folder"] == str(kept)
    tables = [pq.read_table(place / "predictions.parquet") for place in (kept, run.output)]
    assert tables[0].drop_columns("probability") == tables[1].drop_columns("probability")
    labels, early, final = (
        table[name].to_numpy()
        for table, name in zip(
            (tables[0], *tables), ("label", "probability", "probability"), strict=True
        )
    )
    assert own["logloss"] == pytest.approx(log_loss(labels, early.astype(float)), abs=1e-6)
    assert not np.array_equal(early, final)


def history_of(run):
    """Its epochs so far."""
    path = run.output / "history.csv"
    return load_history(path) if path.exists() else []


def evaluate_own_rows(run):
    """`ctrpipe evaluate` of the rows of a run that trains; the run has no results yet."""
    found = json.loads(
        run.call("evaluate", str(run.config_path), "--json", timeout_seconds=PATIENCE_SECONDS)
    )
    assert found["num_rows"] == (NUM_ROWS - NUM_TRAINING_ROWS) / 2
    assert found["checkpoint"]["step"] > 0
    assert run.now.state in {"training", "checkpointing", "validating"}
    assert run.now.step > found["checkpoint"]["step"]
    assert not run.output.joinpath("metrics.json").exists()
    assert not run.output.joinpath("predictions.parquet").exists()
    return found


# A run that can be disturbed: long enough for a member to come back and go on.
LONG = 14
STOPPED = 4


def train_alone(data, folder, epochs):
    """Epochs of one process over the same rows."""
    with WatchedRun(folder, config_of(data, epochs=epochs, mode="local")) as run:
        finish(run, "train")
    return load_history(run.output / "history.csv")


def kill(run, role):
    """Kills a member in the middle of steps, and waits for another one in its place."""
    begun = run.now.records.trained
    run.wait_for("steps", run.is_training, PATIENCE_SECONDS)
    half = begun + 0.5 * NUM_TRAINING_ROWS
    run.wait_for(
        "half an epoch", lambda: run.now.records.trained > half and run.now.state == "training"
    )
    killed = run.member_view(role).pid
    run.send(killed, signal.SIGKILL)
    run.wait_for(
        "another one in its place",
        lambda: (
            run.member_view(role).pid not in {0, killed} and run.member_view(role).restarts == 1
        ),
        PATIENCE_SECONDS,
    )


@pytest.mark.nightly
def test_killed_members_come_back_and_nothing_is_lost(data, tmp_path):
    expected = train_alone(data, tmp_path / "alone", LONG)
    config = config_of(data, epochs=LONG, parameter_servers=2)
    with WatchedRun(tmp_path / "members", config) as run:
        run.start("train")
        run.wait_for("steps", run.is_training, PATIENCE_SECONDS)
        kill(run, "master")
        epochs = len(history_of(run))
        run.wait_for("an epoch with it", lambda: len(history_of(run)) > epochs + 1)
        # A master takes nothing with it.
        assert run.now.records.repeated == 0
        with_another_master = history_of(run)
        kill(run, "worker")
        run.wait_for("steps", run.is_training, PATIENCE_SECONDS)
        assert run.now.generation == 1
        # A worker loses less than a second.
        assert run.now.records.repeated <= NUM_TRAINING_ROWS
        kill(run, "ps")
        assert run.wait(PATIENCE_SECONDS) == 0, run.tail(40)
        assert run.leaves_none()
    view = run.final_view()
    assert_all_counted(view, LONG)
    assert view.generation > 1
    # What was lost with a server is trained again.
    assert view.records.repeated <= 4 * NUM_TRAINING_ROWS
    assert_same_epochs(with_another_master, expected[: len(with_another_master)])
    # Each server applied every batch once, in the same order. Where the members were between two
    # servers' answers, one server's part of a batch is computed with the other's after it.
    assert_same_epochs(load_history(run.output / "history.csv"), expected, tolerance=1e-3)


def test_a_stopped_run_is_resumed_with_other_members(data, tmp_path):
    expected = train_alone(data, tmp_path / "alone", STOPPED)
    config = config_of(data, epochs=STOPPED, parameter_servers=1)
    with WatchedRun(tmp_path / "members", config) as run:
        run.start("train")
        with slowed(await_worker(run), 0.7):
            some = 2.5 * NUM_TRAINING_ROWS
            run.wait_for("some of it", lambda: run.now.records.trained > some, PATIENCE_SECONDS)
            os.kill(run.pid, signal.SIGINT)
        assert run.wait(PATIENCE_SECONDS) == 130, run.tail(40)
        assert run.leaves_none()
        stopped = run.final_view()
        assert stopped.state == "stopped"
        assert 0 < stopped.records.trained < stopped.records.total

        text = run.config_path.read_text()
        assert "parameter_servers: 1" in text
        run.config_path.write_text(text.replace("parameter_servers: 1", "parameter_servers: 3"))
        finish(run, "train", "--resume")
        assert run.leaves_none()
    view = run.final_view()
    assert_all_counted(view, STOPPED)
    # What was trained between the cut and the end.
    assert view.records.repeated < NUM_TRAINING_ROWS
    assert sum(one.role == "ps" for one in view.members) == 3
    assert_same_epochs(load_history(run.output / "history.csv"), expected, tolerance=1e-3)

    # It is refused with another model.
    run.config_path.write_text(text.replace("embedding_dim: 4", "embedding_dim: 5"))
    with pytest.raises(RuntimeError, match=r"model.embedding_dim differs"):
        run.call("train", str(run.config_path), "--resume", timeout_seconds=120)


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="never more workers than cores")
def test_the_number_of_workers_is_found_while_it_trains(data, tmp_path):
    # Epochs of some seconds: speeds are measured within one.
    config = config_of(data, epochs=1000, train={"batch_size": 8}, workers="auto")
    with WatchedRun(tmp_path, config) as run:
        run.start("train")
        run.wait_for("running steps", run.is_training, PATIENCE_SECONDS)
        run.wait_for("one more", lambda: run.now.workers_wanted == 2, PATIENCE_SECONDS)
        run.wait_for(
            "both at work",
            lambda: sum(one.role == "worker" and one.leases > 0 for one in run.now.members) == 2,
            PATIENCE_SECONDS,
        )
        run.call("stop", str(run.output))
        assert run.wait(PATIENCE_SECONDS) == 143, run.tail(40)
        assert run.leaves_none()
    said = (run.output / "logs" / "master-0.log").read_text()
    assert "a job begins with the fewest" in said
    assert "2 workers are wanted: 1 are worth it" in said


BROKEN = """
import keras


def explain(x):
    raise RuntimeError("nobody has written this layer yet")


class Broken(keras.layers.Layer):
    def call(self, x, training=None):
        return explain(x) if training else x


def build_model(inputs, options):
    logit = keras.layers.Dense(1)(Broken()(inputs.linear_BF))
    return keras.ops.squeeze(logit, -1)
"""


def test_a_bug_in_the_users_model_is_shown_as_it_is(data, tmp_path):
    (tmp_path / "broken.py").write_text(BROKEN)
    config = config_of(data)
    config["model"] = {"name": "custom", "file": str(tmp_path / "broken.py"), "embedding_dim": 4}
    with WatchedRun(tmp_path, config) as run:
        run.start("train")
        assert run.wait(PATIENCE_SECONDS) == 1
        assert run.leaves_none()
    assert "nobody has written this layer yet" in (run.output / "run.log").read_text()
    assert "nobody has written this layer yet" in (run.output / "logs/worker-0.log").read_text()
    assert "a bug in ctrpipe" not in run.tail(40)
