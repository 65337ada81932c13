import json
import sys
import types
from pathlib import Path

import pytest

from ctr_pipeline.apps.live import pages_of_job
from ctr_pipeline.cli.main import main
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.errors import CtrPipelineError
from ctr_pipeline.pipeline.job import waiting as job_arrival


@pytest.fixture
def prepared(config):
    """A run folder that looks like that of a prepared job."""
    folder = Path("runs/x")
    (folder / "job").mkdir(parents=True)
    (folder / "job" / "spec.json").write_text("{}")
    Access.create(folder / "job", False)
    return folder


PROGRAMS = {
    "master": ("ctr_pipeline.distributed.master.program", "run_master"),
    "ps": ("ctr_pipeline.distributed.ps.program", "run_ps"),
    "worker": ("ctr_pipeline.distributed.worker.program", "run_worker"),
}


class Programs:
    """Stand-ins for the programs of all roles."""

    def __init__(self, monkeypatch):
        self.calls = []
        self.answer = lambda: 0
        for module, name in PROGRAMS.values():
            fake = types.ModuleType(module)
            setattr(fake, name, self._record(name))
            monkeypatch.setitem(sys.modules, module, fake)
        model = types.ModuleType("ctr_pipeline.pipeline.job.worker_model")
        model.build_worker_model = lambda loaded: ("model of", loaded.config.output)
        monkeypatch.setitem(sys.modules, model.__name__, model)
        self.joins = []
        self.can_join = True
        monkeypatch.setattr(job_arrival, "await_job", self._join)

    def _join(self, job, look, *, wait_seconds):
        self.joins.append((job.run_folder, wait_seconds))
        return self.can_join

    def _record(self, name):
        def run(*arguments, **keywords):
            self.calls.append((name, arguments, keywords))
            return self.answer()

        return run


@pytest.fixture
def programs(monkeypatch):
    return Programs(monkeypatch)


class TestReachTheirProgram:
    def test_master(self, config, prepared, programs):
        assert main(["master", "--config", str(config)]) == 0
        assert programs.calls == [
            ("run_master", (prepared, "127.0.0.1:0"), {"pages": pages_of_job})
        ]

    def test_master_of_a_launcher(self, config, prepared, programs):
        arguments = ["--bind", "127.0.0.1:7", "--launcher", "127.0.0.1:9"]
        assert main(["master", "--config", str(config), *arguments]) == 0
        ((_, (folder, bind, launcher), _),) = programs.calls
        assert (folder, bind) == (prepared, "127.0.0.1:7")
        assert launcher.address == "127.0.0.1:9"

    def test_parameter_server(self, config, prepared, programs):
        arguments = ["--index", "2", "--master", "127.0.0.1:5", "--incarnation", "abc"]
        assert main(["ps", "-c", str(config), *arguments]) == 0
        ((_, arguments, keywords),) = programs.calls
        assert arguments == (prepared, 2, "127.0.0.1:5", "127.0.0.1:0")
        assert keywords["incarnation"] == "abc"

    def test_worker(self, config, prepared, programs):
        assert main(["worker", "-c", str(config), "--index", "1", "--set", "output=runs/x"]) == 0
        ((_, arguments, keywords),) = programs.calls
        assert arguments == (prepared, 1, None)
        assert keywords["incarnation"] is None
        assert keywords["build"]() == ("model of", "runs/x")


@pytest.mark.parametrize("role", ["ps", "worker"])
class TestFindAJob:
    def test_member_finds_its_job_where_a_person_starts_it(self, config, prepared, programs, role):
        command = [role, "-c", str(config), "--index", "0"]
        assert main(command) == 0
        assert main([*command, "--wait", "7"]) == 0
        assert programs.joins == [(prepared, 60), (prepared, 7)]
        assert len(programs.calls) == 2

    def test_a_finished_one_is_left_alone(self, config, prepared, programs, role):
        programs.can_join = False
        assert main([role, "-c", str(config), "--index", "0"]) == 0
        assert programs.calls == []

    def test_a_launcher_knows_its_own(self, config, prepared, programs, role):
        command = [role, "-c", str(config), "--index", "0", "--incarnation", "abc"]
        assert main(command) == 0
        assert programs.joins == []
        assert len(programs.calls) == 1


MEMBERS = {"master": [], "ps": ["--index", "0"], "worker": ["--index", "0"]}


@pytest.mark.parametrize("role", MEMBERS)
class TestEnds:
    def end(self, capsys, config, role):
        code = main([role, "--config", str(config), *MEMBERS[role]])
        return code, capsys.readouterr().err

    @pytest.mark.parametrize("exit_code", [0, 1, 143])
    def test_the_program_s_exit_code_is_the_command_s(
        self, capsys, config, prepared, programs, role, exit_code
    ):
        programs.answer = lambda: exit_code
        assert self.end(capsys, config, role) == (exit_code, "")

    def test_out_of_memory_has_a_code_of_its_own_and_the_place_in_the_log(
        self, capsys, config, prepared, programs, role
    ):
        def answer():
            raise MemoryError

        programs.answer = answer
        code, err = self.end(capsys, config, role)
        assert code == 71
        assert "in answer" in err
        assert "is out of memory. Give it more, or lower train.batch_size" in err

    def test_a_bug_leaves_its_traceback_in_the_log(self, capsys, config, prepared, programs, role):
        def answer():
            raise ZeroDivisionError("deep inside")

        programs.answer = answer
        code, err = self.end(capsys, config, role)
        assert code == 3
        assert err.startswith("Traceback")
        assert "ZeroDivisionError: deep inside" in err

    def test_error_that_the_user_can_mend_is_one_sentence(
        self, capsys, config, prepared, programs, role
    ):
        def answer():
            raise CtrPipelineError("is full", place="/data", remedy="Free space")

        programs.answer = answer
        assert self.end(capsys, config, role) == (1, "error: /data: is full. Free space\n")


class TestRealPrograms:
    """Mistakes that the real programs find before they do anything."""

    def test_missing_secrets(self, capsys, config, prepared):
        (prepared / "job" / "token").unlink()
        assert main(["ps", "--config", str(config), "--index", "0"]) == 1
        assert "token: is missing" in capsys.readouterr().err

    def test_a_damaged_spec(self, capsys, config, prepared):
        (prepared / "job" / "spec.json").write_text(json.dumps({"job": 1}))
        assert main(["ps", "--config", str(config), "--index", "0"]) == 1
        assert "spec.json" in capsys.readouterr().err
