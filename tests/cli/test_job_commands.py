import json
import os
import signal
import socket
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ctr_pipeline.cli.main import main
from ctr_pipeline.cli.scale import format_wanted
from ctr_pipeline.distributed.coordination.messages import ScaleRequest
from ctr_pipeline.distributed.master.status import MasterErrors
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.endpoint import Endpoint, save_endpoint
from ctr_pipeline.pipeline.job import control as job_control
from ctr_pipeline.pipeline.sessions import RunSession
from ctr_pipeline.training.history import EpochRecord
from tests.cli.job_views import FakeMaster, a_member, a_view


def call(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "runs" / "x"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def master(run):
    master = FakeMaster(run)
    yield master
    master.close()


def announce_nobody(run):
    """A master was there once; its port is nobody's now."""
    Access.create(run / "job", False)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    save_endpoint(run / "job", Endpoint(address, "", "here", 1))


class TestStatus:
    def test_a_table_for_people(self, capsys, run, master):
        code, out, err = call(capsys, "status", run)
        assert (code, err) == (0, "")
        for text in (
            *("clicks", "training, epoch 1 of 2, task 10 of 40", "20,000 of 80,000 trained"),
            *("64 repeated", "25,000 rows/s", "training loss 0.4567", "validation AUC 0.7654"),
            *("3 at step 512, 4.0 s ago; the best is 2", "54,321", "12,345", "700 MB"),
            *("backing off", "Worker-1 was killed: it is started again (1.2 s)", "best epoch 1"),
            "9,000 rows, logloss 0.4444, AUC 0.7777",
        ):
            assert text in out, text

    def test_one_json_object_for_machines(self, capsys, run, master):
        code, out, _ = call(capsys, "status", run, "--json")
        payload = json.loads(out)
        assert code == 0
        assert payload["state"] == "training"
        assert payload["records"] == {
            "total": 80_000,
            "trained": 20_000,
            "repeated": 64,
            "dropped": 0,
        }
        assert payload["checkpoint"]["number"] == 3
        assert payload["members"][3]["restarts"] == 3
        assert payload["members"][2]["stats"]["samples_per_second"] == 12_345.0
        assert payload["events"][0]["recovery_seconds"] == 1.25

    def test_errors_that_the_master_went_on_after(self, capsys, run, master):
        _, out, _ = call(capsys, "status", run)
        assert "master errors" not in out
        _, out, _ = call(capsys, "status", run, "--json")
        assert json.loads(out)["master_errors"] == {"count": 0, "last": ""}
        master.view = a_view(master_errors=MasterErrors(2, "its checkpoints: IndexError: 3"))
        _, out, _ = call(capsys, "status", run)
        assert "2; the last in its checkpoints: IndexError: 3" in out
        _, out, _ = call(capsys, "status", run, "--json")
        assert json.loads(out)["master_errors"] == {
            "count": 2,
            "last": "its checkpoints: IndexError: 3",
        }

    def test_epochs_count_from_1_for_machines_too(self, capsys, run, master):
        record = EpochRecord(0, 640, 0.5, 0.5, 0.7, 1.0, 1.0, 40_000, 3.0)
        master.view = a_view(epoch=1, history=(record,), best_epoch=0)
        _, out, _ = call(capsys, "status", run, "--json")
        payload = json.loads(out)
        assert (payload["epoch"], payload["epochs"], payload["best_epoch"]) == (2, 2, 1)
        assert [line["epoch"] for line in payload["history"]] == [1]
        master.view = a_view(best_epoch=None)
        _, out, _ = call(capsys, "status", run, "--json")
        assert json.loads(out)["best_epoch"] is None

    def test_status_does_not_make_up_what_only_a_master_knows_without_one(
        self, capsys, run, monkeypatch
    ):
        (run / "job").mkdir()
        unheard = [
            a_member(role, pid=0, address="", state="unknown", last_seen_seconds=None, stats=None)
            for role in ("ps", "worker")
        ]
        view = a_view(answering=False, samples_per_second=0.0, members=tuple(unheard))
        monkeypatch.setattr(job_control, "read_status", lambda job: view)
        _, out, _ = call(capsys, "status", run, "--json")
        payload = json.loads(out)
        assert payload["samples_per_second"] is payload["master_errors"] is None
        assert {member["stats"] for member in payload["members"]} == {None}
        _, out, _ = call(capsys, "status", run)
        cells = [line.split("│") for line in out.splitlines() if "unknown" in line]
        shown = [[cell.strip() for cell in line[6:10]] for line in cells]
        assert shown == [["–", "–", "", "–"], ["–", "–", "–", ""]]

    @pytest.mark.parametrize(("ended", "is_gone"), [(None, True), ("stopped", False)])
    def test_a_dead_launcher_is_told_from_one_that_ended(
        self, capsys, run, monkeypatch, ended, is_gone
    ):
        (run / "job").mkdir()
        now = datetime.now(UTC)
        session = RunSession(
            command="run",
            resumed=False,
            process=2**22 + 1,
            host=socket.gethostname(),
            started=now,
            seen=now,
            stage="training",
            ended=ended,
        )
        (run / "sessions.json").write_text(f"[{session.model_dump_json()}]")
        monkeypatch.setattr(job_control, "read_status", lambda job: a_view(answering=False))
        _, out, _ = call(capsys, "status", run)
        gone = f"(the launcher, process {session.process}, is gone: nothing trains)"
        assert (gone in out) == is_gone
        assert ("no master answers" in out) != is_gone
        assert "ctrpipe run CONFIG --resume" in out
        _, out, _ = call(capsys, "status", run, "--json")
        payload = json.loads(out)
        assert payload["run"]["state"] == ("killed" if is_gone else "stopped")
        assert [one["name"] for one in payload["members"]] == [
            *("master-0", "ps-0", "worker-0", "worker-1")
        ]

    def test_a_config_names_its_run_folder(self, capsys, run, master, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        Path("c.yaml").write_text("data:\n  train: rows.csv\noutput: runs/x\n")
        code, out, _ = call(capsys, "status", "c.yaml", "--json")
        assert (code, json.loads(out)["job"]) == (0, "clicks")

    def test_a_failed_job_shows_what_its_member_wrote(self, capsys, run, master):
        master.view = a_view(state="failed", reason="worker-0 failed", traceback="[Errno 5] x")
        code, out, _ = call(capsys, "status", run)
        assert code == 0
        assert "worker-0 failed" in out
        assert "[Errno 5] x" in out

    def test_status_shows_no_numbers_where_there_are_none(self, capsys, run, master):
        master.view = a_view(
            state="waiting",
            train_logloss=None,
            auc=None,
            checkpoint=None,
            best_epoch=None,
            members=(),
            events=(),
            final_metrics=(),
        )
        code, out, _ = call(capsys, "status", run)
        assert code == 0
        assert "none yet" in out
        assert "None" not in out


class TestNoJob:
    @pytest.mark.parametrize("command", [["status"], ["stop"], ["scale", "-w", "2"], ["logs"]])
    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("nowhere", "nowhere: there is no such run folder"),
            ("nowhere.yaml", "nowhere.yaml: there is no such config"),
            ("empty", "empty: holds no job of several processes"),
        ],
    )
    def test_path_without_a_job_is_told(self, capsys, tmp_path, command, name, message):
        (tmp_path / "empty").mkdir()
        if command == ["status"]:
            # It tells of runs in one process as well.
            message = message.replace("holds no job of several processes", "is not a run folder")
        verb, *options = command
        member = ["worker-0"] if verb == "logs" else []
        code, out, err = call(capsys, verb, tmp_path / name, *member, *options)
        assert (code, out) == (1, "")
        assert message in err

    def test_a_damaged_config_is_told(self, capsys, tmp_path):
        (tmp_path / "c.yaml").write_text("data: {trein: x}\n")
        code, _, err = call(capsys, "status", tmp_path / "c.yaml")
        assert code == 1
        assert "data.trein" in err

    @pytest.mark.parametrize("command", [["stop"], ["scale", "-w", "2"]])
    @pytest.mark.parametrize("announced", [False, True])
    def test_one_that_does_not_run_is_not_steered(self, capsys, run, command, announced):
        if announced:
            announce_nobody(run)
        else:
            (run / "job").mkdir()
        verb, *options = command
        code, out, err = call(capsys, verb, run, *options, "-q")
        assert (code, out) == (1, "")
        assert "'ctrpipe run CONFIG --resume' goes on from its last checkpoint" in err

    def test_another_job_s_secrets(self, capsys, run, master):
        Access.create(run / "job", False)
        code, _, err = call(capsys, "status", run)
        assert code == 1
        assert "the token is not the one of this job" in err

    def test_missing_secrets(self, capsys, run, master):
        (run / "job" / "token").unlink()
        code, _, err = call(capsys, "status", run)
        assert code == 1
        assert "token: is missing" in err


