import json

import pytest

from ctr_pipeline.cli import machine_checks
from ctr_pipeline.cli.machine_checks import (
    Check,
    Verdict,
    judge_cores,
    judge_disk,
    judge_folder,
    judge_memory,
    judge_packages,
    judge_processor,
    judge_python,
)
from ctr_pipeline.cli.main import main
from ctr_pipeline.dataset.formats.maxcompute import client
from ctr_pipeline.dataset.source import ServiceAccess
from ctr_pipeline.progress import SilentProgress
from tests.maxcompute.maxcompute_service import ACCESS_KEY, service_in_environment


@pytest.mark.parametrize(
    ("check", "verdict", "remedy"),
    [
        (judge_python((3, 11), "3.11.7"), "works", ""),
        (judge_python((3, 13), "3.13.0"), "fails", "3.11 or 3.12"),
        (judge_packages({"keras": "3.15"}), "works", ""),
        (judge_packages({"keras": None}), "fails", "pip install keras"),
        (judge_cores(8, None), "works", ""),
        (judge_cores(8, 2.5), "works", ""),
        (judge_cores(8, 1.5), "slow", "two cores"),
        (judge_cores(1, None), "slow", "two cores"),
        (judge_memory(8 * 10**9, None), "works", ""),
        (judge_memory(8 * 10**9, 10**9), "slow", "memory_limit_gb"),
        (judge_processor(frozenset({"avx2", "fma"})), "works", ""),
    ],
)
def test_verdict_comes_with_a_remedy(check, verdict, remedy):
    assert check.verdict.value == verdict
    assert remedy in check.remedy
    assert bool(check.remedy) == (verdict != "works")


def test_cores_of_a_container_say_what_is_used():
    assert "8, the container may use 2.5; threads by default: 3" in judge_cores(8, 2.5).found


def test_a_processor_with_products_of_bfloat16_says_what_they_are_for():
    flags = {"avx2", "fma", "avx512f"}
    assert "train.precision" not in judge_processor(frozenset(flags)).found
    assert "train.precision" in judge_processor(frozenset(flags | {"amx_bf16"})).found


def test_folder_and_disk(tmp_path):
    assert judge_folder("folder", tmp_path).verdict is Verdict.WORKS
    assert judge_folder("folder", tmp_path / "absent").verdict is Verdict.FAILS
    assert judge_disk(tmp_path, 10**6).verdict is Verdict.SLOW


@pytest.mark.parametrize(("verdict", "code"), [("works", 0), ("slow", 0), ("fails", 1)])
def test_doctor_fails_only_if_a_run_would(monkeypatch, capsys, verdict, code):
    check = Check("thing", Verdict(verdict), "as found", "do this")
    monkeypatch.setattr(machine_checks, "check_machine", lambda progress: [check])
    assert main(["doctor"]) == code
    text = capsys.readouterr().out
    assert "as found" in text
    assert "→ do this" in text
    assert main(["doctor", "--json"]) == code
    payload = json.loads(capsys.readouterr().out)
    assert payload["works"] == (code == 0)
    assert payload["checks"][0]["verdict"] == verdict


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("pass", None),
        ("raise ImportError('no such library')", "ImportError: no such library"),
        ("import os; os.kill(os.getpid(), 9)", "killed by signal 9"),
    ],
)
def test_probe_tells_what_went_wrong(program, message):
    found, seconds = machine_checks.run_python(program)
    assert found == message
    assert seconds > 0


@pytest.mark.parametrize(
    ("is_set_up", "missing", "failure", "verdict", "says"),
    [
        (False, ("ODPS_PROJECT",), None, Verdict.WORKS, "not set up"),
        (True, ("ODPS_ENDPOINT",), None, Verdict.FAILS, "missing: ODPS_ENDPOINT"),
        (True, (), "refuses the credentials", Verdict.FAILS, "refuses the credentials"),
        (True, (), None, Verdict.WORKS, "the service answers"),
    ],
)
def test_maxcompute_is_needed_only_where_it_is_set_up(is_set_up, missing, failure, verdict, says):
    check = machine_checks.judge_service("MaxCompute", ServiceAccess(is_set_up, missing, failure))
    assert check.verdict is verdict
    assert says in check.found


@pytest.mark.parametrize(("key", "verdict"), [(None, Verdict.WORKS), ("wrong", Verdict.FAILS)])
def test_doctor_asks_the_service(monkeypatch, key, verdict):
    monkeypatch.setattr(client, "RETRY_SECONDS", ())
    with service_in_environment(monkeypatch):
        if key is not None:
            monkeypatch.setenv("ODPS_ACCESS_KEY", key)
        (check,) = machine_checks.probe_services(SilentProgress())
    assert check.verdict is verdict
    assert ACCESS_KEY not in check.found
