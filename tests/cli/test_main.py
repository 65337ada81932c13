import json
import os
import signal
import subprocess
import sys

import pytest

from ctr_pipeline.cli.main import COMMANDS, app, main, set_up_libraries
from ctr_pipeline.errors import DataError, Interrupted
from ctr_pipeline.storage.protocol import StorageAwayError

TAKING_CONFIG = {
    "run": [],
    "check": [],
    "analyze": [],
    "train": [],
    "tune": [],
    "evaluate": [],
    "predict": ["--data", "new.csv", "--output", "p.parquet"],
    "export": [],
}


def call(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


class TestHelp:
    @pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
    def test_help_lists_every_command(self, capsys, arguments):
        code, out, _ = call(capsys, *arguments)
        assert code == 0
        assert all(command in out for command in COMMANDS)

    @pytest.mark.parametrize("command", [*COMMANDS, "sample criteo"])
    def test_help_teaches_by_example(self, capsys, command):
        code, out, _ = call(capsys, *command.split(), "--help")
        assert code == 0
        assert command == "sample" or f"ctrpipe {command}" in out.replace("Usage: ctrpipe", "")

    def test_commands_are_those_of_the_app(self):
        names = {info.name or info.callback.__name__ for info in app.registered_commands}
        names |= {group.name for group in app.registered_groups}
        assert names == set(COMMANDS)

    def test_version(self, capsys):
        code, out, _ = call(capsys, "--version")
        assert code == 0
        assert out.startswith("ctrpipe ")


class TestUsageErrors:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["runn", "c.yaml"], "No such command 'runn' (did you mean 'run'?)"),
            (["qqq"], "there are run, check, init"),
            (["run"], "Missing argument 'CONFIG'. 'ctrpipe run --help' shows"),
            (["run", "c.yaml", "--bogus"], "No such option: --bogus"),
            (["predict", "c.yaml"], "--data"),
            (["sample", "criteo", "--rows", "x"], "--rows"),
            (["sample", "criteo", "--rows", "1"], "--rows"),
            (["run", "c.yaml", "extra"], "extra"),
            (["run", "c.yaml", "--set"], "--set"),
            (["master", "--config", "c.yaml", "--bind", "7123"], "such as 127.0.0.1:7123"),
            (["ps", "-c", "c.yaml", "--index", "0", "--master", "h:p"], "'h:p' is no HOST:PORT"),
        ],
    )
    def test_exit_1_with_a_hint(self, capsys, arguments, message):
        code, out, err = call(capsys, *arguments)
        assert code == 1
        assert out == ""
        assert err.startswith("error: ")
        assert message in err
        assert "--help' shows how it is used" in err
        assert len(err.splitlines()) == 1

    def test_json_tells_it_on_stdout_too(self, capsys):
        code, out, _ = call(capsys, "runn", "--json")
        payload = json.loads(out)
        assert code == payload["exit_code"] == 1
        assert "did you mean 'run'" in payload["error"]["message"]