class TestStop:
    def test_waits_for_the_end(self, capsys, run, master):
        code, out, err = call(capsys, "stop", run)
        assert (code, out) == (0, "stopped\n")
        assert err == "Stopping: the job takes a last checkpoint\n"
        assert master.asked == ["stop"]

    def test_stop_only_asks_without_a_wait(self, capsys, run, master):
        code, out, _ = call(capsys, "stop", run, "--wait", "0", "--json")
        assert (code, json.loads(out)["state"]) == (0, "stopping")

    def test_a_master_that_is_away_has_not_stopped_before_its_ledger_says_so(
        self, run, master, monkeypatch
    ):
        states = iter(["stopping", "stopping", "stopped"])
        monkeypatch.setattr(job_control, "read_status", lambda job: a_view(state=next(states)))
        state = job_control.stop_job(
            job_control.Job(run), wait_seconds=60.0, on_asked=master.close, pause=lambda _: None
        )
        assert (state, next(states, None)) == ("stopped", None)


class TestEndedJob:
    @pytest.mark.parametrize("command", [["stop"], ["scale", "--workers", "2"]])
    @pytest.mark.parametrize(
        ("state", "words"),
        [
            ("finished", "it has finished already"),
            ("stopped", "it was stopped already"),
            ("training", "does not answer"),
        ],
    )
    def test_ended_job_is_said_to_have_ended(self, capsys, run, monkeypatch, command, state, words):
        announce_nobody(run)
        monkeypatch.setattr(job_control, "read_status", lambda job: a_view(state=state))
        verb, *options = command
        code, out, err = call(capsys, verb, run, *options)
        assert (code, out) == (1, "")
        assert "the job does not run" in err
        assert words in err
        assert "--resume" in err


