"""An image made from the Python that runs the tests, in seconds and without a container engine.

It holds the interpreter with its standard library and the shared libraries of the host that they
need, and on request the installed packages and ctrpipe of this tree. There is no shell in it.

    python tests/cluster/python_image.py IMAGE.tar localhost/ctrpipe:1
"""

import io
import os
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

from oci_image import write_image

_TREE = Path(__file__).parents[2]
_PACKAGES = "/opt/ctrpipe"
# What no pod uses.
_LEFT_OUT = {
    *("__pycache__", "test", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3"),
    *("site-packages", "pyspark", "mypy", "mypyc", "pip", "hypothesis", "botocore", "ruff"),
    *("pandas-stubs", "moto"),
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
        _add(layer, library, str(library))
        for path in _shared_libraries([interpreter, *library.rglob("*.so")]):
            _add(layer, path.resolve(), str(path))
        if packages:
            _add(layer, Path(sysconfig.get_path("purelib")), _PACKAGES)
            _add(layer, _TREE / "ctr_pipeline", f"{_PACKAGES}/ctr_pipeline")
        for folder in ("tmp", "etc"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            layer.addfile(entry)
        _add_text(layer, "etc/passwd", _USER)

    environment = {"PATH": str(interpreter.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    if packages:
        environment["PYTHONPATH"] = _PACKAGES
    write_image(archive, name, fill, entrypoint=[str(interpreter)], environment=environment)


def _add(layer: tarfile.TarFile, source: Path, target: str) -> None:
    def readable_by_all(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if entry.name != target.lstrip("/") and Path(entry.name).name in _LEFT_OUT:
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