class TestCommands:
    @pytest.mark.parametrize("command", TAKING_CONFIG)
    def test_reaches_the_pipeline_with_config_and_overrides(
        self, capsys, pipeline, config, command
    ):
        arguments = [command, config, *TAKING_CONFIG[command], "--set", "train.epochs=2"]
        code, out, err = call(capsys, *arguments, "--set", "model.dropout=0.5")
        assert code == 0, err
        ((name, seen, _),) = pipeline.calls
        assert name == command
        assert seen.train.epochs == 2
        assert seen.model.dropout == 0.5
        assert out.strip()
        assert err.startswith("Reading c.yaml\n")

    @pytest.mark.parametrize("command", TAKING_CONFIG)
    def test_json_is_one_object_alone_on_stdout(self, capsys, pipeline, config, command):
        code, out, err = call(capsys, command, config, *TAKING_CONFIG[command], "--json")
        assert code == 0
        assert isinstance(json.loads(out), dict)
        assert "NaN" not in out
        assert err

    @pytest.mark.parametrize("command", TAKING_CONFIG)
    def test_quiet_leaves_stderr_empty(self, capsys, pipeline, config, command):
        code, _, err = call(capsys, command, config, *TAKING_CONFIG[command], "-q")
        assert (code, err) == (0, "")

    def test_options_may_stand_before_the_command(self, capsys, pipeline, config):
        code, out, err = call(capsys, "-q", "--json", "check", config)
        assert (code, err) == (0, "")
        assert json.loads(out)["rows"][1]["num_ids"] == 1234

    @pytest.mark.parametrize("command", ["run", "train", "tune"])
    def test_resume_and_overwrite_are_passed_on(self, capsys, pipeline, config, command):
        call(capsys, command, config, "--resume")
        call(capsys, command, config, "--overwrite")
        first, second = (keywords for _, _, keywords in pipeline.calls)
        assert (first["resume"], first["overwrite"]) == (True, False)
        assert (second["resume"], second["overwrite"]) == (False, True)

    def test_train_may_leave_members_to_people(self, capsys, pipeline, config):
        code, _, err = call(capsys, "train", config, "--prepare-only", "--overwrite")
        assert code == 0, err
        ((name, _, keywords),) = pipeline.calls
        assert (name, keywords["overwrite"]) == ("prepare_job", True)

    def test_run_ends_with_a_summary(self, capsys, pipeline, config):
        _, out, _ = call(capsys, "run", config)
        for text in ("train 8,000, test 1,000", "training 1 min 15 s", "0.7500", "0.4500", "1.010"):
            assert text in out
        assert "runs/x/report.html" in out

    def test_tune_shows_the_best_trials_first(self, capsys, pipeline, config):
        _, out, _ = call(capsys, "tune", config)
        lines = [
            line.split() for line in out.splitlines() if "complete" in line or "pruned" in line
        ]
        assert [line[1] for line in lines] == ["1", "0", "2"]
        for text in ("3 trials", "0.44000", "0.0002", "[32, 16]", "model.dropout", "best config"):
            assert text in out

    def test_check_shows_the_plan(self, capsys, pipeline, config):
        _, out, _ = call(capsys, "check", config)
        for text in ("log > standardize", "1,234", "99 kB", "left out: C2", "estimates", "1 dense"):
            assert text in out

    def test_analyze_shows_the_statistics(self, capsys, pipeline, config):
        _, out, _ = call(capsys, "analyze", config)
        for text in ("10 training rows", "20.0%", "1.5", "a note", "statistics.json"):
            assert text in out

    def test_predict_and_evaluate_name_their_rows(self, capsys, pipeline, config):
        call(capsys, "predict", config, "--data", "new.csv", "-o", "p.csv")
        call(capsys, "evaluate", config, "--data", "later.csv")
        kept = ("--keep", "row,user", "--keep", "day")
        call(capsys, "predict", config, "--data", "new.csv", "-o", "p.csv", *kept)
        predict, evaluate, keeping = (keywords for _, _, keywords in pipeline.calls)
        assert predict["keep"] == []
        assert keeping["keep"] == ["row", "user", "day"]
        assert predict["data"] == "new.csv"
        assert str(predict["output"]) == "p.csv"
        assert evaluate["data"] == "later.csv"

    def test_schema_is_json(self, capsys):
        code, out, _ = call(capsys, "schema")
        assert code == 0
        assert "train" in json.loads(out)["properties"]

    def test_sample_writes_rows_and_tells_the_best_logloss(self, capsys, tmp_path):
        path = tmp_path / "rows.tsv"
        code, out, _ = call(capsys, "sample", "criteo", "--rows", "200", "-o", path, "--json")
        assert code == 0
        assert 0 < json.loads(out)["bayes_logloss"] < 1
        assert len(path.read_text().splitlines()) == 200


