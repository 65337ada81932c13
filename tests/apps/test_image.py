import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from ctr_pipeline.apps.image import Engine
from ctr_pipeline.apps.image.building import ImageBuild, write_context
from ctr_pipeline.cli.main import main

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT / "ctr_pipeline/apps/image/requirements.txt"


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Makes programs that stand for builders; nothing else is found."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def make(name, script):
        program = folder / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    return make


def pins_of(path):
    """Versions and sums by package."""
    entries = re.split(r"\n(?=[A-Za-z])", path.read_text().strip())
    return {
        re.match(r"[\w.-]+", one)[0]: (
            re.search(r"==([\w.+!]+)", one)[1],
            frozenset(re.findall(r"sha256:[0-9a-f]{64}", one)),
        )
        for one in entries
    }


def test_the_image_installs_what_the_project_is_tested_with():
    image, tested = pins_of(REQUIREMENTS), pins_of(ROOT / "requirements/dev.txt")
    # The same TensorFlow, built for processors alone.
    assert image.pop("tensorflow-cpu")[0] == tested["tensorflow"][0]
    assert {name: tested.get(name) for name in image} == image


def test_the_image_has_what_pods_need():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    wanted = [*project["dependencies"], *optional["kubernetes"], *optional["etcd"]]
    wanted += [*optional["objectstore"], *optional["maxcompute"]]
    names = {re.match(r"[\w.-]+", one)[0].lower() for one in wanted}
    assert names <= {name.lower() for name in pins_of(REQUIREMENTS)}
    assert not {"pytest", "mypy", "ruff", "pip"} & set(pins_of(REQUIREMENTS))


@pytest.mark.slow
def test_the_context_installs_this_package_and_what_it_copies_is_there(tmp_path):
    write_context(tmp_path / "context")
    copied = re.findall(
        r"^COPY (?!--from)(.*) \S+$", (tmp_path / "context/Dockerfile").read_text(), re.M
    )
    for pattern in " ".join(copied).split():
        assert list((tmp_path / "context").glob(pattern)), pattern
    (wheel,) = (tmp_path / "context").glob("*.whl")
    target = tmp_path / "installed"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*command, "--target", str(target), str(wheel)], check=True)
    for path in (ROOT / "ctr_pipeline").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            assert (target / path.relative_to(ROOT)).read_bytes() == path.read_bytes()
    assert (target / "bin/ctrpipe").exists()


def test_the_context_of_the_same_package_has_the_same_bytes(tmp_path):
    for name in ("one", "other"):
        write_context(tmp_path / name)
    one, other = (next((tmp_path / name).glob("*.whl")) for name in ("one", "other"))
    assert one.read_bytes() == other.read_bytes()
    assert zipfile.ZipFile(one).testzip() is None


def test_the_index_of_packages_is_a_secret_of_the_build(tmp_path):
    config = tmp_path / "pip.conf"
    build = ImageBuild("clicks:1", "python:3.12-slim", config, ["--network=host"])
    for engine in Engine:
        assert build.command(engine, tmp_path) == [
            *(engine, "build", "--tag", "clicks:1", "--build-arg", "BASE=python:3.12-slim"),
            *("--secret", f"id=pip,src={config}", "--network=host", str(tmp_path)),
        ]
    assert "index" not in (ROOT / "ctr_pipeline/apps/image/Dockerfile").read_text().replace(
        "--no-index", ""
    )


def test_the_first_program_that_works_builds(programs, tmp_path, capfd):
    programs("docker", 'echo "no daemon" >&2; exit 1')
    said = tmp_path / "said"
    programs("podman", f'echo "$@" >> {said}; for one in "$@"; do last=$one; done; '
             f'if [ "$1" = build ]; then /bin/ls "$last" >> {said}; fi')  # fmt: skip
    programs("buildah", "exit 1")
    assert main(["image", "--tag", "clicks:1", "--", "--network=host"]) == 0
    lines = said.read_text().splitlines()
    assert lines[0] == "version"
    assert lines[1].startswith("build --tag clicks:1 --build-arg BASE=python:3.11-slim --network")
    assert "Dockerfile" in lines
    assert not Path(lines[1].split()[-1]).exists()
    assert "kubernetes.image: clicks:1" in capfd.readouterr().out
    assert main(["image", "--tag", "registry:5000/clicks:1", "--push"]) == 0
    assert said.read_text().splitlines()[-1] == "push registry:5000/clicks:1"
    assert "Built and pushed registry:5000/clicks:1" in capfd.readouterr().out


def test_an_image_is_pushed_to_a_registry_that_it_names_and_that_takes_it(programs, capfd):
    programs("podman", '[ "$1" != push ]')
    for tag in ("clicks:1", "ads/clicks:1"):
        assert main(["image", "--tag", tag, "--push"]) == 1
        assert f"'{tag}' names no registry" in " ".join(capfd.readouterr().err.split())
    assert main(["image", "--tag", "registry.example.com/clicks:1", "--push", "--print"]) == 1
    assert "--push builds here" in capfd.readouterr().err
    assert main(["image", "--tag", "registry.example.com/clicks:1", "--push"]) == 1
    error = " ".join(capfd.readouterr().err.split())
    assert "'podman' built 'registry.example.com/clicks:1' and could not push it" in error
    assert "podman login registry.example.com" in error


def test_a_build_that_fails_says_which_program_to_read(programs, capfd):
    programs("podman", "exit 3")
    assert main(["image", "--engine", "podman"]) == 1
    assert "'podman' could not build the image: it ended with 3" in capfd.readouterr().err


def test_build_error_says_how_to_build_elsewhere_where_no_program_builds(programs, tmp_path, capfd):
    programs("docker", "exit 1")
    assert main(["image", "--tag", "clicks:1"]) == 1
    error = " ".join(capfd.readouterr().err.split())
    assert "neither docker, podman nor buildah works here" in error
    assert "ctrpipe image --context FOLDER" in error
    assert "docker build --tag clicks:1" in error
    assert main(["image", "--engine", "buildah"]) == 1
    assert "'buildah' cannot be started" in capfd.readouterr().err


def test_the_files_of_a_build_go_to_a_new_folder(tmp_path, capfd):
    folder = tmp_path / "context"
    assert main(["image", "--context", str(folder)]) == 0
    assert f"docker build --tag ctrpipe:1 --build-arg BASE=python:3.11-slim {folder}" in (
        capfd.readouterr().out
    )
    assert main(["image", "--context", str(folder)]) == 1
    assert "the folder exists" in capfd.readouterr().err
    shutil.rmtree(folder)
    folder.parent.joinpath("file").write_text("")
    assert main(["image", "--context", str(tmp_path / "file" / "context")]) == 1
    assert "cannot be written" in capfd.readouterr().err


def test_print_shows_the_dockerfile_and_the_command(programs, capfd):
    assert main(["image", "--print", "--base", "mirror/python:3.11"]) == 0
    printed = capfd.readouterr().out
    assert (ROOT / "ctr_pipeline/apps/image/Dockerfile").read_text() in printed
    assert "docker build --tag ctrpipe:1 --build-arg BASE=mirror/python:3.11 FOLDER" in printed
