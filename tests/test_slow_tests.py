"""`tools.slow_tests` counts what pytest did, and repeats tests of faults alone."""

import pytest

from tools import slow_tests
from tools.slow_tests import Counts, main, read_counts, summary, wait_until_idle

TESTS = """
import pathlib

import pytest

marker = pathlib.Path(__file__).with_name("ran-once")

def test_good():
    pass

def test_absent():
    pytest.skip("nothing here")

@pytest.mark.faults
def test_fault_passes_the_second_time():
    if not marker.exists():
        marker.touch()
        raise AssertionError
"""
BAD = """
@pytest.mark.faults
def test_fault_fails_each_time():
    raise AssertionError
"""
UNMARKED = """
other = pathlib.Path(__file__).with_name("ran-once-too")

def test_unmarked_test_would_pass_the_second_time():
    if not other.exists():
        other.touch()
        raise AssertionError
"""


@pytest.fixture
def run(tmp_path, capfd, monkeypatch):
    """Runs tests of these texts; returns the exit code and what is said of them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = faults")

    def run(*texts):
        (tmp_path / "test_it.py").write_text("".join(texts))
        code = main(["--busy", "-q"])
        return code, capfd.readouterr().out.split("\npassed ")[-1]

    return run


@pytest.mark.slow
def test_a_test_of_faults_is_repeated_once_alone(run):
    code, said = run(TESTS)
    assert code == 0
    lines = said.splitlines()
    assert lines[0].split() == ["1"]
    assert [line.split()[-1] for line in lines[1:4]] == ["1", "0", "1"]
    assert lines[4].endswith("test_it.py::test_fault_passes_the_second_time")


@pytest.mark.slow
@pytest.mark.parametrize("more", [BAD, UNMARKED], ids=["fails again", "is no test of faults"])
def test_failures_count_unless_a_fault_test_passes_when_repeated(run, more):
    code, said = run(TESTS, more)
    assert code == 1
    assert said.splitlines()[2].split() == ["failed", "1"]


@pytest.mark.slow
def test_tests_that_are_not_collected_have_failed(run):
    code, said = run("import nothing_of_this_name\n")
    assert code == 2
    assert said.splitlines()[2].split() == ["failed", "1"]


def test_the_table_names_what_failed():
    counts = Counts(passed=7, skipped=0, failed=("a.py::a", "b.py::b"))
    assert [line.strip() for line in summary(counts, ["b.py::b"]).splitlines()] == [
        f"{'passed':<28}{7:>6}",
        f"{'skipped':<28}{0:>6}",
        f"{'failed':<28}{1:>6}",
        "a.py::a",
        f"{'failed once, passed alone':<28}{1:>6}",
        "b.py::b",
    ]


def test_a_busy_machine_is_waited_for():
    loads, slept = iter([3.0, 1.5, 0.9]), []
    assert wait_until_idle(lambda: next(loads), sleep=slept.append)
    assert slept == [10.0, 10.0]
    assert not wait_until_idle(lambda: 3.0, sleep=slept.append, wait_seconds=20.0)


def test_no_test_is_run_on_a_busy_machine(monkeypatch, capsys):
    monkeypatch.setattr(slow_tests, "wait_until_idle", lambda load: False)
    assert main([]) == 2
    assert "This machine is busy" in capsys.readouterr().err


def test_counts_are_those_of_all_suites(tmp_path):
    (tmp_path / "junit.xml").write_text(
        '<testsuites><testsuite tests="5" failures="1" errors="1" skipped="1"/></testsuites>'
    )
    assert read_counts(tmp_path) == Counts(passed=2, skipped=1, failed=())