class TestErrors:
    def test_config_problems_come_all_at_once(self, capsys, config):
        config.write_text("data: {train: a, labl: x}\ntrain: {epoch: 3}\n")
        code, out, err = call(capsys, "run", config, "-q")
        assert (code, out) == (1, "")
        assert err.startswith("error: 2 problems in the config:\n")
        assert "c.yaml:1: data.labl: unknown key (did you mean 'label'?)" in err
        assert "c.yaml:2: train.epoch: unknown key (did you mean 'epochs'?)" in err

    def test_unknown_model_is_told_with_the_rest(self, capsys, config):
        config.write_text("data: {train: a, labl: x}\nmodel: {name: deepfmm}\n")
        code, out, _ = call(capsys, "check", config, "--json")
        problems = json.loads(out)["error"]["problems"]
        assert code == 1
        assert [problem["key"] for problem in problems] == ["data.labl", "model.name"]
        assert "deepfm" in problems[1]["message"]

    def test_user_error_is_one_sentence(self, capsys, pipeline, config):
        pipeline.error = DataError("is empty", place="rows.csv", remedy="Name another file")
        code, out, err = call(capsys, "run", config, "-q", "--json")
        assert code == 1
        assert err == "error: rows.csv: is empty. Name another file\n"
        assert json.loads(out) == {
            "error": {
                "type": "DataError",
                "message": "is empty",
                "place": "rows.csv",
                "remedy": "Name another file",
            },
            "exit_code": 1,
        }

    def test_a_store_that_is_away_has_the_code_that_says_to_try_again(
        self, capsys, pipeline, config
    ):
        pipeline.error = StorageAwayError("does not answer", place="s3://b/a", remedy="Wait")
        code, out, err = call(capsys, "run", config, "-q", "--json")
        assert code == json.loads(out)["exit_code"] == 75
        assert err == "error: s3://b/a: does not answer. Wait\n"

    def test_bug_goes_to_the_log_of_the_run(self, capsys, pipeline, config, tmp_path):
        folder = tmp_path / "runs" / "x"
        folder.mkdir(parents=True)
        pipeline.error = ZeroDivisionError("deep inside")
        code, out, err = call(capsys, "run", config, "-q", "--json")
        assert code == 3
        assert "Traceback" not in err
        assert "runs/x/run.log" in err
        assert "deep inside" in (folder / "run.log").read_text()
        assert json.loads(out)["exit_code"] == 3

    @pytest.mark.parametrize("sensitive", [True, False])
    def test_a_bug_tells_no_value_where_a_column_is_sensitive(
        self, capsys, pipeline, config, tmp_path, sensitive
    ):
        folder = tmp_path / "runs" / "x"
        folder.mkdir(parents=True)
        with config.open("a") as file:
            file.write(f"features: [{{columns: I1, sensitive: {str(sensitive).lower()}}}]\n")
        value = "alice@" + "example"
        pipeline.error = ValueError(f"cannot parse {value}")
        code, out, err = call(capsys, "run", config, "--json")
        assert code == 3
        told = (out, err, (folder / "run.log").read_text())
        assert [value in one for one in told] == [not sensitive] * 3
        assert all("ValueError" in one for one in told)

    def test_bug_without_a_run_folder_goes_to_a_temporary_file(
        self, capsys, pipeline, config, tmp_path, monkeypatch
    ):
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        pipeline.error = ZeroDivisionError("deep inside")
        code, _, err = call(capsys, "run", config, "-q")
        (log,) = tmp_path.glob("ctrpipe-*.log")
        assert code == 3
        assert str(log) in err
        assert "Traceback" in log.read_text()

    @pytest.mark.parametrize(
        ("error", "message"),
        [
            (OSError(28, "No space left on device", "/x/y"), "/x/y: no space left on device. Free"),
            (PermissionError(13, "Permission denied", "/x/y"), "/x/y: permission denied. Check"),
            (MemoryError(), "out of memory. Lower train.batch_size"),
            (
                RuntimeError("{} OOM when allocating tensor"),
                "out of memory. Lower train.batch_size",
            ),
        ],
    )
    def test_machine_error_is_the_users_to_mend(self, capsys, pipeline, config, error, message):
        pipeline.error = error
        code, _, err = call(capsys, "run", config, "-q")
        assert code == 1
        assert message in err

    def test_a_refused_thread_is_no_bug_and_has_a_code_of_its_own(self, capsys, pipeline, config):
        pipeline.error = RuntimeError("can't start new thread")
        code, _, err = call(capsys, "run", config, "-q")
        assert code == 73
        assert err.startswith("error: the system allows no more threads. Raise the limit")

    @pytest.mark.parametrize(
        ("error", "code", "name"),
        [
            (Interrupted(signal.SIGINT), 130, "Ctrl-C"),
            (Interrupted(signal.SIGTERM), 143, "SIGTERM"),
            (KeyboardInterrupt(), 130, "Ctrl-C"),
        ],
    )
    def test_interruption_says_how_to_go_on(self, capsys, pipeline, config, error, code, name):
        pipeline.error = error
        found, out, err = call(capsys, "run", config, "-q", "--json")
        assert found == code
        assert err == f"stopped by {name}; 'ctrpipe run c.yaml --resume' continues from here\n"
        assert json.loads(out)["exit_code"] == code


