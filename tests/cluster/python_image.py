"""An image made from the Python that runs the tests, in seconds and without a container engine.

It holds the interpreter with its standard library and the shared libraries of the host that they
need, and on request the installed packages and ctrpipe of this tree. There is no shell in it. The
kernels of ctrpipe are compiled into it, which takes a minute after each change.

    python -m tests.cluster.python_image IMAGE.tar localhost/ctrpipe:1
"""

import compileall
import io
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Collection
from pathlib import Path

from numba.core.caching import _CacheLocator

from ctr_pipeline.kernels.compilation import COMPILED_VARIABLE, private_folder
from tests.cluster.cluster_binaries import cache_folder, hash_of
from tests.cluster.kubernetes_cluster import Cluster
from tests.cluster.oci_image import write_image

PYTHON_IMAGE = "localhost/python:1"
CTRPIPE_IMAGE = "localhost/ctrpipe:1"
_TREE = Path(__file__).parents[2]
_PACKAGE = _TREE / "ctr_pipeline"
_KERNELS = "kernels"
# What no pod uses, from the folder that holds it.
_WITHOUT = {
    *("test", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "site-packages"),
}
_PACKAGES_WITHOUT = {
    *("pyspark", "mypy", "mypyc", "pip", "hypothesis", "botocore", "ruff", "pandas-stubs", "moto"),
    *("clang", "tensorboard_data_server", "tensorflow/include"),
}
_USER = "nobody:x:65534:65534:nobody:/tmp:/sbin/nologin\nctrpipe:x:1000:1000::/tmp:/sbin/nologin\n"