class TestScale:
    def test_scale_sets_a_number_of_workers(self, capsys, run, master):
        code, out, _ = call(capsys, "scale", run, "--workers", "5")
        assert (code, out) == (0, "5 workers are wanted from now on\n")
        assert format_wanted(1, "worker") == "1 worker is wanted"
        assert master.asked == [ScaleRequest(None, 5, 5)]

    def test_scale_sets_bounds_of_workers(self, capsys, run, master):
        code, out, _ = call(capsys, "scale", run, "--min", "2", "--max", "8", "--json")
        assert (code, json.loads(out)["workers_wanted"]) == (0, 8)
        assert master.asked == [ScaleRequest(2, 8, None)]

    def test_the_master_s_refusal_is_shown(self, capsys, run, master):
        code, out, err = call(capsys, "scale", run, "-w", "13")
        assert (code, out) == (1, "")
        assert "13 is an unlucky number" in err

    @pytest.mark.parametrize(
        "options", [[], ["--workers", "0"], ["--workers", "x"], ["--min", "-1"]]
    )
    def test_bad_numbers(self, capsys, run, master, options):
        code, out, err = call(capsys, "scale", run, *options)
        assert (code, out) == (1, "")
        assert err.startswith("error: ")
        assert master.asked == []


@pytest.fixture
def logs(run):
    (run / "job").mkdir()
    folder = run / "logs"
    folder.mkdir()
    for name in ("worker-0", "worker-10", "worker-2", "ps-0", "master-0"):
        lines = "".join(f"{name} line {number}\n" for number in range(1, 301))
        (folder / f"{name}.log").write_text(lines)
    return folder