@pytest.mark.e2e
class TestProcess:
    @staticmethod
    def start(*arguments, **keywords):
        return subprocess.run(
            [sys.executable, "-m", "ctr_pipeline", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            **keywords,
        )

    def test_help_imports_nothing_heavy(self):
        program = (
            "import sys\nfrom ctr_pipeline.cli.main import main\ncode = main(['run', '--help'])\n"
            "heavy = {'tensorflow', 'keras', 'pandas', 'numpy', 'pyarrow', 'duckdb', 'numba',"
            " 'yaml', 'jinja2'} & set(sys.modules)\n"
            "print('HEAVY', code, sorted(heavy))"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines()[-1] == "HEAVY 0 []"

    def test_a_refusal_without_a_model_imports_nothing_heavy(self, tmp_path):
        (tmp_path / "c.yaml").write_text("data: {train: rows.csv, label: click}\noutput: run\n")
        program = (
            "import sys\nfrom ctr_pipeline.cli.main import main\n"
            "code = main(['predict', 'c.yaml', '--data', 'rows.csv', '--output', 'p.csv'])\n"
            "heavy = {'tensorflow', 'keras', 'pyarrow', 'duckdb', 'numba'}\n"
            "print('HEAVY', code, sorted(heavy & set(sys.modules)))"
        )
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
        )
        assert "holds no trained model" in done.stderr
        assert done.stdout.splitlines()[-1] == "HEAVY 1 []"

    def test_wrong_config_ends_with_1(self, tmp_path):
        done = self.start("check", str(tmp_path / "absent.yaml"))
        assert done.returncode == 1
        assert done.stdout == ""
        assert "there is no such file" in done.stderr

    def test_reader_that_leaves_is_no_error_message(self):
        read, write = os.pipe()
        os.close(read)
        try:
            done = subprocess.run(
                [sys.executable, "-m", "ctr_pipeline", "schema"],
                stdout=write,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
        finally:
            os.close(write)
        assert done.returncode == 1
        assert done.stderr == ""

    @pytest.mark.parametrize(
        ("number", "code"),
        [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)],
    )
    def test_signal_stops_cleanly(self, tmp_path, number, code):
        arguments = ["sample", "criteo", "--rows", "100000000", "-o", str(tmp_path / "rows.tsv")]
        with subprocess.Popen(
            [sys.executable, "-m", "ctr_pipeline", *arguments], stderr=subprocess.PIPE, text=True
        ) as process:
            lines = iter(process.stderr.readline, "")
            assert any(line.startswith("sample: started") for line in lines)
            process.send_signal(number)
            rest = process.stderr.read()
            assert process.wait(timeout=60) == code
        assert rest.splitlines()[-1].startswith("stopped by ")
        assert "Traceback" not in rest
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("given", "seen"), [(None, "-1"), ("0", "0")])
def test_tensorflow_sees_no_gpu_unless_one_is_named(given, seen, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if given is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    set_up_libraries()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == seen
