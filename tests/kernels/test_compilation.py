"""How kernels are compiled and kept: where, for whom, and until what changes."""

import ast
import importlib
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import ctr_pipeline
from ctr_pipeline.kernels import compilation

PACKAGE = Path(ctr_pipeline.__file__).parent
KERNEL_FILES = [
    file for file in sorted(PACKAGE.rglob("*.py")) if "compilation import" in file.read_text()
]


def test_a_kernel_without_a_cache_folder_still_compiles(caplog):
    namespace = {}
    # Source without a file: Numba has nowhere to keep its machine code.
    exec("def double(x):\n    return 2 * x", namespace)  # noqa: S102 -- fixed text
    with caplog.at_level("WARNING"):
        assert compilation.kernel(namespace["double"])(4) == 8
    assert "double is not cached" in caplog.text


def test_a_kernel_whose_machine_code_finds_no_room_on_the_disk_works(tmp_path, caplog, monkeypatch):
    """Neither now nor later, when machine code of an older source lies there under its name."""
    file = tmp_path / "kernels_without_room.py"
    file.write_text(_KERNELS.replace("2 * number", "2 * number + number"))
    monkeypatch.syspath_prepend(tmp_path)
    import kernels_without_room

    assert kernels_without_room.double(4) == 12
    file.write_text(_KERNELS)
    importlib.reload(kernels_without_room)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, hard))
    try:
        with caplog.at_level("WARNING"):
            assert kernels_without_room.double(4) == 8
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "double is not cached" in caplog.text
    importlib.reload(kernels_without_room)
    assert kernels_without_room.double(4) == 8


_PROGRAM = """
import sys
sys.path[:0] = sys.argv[1:]
import kernels
assert kernels.double(4) == 8
print(sum(kernels.double.stats.cache_hits.values()))
"""
_KERNELS = """
from ctr_pipeline.kernels.compilation import kernel

@kernel
def double(number):
    return 2 * number
"""


@pytest.mark.slow
def test_a_read_only_installation_without_a_home_keeps_kernels_among_temporary_files(tmp_path):
    # Files stand where folders would be made, which stops the superuser as well.
    (tmp_path / "__pycache__").write_text("")
    (tmp_path / "no-home").write_text("")
    (tmp_path / "temporary").mkdir()
    (tmp_path / "kernels.py").write_text(_KERNELS)
    program = [sys.executable, "-B", "-c", _PROGRAM, str(Path(ctr_pipeline.__file__).parents[1])]
    environment = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    environment |= {
        "HOME": str(tmp_path / "no-home"),
        "XDG_CACHE_HOME": str(tmp_path / "no-home"),
        "TMPDIR": str(tmp_path / "temporary"),
    }
    for hits in (0, 1):
        done = subprocess.run(
            [*program, str(tmp_path)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout.strip() == str(hits), done.stderr
    folder = tmp_path / "temporary" / f"ctrpipe-kernels-{os.getuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert list(folder.rglob("kernels.double*.nbc"))


@pytest.mark.slow
def test_machine_code_of_an_image_is_used_and_stays_as_it_is(tmp_path):
    (tmp_path / "kernels.py").write_text(_KERNELS)
    image, temporary = tmp_path / "image", tmp_path / "temporary"
    temporary.mkdir()
    program = [sys.executable, "-B", "-c", _PROGRAM, str(Path(ctr_pipeline.__file__).parents[1])]
    environment = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    environment["TMPDIR"] = str(temporary)

    def count_hits(**variables):
        command = [*program, str(tmp_path)]
        return int(subprocess.check_output(command, env={**environment, **variables}, text=True))

    # As an image is built: its own folder is not there yet.
    assert count_hits(CTRPIPE_KERNELS=str(image)) == 0
    (temporary / f"ctrpipe-kernels-{os.getuid()}").rename(image)
    compiled = {path: path.read_bytes() for path in image.rglob("*.nb[ci]")}
    assert compiled
    assert count_hits(CTRPIPE_KERNELS=str(image)) == 1
    # What the image was not built with, it cannot hold.
    (tmp_path / "kernels.py").write_text(_KERNELS.replace("2 * number", "number + number"))
    assert count_hits(CTRPIPE_KERNELS=str(image)) == 0
    assert count_hits(CTRPIPE_KERNELS=str(image)) == 1
    assert {path: path.read_bytes() for path in image.rglob("*.nb[ci]")} == compiled


def test_machine_code_of_an_image_is_for_every_processor_that_can_run_it(monkeypatch):
    able = dict.fromkeys(("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"), True)
    features = {**able, "avx512f": True}
    monkeypatch.setattr(compilation.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(compilation.llvmlite.binding, "get_host_cpu_features", lambda: features)
    assert compilation.target_of_image() == "x86-64-v3"
    for feature in able:
        features[feature] = False
        assert compilation.target_of_image() is None
        features[feature] = True
    monkeypatch.setattr(compilation.platform, "machine", lambda: "aarch64")
    assert compilation.target_of_image() == "generic"
    monkeypatch.setattr(compilation.platform, "machine", lambda: "riscv64")
    assert compilation.target_of_image() is None


def test_a_folder_that_others_can_write_holds_no_kernels(tmp_path):
    folder = compilation.private_folder(tmp_path)
    assert compilation.private_folder(tmp_path) == folder
    folder.chmod(0o777)
    assert compilation.private_folder(tmp_path) is None
    folder.rmdir()
    folder.symlink_to(tmp_path)
    assert compilation.private_folder(tmp_path) is None
    folder.unlink()
    folder.write_text("")
    assert compilation.private_folder(tmp_path) is None


def names_in(nodes):
    return {inner.id for node in nodes for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def used_of_other_files(file):
    """Names of this package that kernels of a file use, by the file that they come from."""
    tree = ast.parse(file.read_text())
    imported = {
        name.asname or name.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ctr_pipeline.")
        for name in node.names
    }
    kernels = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and any(getattr(by, "id", "") in ("kernel", "inlined") for by in node.decorator_list)
    ]
    constants = [node for node in tree.body if isinstance(node, ast.Assign)]
    used = names_in(statement for kernel in kernels for statement in kernel.body)
    used |= names_in(node.value for node in constants if used & names_in(node.targets))
    return {
        name: PACKAGE.parent.joinpath(*module.split(".")).with_suffix(".py")
        for name, module in imported.items()
        if name in used
    }


@pytest.mark.parametrize("file", KERNEL_FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_kernels_use_nothing_that_could_change_unseen(file):
    unseen = {
        name: str(source)
        for name, source in used_of_other_files(file).items()
        if source not in compilation.SHARED_FILES
    }
    assert not unseen, "put it into a file of compilation.SHARED_FILES"


def test_dependencies_of_kernels_are_detected():
    used = used_of_other_files(PACKAGE / "kernels" / "text_ids.py")
    assert used["GOLDEN"] == PACKAGE / "splitmix.py"


@pytest.mark.slow
def test_machine_code_is_of_the_shared_files_as_they_are(tmp_path):
    (tmp_path / "kernels.py").write_text(_KERNELS)
    changed = "from ctr_pipeline.kernels import compilation\ncompilation.shared_stamp = lambda: 1\n"
    hits = []
    for program in (_PROGRAM, _PROGRAM, changed + _PROGRAM, changed + _PROGRAM):
        done = subprocess.run(
            [sys.executable, "-c", program, str(PACKAGE.parent), str(tmp_path)],
            capture_output=True,
            text=True,
            check=True,
        )
        hits.append(int(done.stdout))
    assert hits == [0, 1, 0, 1]
