"""What the papers name has to exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ctr_pipeline.config.loader import config_from_mapping

ROOT = Path(__file__).parent.parent
PAPERS = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "RUNBOOK.md",
    "benchmarks/README.md",
    "docs/layers-and-transforms.md",
]
TEXTS = {paper: (ROOT / paper).read_text(encoding="utf-8") for paper in PAPERS}

# Paths of the repository as the papers write them; run folders and the user's own files are not.
PATH = re.compile(r"\b(?:ctr_pipeline|configs|benchmarks|tests|tools|docs|\.ci)/[\w./-]*\w")
MODULE = re.compile(r"`((?:\w+/)+\w+\.py)`")


@pytest.mark.parametrize("paper", PAPERS)
def test_named_paths_exist(paper):
    named = set(PATH.findall(TEXTS[paper]))
    missing = [path for path in named if not (ROOT / path).exists()]
    assert missing == []


@pytest.mark.parametrize("paper", ["ARCHITECTURE.md"])
def test_modules_named_within_the_package_exist(paper):
    named = set(MODULE.findall(TEXTS[paper]))
    assert len(named) > 5
    missing = [
        path
        for path in named
        if not any((ROOT / base / path).exists() for base in (".", "ctr_pipeline"))
    ]
    assert missing == []


@pytest.mark.parametrize("paper", PAPERS)
def test_linked_files_exist(paper):
    for target in re.findall(r"\]\(([^)#:]+)\)", TEXTS[paper]):
        assert ((ROOT / paper).parent / target).exists(), target


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+):.*##", makefile, re.MULTILINE))
    for paper in PAPERS:
        # In code only: "make" is a word of English, too.
        named = set(re.findall(r"(?:^|`)make ([a-z0-9-]+)", TEXTS[paper], re.MULTILINE))
        assert named <= targets, paper


def test_commands_exist():
    output = subprocess.run(
        [sys.executable, "-m", "ctr_pipeline", "--help"], capture_output=True, text=True, check=True
    ).stdout
    for paper in PAPERS:
        for command in re.findall(r"\bctrpipe ([a-z]+)\b", TEXTS[paper]):
            assert re.search(rf"\b{command}\b", output), (paper, command)


def test_the_config_of_the_readme_is_valid():
    blocks = re.findall(r"```yaml\n(.*?)```", TEXTS["README.md"], re.DOTALL)
    assert blocks
    for block in blocks:
        assert len(block.strip().splitlines()) <= 25
        config_from_mapping(yaml.safe_load(block))


def test_every_benchmark_is_in_the_benchmarks_readme():
    documented = TEXTS["benchmarks/README.md"]
    for script in (ROOT / "benchmarks").glob("*.py"):
        if "__main__" in script.read_text(encoding="utf-8"):
            assert script.name in documented, script.name


def test_nothing_of_this_machine_is_named():
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    if not tracked:
        pytest.skip("not a git checkout")
    for name in tracked:
        path = ROOT / name
        if path.suffix in {".py", ".md", ".toml", ".yaml", ".txt", ""} and path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            assert not re.search(r"/(?:root|work|farm)/\w|files\.pythonhosted", text), name