class TestLogs:
    def test_the_last_lines(self, capsys, run, logs):
        code, out, err = call(capsys, "logs", run, "worker-0")
        assert (code, err) == (0, "")
        assert out.splitlines() == [f"worker-0 line {number}" for number in range(201, 301)]

    def test_logs_show_as_many_lines_as_wanted(self, capsys, run, logs):
        assert call(capsys, "logs", run, "ps-0", "-n", "2")[1] == "ps-0 line 299\nps-0 line 300\n"
        assert call(capsys, "logs", run, "ps-0", "-n", "0")[1] == ""
        assert len(call(capsys, "logs", run, "ps-0", "-n", "9999")[1].splitlines()) == 300

    def test_bytes_that_are_no_text_are_shown_as_such(self, capsys, run, logs):
        (logs / "ps-0.log").write_bytes(b"\xff\xfe\n")
        assert call(capsys, "logs", run, "ps-0")[1] == "\ufffd\ufffd\n"

    @pytest.mark.parametrize("name", ["worker-3", "workr-0", "../job/token", "worker", "", "/etc"])
    def test_an_unknown_member_and_those_there_are(self, capsys, run, logs, name):
        code, out, err = call(capsys, "logs", run, name)
        assert (code, out) == (1, "")
        assert f"there is no member '{name}'" in err
        assert "There are master-0, ps-0, worker-0, worker-2, worker-10" in err

    def test_the_nearest_name(self, capsys, run, logs):
        assert "did you mean 'worker-0'?" in call(capsys, "logs", run, "workr-0")[2]

    def test_logs_fail_before_any_member_started(self, capsys, run):
        (run / "job").mkdir()
        code, _, err = call(capsys, "logs", run, "worker-0")
        assert code == 1
        assert "No member has started yet" in err

    def test_following_ends_with_ctrl_c(self, run, logs):
        command = [sys.executable, "-m", "ctr_pipeline", "logs", str(run), "ps-0", "-n1", "-f"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            hung = threading.Timer(60, process.kill)
            hung.start()
            try:
                assert process.stdout.readline() == "ps-0 line 300\n"
                with (logs / "ps-0.log").open("a") as file:
                    file.write("one more\n")
                assert process.stdout.readline() == "one more\n"
                process.send_signal(signal.SIGINT)
                assert process.wait(timeout=60) == 130
            finally:
                hung.cancel()
                process.kill()


MEMBERS = {"master": [], "ps": ["--index", "0"], "worker": ["--index", "0"]}


class TestMembers:
    @pytest.mark.parametrize("role", MEMBERS)
    def test_need_a_prepared_job(self, capsys, config, role):
        code, out, err = call(capsys, role, "--config", config, *MEMBERS[role])
        assert (code, out) == (1, "")
        assert "runs/x: no job has been prepared here. 'ctrpipe run' with" in err

    @pytest.mark.parametrize("role", MEMBERS)
    def test_need_a_config(self, capsys, role, tmp_path):
        code, _, err = call(capsys, role, *MEMBERS[role])
        assert code == 1
        assert "--config" in err
        code, _, err = call(capsys, role, "--config", tmp_path / "none.yaml", *MEMBERS[role])
        assert code == 1
        assert "none.yaml" in err

    @pytest.mark.parametrize("index", [[], ["--index", "-1"], ["--index", "x"]])
    @pytest.mark.parametrize("role", ["ps", "worker"])
    def test_need_an_index(self, capsys, config, role, index):
        code, _, err = call(capsys, role, "--config", config, *index)
        assert code == 1
        assert "--index" in err

    def test_no_secret_can_be_given_on_the_command_line(self, capsys):
        for role in MEMBERS:
            _, out, _ = call(capsys, role, "--help")
            assert "token" not in out.lower()
            assert "key" not in out.lower().replace("key=value", "").replace("override a key", "")


IMPORTS = """
import sys
before = set(sys.modules)
import ctr_pipeline.cli.main
import ctr_pipeline.pipeline.job.members
import ctr_pipeline.distributed.launchers.remote
import ctr_pipeline.distributed.rpc.access
import {program}
print(*sorted({heavy} & set(sys.modules)))
# Without pages of files: how many of a library are mapped depends on what the system keeps of it.
with open("/proc/self/statm") as file:
    _, resident, of_files, *_ = map(int, file.read().split())
    print((resident - of_files) * 4096)
"""
HEAVY = {"tensorflow", "keras", "duckdb", "pyarrow", "pandas", "sklearn", "matplotlib"}


class TestLightness:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("program", "heavy", "most_bytes"),
        [
            ("ctr_pipeline.distributed.master.program", {*HEAVY, "numba", "scipy"}, 50e6),
            ("ctr_pipeline.distributed.ps.program", HEAVY, 80e6),
        ],
    )
    def test_servers_do_not_load_what_they_do_not_need(self, program, heavy, most_bytes):
        text = IMPORTS.format(program=program, heavy=heavy)
        # The first start compiles the kernels that nobody has used yet, and keeps them.
        for _ in range(2):
            found = subprocess.run(
                [sys.executable, "-c", text],
                capture_output=True,
                text=True,
                check=True,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            ).stdout.splitlines()
        assert found[0] == ""
        assert int(found[1]) < most_bytes