def write_python_image(archive: Path, name: str, *, packages: bool = False) -> None:
    """Writes an OCI archive.

    Args:
        archive: The file to write.
        name: Of the image, with its tag.
        packages: Whether the packages of this environment and ctrpipe are in it.
    """
    interpreter = Path(sys.executable).resolve()

    def fill(layer: tarfile.TarFile) -> None:
        library = Path(sysconfig.get_path("stdlib"))
        _add(layer, interpreter, str(interpreter))
        _add_link(layer, str(interpreter.with_name("python")), interpreter.name)
        _add(layer, library, str(library), _WITHOUT)
        for path in _shared_libraries([interpreter, *library.rglob("*.so")]):
            _add(layer, path.resolve(), str(path))
        if packages:
            # Where the interpreter looks for them whatever the environment says.
            target = library / "site-packages"
            _add(layer, Path(sysconfig.get_path("purelib")), str(target), _PACKAGES_WITHOUT)
            package = _compiled_package(target / _PACKAGE.name)
            _add(layer, package, str(target / _PACKAGE.name))
            _add(layer, package.with_name(_KERNELS), str(library / _KERNELS))
        for folder in ("tmp", "etc"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            layer.addfile(entry)
        _add_text(layer, "etc/passwd", _USER)

    environment = {"PATH": str(interpreter.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    if packages:
        environment[COMPILED_VARIABLE] = str(Path(sysconfig.get_path("stdlib")) / _KERNELS)
    write_image(archive, name, fill, entrypoint=[str(interpreter)], environment=environment)


def load_python_image(cluster: Cluster, *, packages: bool = False) -> str:
    """Makes an image and loads it on all nodes of a cluster that runs; returns its name.

    Args:
        packages: As of `write_python_image`; it is large with them.
    """
    name = CTRPIPE_IMAGE if packages else PYTHON_IMAGE
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "image.tar"
        write_python_image(archive, name, packages=packages)
        cluster.load_image(archive)
    return name


def _compiled_package(target: Path) -> Path:
    """A copy of ctrpipe with byte code, beside machine code of its kernels; kept until it changes.

    Training on a few rows compiles the kernels, as for the image that users get. Without them each
    pod would, for a minute of a core.

    Args:
        target: Where the package lies in the image: Numba looks for machine code by that.
    """
    sources = [path for path in sorted(_PACKAGE.rglob("*")) if "__pycache__" not in path.parts]
    kept = cache_folder() / "package"
    folder = kept / hash_of([Path(__file__), *sources], _TREE)
    package = folder / _PACKAGE.name
    if (folder / "complete").exists():
        return package
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(_PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    for path in package.rglob("*"):
        # Machine code is of a source with its time, of which an image may keep whole seconds.
        os.utime(path, (0, 0))
    compileall.compile_dir(package, quiet=1)
    for found in _compile_kernels(folder):
        for place in (package, *package.rglob("*/")):
            if found.name == _name_of_kernels(place):
                there = target / place.relative_to(package)
                found.rename(folder / _KERNELS / _name_of_kernels(there))
    shutil.rmtree(folder / "warmup")
    (folder / "complete").touch()
    return package


def _compile_kernels(folder: Path) -> list[Path]:
    """Trains with the package in a folder; gives the folders of the machine code."""
    (folder / _KERNELS).mkdir()
    work = folder / "warmup"
    shutil.copytree(_PACKAGE / "apps/image/warmup", work)
    home = str(work)
    environment = os.environ | {"PYTHONPATH": str(folder), "HOME": home, "TMPDIR": home}
    environment[COMPILED_VARIABLE] = str(folder / _KERNELS)
    columns = "--columns label,I1..I13,C1..C26"
    for arguments in (
        "sample criteo --rows 4000 --output rows.tsv",
        f"convert rows.tsv {columns} --output rows.recordio --record example",
        "convert rows.recordio --output rows.parquet",
        "train processes.yaml",
        "train one_process.yaml",
    ):
        subprocess.run(
            [sys.executable, "-m", "ctr_pipeline", *arguments.split()],
            cwd=work,
            env=environment,
            stdout=subprocess.DEVNULL,
            check=True,
        )
    compiled = private_folder(work)
    assert compiled is not None
    return list(compiled.iterdir())


def _name_of_kernels(folder: Path) -> str:
    """What Numba calls the folder of the machine code of the files in one."""
    return _CacheLocator.get_suitable_cache_subpath(str(folder / "any.py"))


def _add(layer: tarfile.TarFile, source: Path, target: str, without: Collection[str] = ()) -> None:
    def readable_by_all(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if entry.name.removeprefix(f"{target}/".lstrip("/")) in without:
            return None
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = "root"
        entry.mode |= 0o055 if entry.isdir() or entry.mode & 0o100 else 0o044
        return entry

    layer.add(source, target, filter=readable_by_all)


def _add_text(layer: tarfile.TarFile, target: str, text: str) -> None:
    content = text.encode()
    entry = tarfile.TarInfo(target)
    entry.size, entry.mode = len(content), 0o644
    layer.addfile(entry, io.BytesIO(content))


def _add_link(layer: tarfile.TarFile, target: str, destination: str) -> None:
    entry = tarfile.TarInfo(target.lstrip("/"))
    entry.type, entry.linkname = tarfile.SYMTYPE, destination
    layer.addfile(entry)


def _shared_libraries(programs: list[Path]) -> list[Path]:
    """The libraries that the dynamic linker finds for programs, and those that packages need."""
    done = subprocess.run(
        ["ldd", *map(str, programs)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
    )
    words = {word for line in done.stdout.splitlines() for word in line.split()}
    found = {Path(word) for word in words if word.startswith("/") and ".so" in word}
    folder = next(path.parent for path in found if path.name == "libc.so.6")
    of_packages = ("libstdc++.so.6", "libgcc_s.so.1", "libpthread.so.0", "libdl.so.2", "librt.so.1")
    found.update(path for name in of_packages if (path := folder / name).exists())
    return sorted(path for path in found if not path.name.endswith(":"))


if __name__ == "__main__":
    write_python_image(Path(sys.argv[1]), sys.argv[2], packages=True)
