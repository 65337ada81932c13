import json
import re
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

from ctr_pipeline.apps.image.sbom import describe_installed
from tools.audit import look_up, main, weaknesses_of

ROOT = Path(__file__).parent.parent
CLEAN = {"dependencies": [{"name": "safe", "version": "1", "vulns": []}]}
WEAK = {
    "dependencies": [
        {"name": "weak", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]},
        {"name": "left-out", "skip_reason": "unknown"},
    ]
}


@pytest.fixture
def answering(tmp_path):
    """Makes a program that stands for pip-audit."""

    def make(said, code):
        program = tmp_path / "pip-audit"
        program.write_text(f"#!{sys.executable}\nimport sys\nprint({said!r})\nsys.exit({code})\n")
        program.chmod(0o755)
        return program

    return make


def audit(monkeypatch, tmp_path, program):
    arguments = ["audit", "--pip-audit", str(program), "--sbom", str(tmp_path / "sbom.json"), "r"]
    monkeypatch.setattr(sys, "argv", arguments)
    return main()


def test_a_known_weakness_fails(monkeypatch, tmp_path, answering, capsys):
    assert audit(monkeypatch, tmp_path, answering(json.dumps(WEAK), 1)) == 1
    assert "r: weak 2: CVE-1 (mended in 3)\n" in capsys.readouterr().out


def test_audit_passes_without_known_weaknesses(monkeypatch, tmp_path, answering, capsys):
    assert audit(monkeypatch, tmp_path, answering(json.dumps(CLEAN), 0)) == 0
    assert "r: 0 known weaknesses of 1 packages\n" in capsys.readouterr().out


@pytest.mark.parametrize("said", ["", "ERROR: no connection", "[1"])
def test_no_answer_is_said_and_passes(monkeypatch, tmp_path, answering, capsys, said):
    assert audit(monkeypatch, tmp_path, answering(said, 1)) == 0
    assert "NOT AUDITED" in capsys.readouterr().out


def test_packages_that_were_skipped_are_not_called_safe(monkeypatch, tmp_path, answering, capsys):
    skipped = {"dependencies": [{"name": "a", "skip_reason": "not found"}]}
    assert audit(monkeypatch, tmp_path, answering(json.dumps(skipped), 0)) == 0
    said = capsys.readouterr().out
    assert "r: NOT AUDITED, no answer for 1 of 1\n" in said
    assert "r: 0 known weaknesses of 0 packages\n" in said


def test_audit_looks_nothing_up_without_the_program(tmp_path):
    assert look_up(tmp_path / "absent", tmp_path / "r") is None


def test_a_weakness_without_a_mended_version_is_told():
    answer = {
        "dependencies": [{"name": "a", "version": "1", "vulns": [{"id": "X", "fix_versions": []}]}]
    }
    assert weaknesses_of(answer) == ["a 1: X (mended in no version yet)"]


def test_the_list_names_what_is_installed():
    document = describe_installed(distributions())
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    named = {one["name"]: one for one in document["components"]}
    assert named["numpy"]["purl"].startswith("pkg:pypi/numpy@")
    assert "ctrpipe" not in named


@pytest.mark.parametrize(
    "path",
    [
        *sorted((ROOT / "requirements").glob("*.txt")),
        ROOT / "ctr_pipeline/apps/image/requirements.txt",
    ],
    ids=lambda one: f"{one.parent.name}-{one.name}",
)
def test_every_requirement_has_one_version_and_sums_of_its_files(path):
    entries = re.split(r"\n(?=[A-Za-z])", path.read_text().replace("\\\n", " ").strip())
    for entry in entries:
        assert re.match(r"[A-Za-z0-9._-]+(\[[a-z,]+\])?==[\w.+!]+ ", entry), entry[:80]
        assert re.findall(r"--hash=sha256:[0-9a-f]{64}", entry), entry[:80]
    assert "://" not in path.read_text()
    assert "--index" not in path.read_text()


def test_dependencies_of_the_project_are_pinned():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    pinned = {
        re.split(r"[\[=]", line)[0].lower().replace("_", "-")
        for line in (ROOT / "requirements" / "dev.txt").read_text().splitlines()
        if "==" in line
    }
    assert {re.split(r"[\[<>=]", one)[0].lower().replace("_", "-") for one in wanted} <= pinned
