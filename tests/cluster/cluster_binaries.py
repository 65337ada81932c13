"""The programs of the test cluster, built from pinned Go modules and kept by their hash.

Two modules: `binaries/kubernetes` (etcd, control plane, kubelet, kube-proxy, kubectl, pause) and
`binaries/containers` (containerd, runc, CNI plugins). Building takes minutes, once. Nothing is
installed: what Debian's packages hold beyond that (nft, and libseccomp to link runc with) is
unpacked beside the binaries. Two more modules are built for those who ask: `kwok` for fake nodes,
`kueue` for queues.

    python -m tests.cluster.cluster_binaries     # builds what is missing, prints the folder
    python -m tests.cluster.cluster_binaries kueue    # also Kueue: minutes more
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

SOURCES = Path(__file__).parent / "binaries"
KWOK_SOURCES = Path(__file__).parent / "kwok"
KUEUE_SOURCES = Path(__file__).parent / "kueue"
_DEBIAN_PACKAGES = (
    *("libseccomp-dev", "nftables", "libnftables1", "libnftnl11", "libjansson4", "libmnl0"),
    *("libgmp10", "libedit2", "libxtables12", "libbsd0", "libmd0", "libtinfo6"),
)
_LINKING = "-s -w"


class NoBinaries(Exception):
    """The programs cannot be had; says what is missing."""


def cache_folder() -> Path:
    """Where binaries and the state of running clusters are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "ctrpipe" / "cluster"


def binaries_folder() -> Path:
    """The folder of the binaries of these sources, whether or not it is there."""
    return cache_folder() / hash_of([Path(__file__), *sorted(SOURCES.rglob("*"))])


def hash_of(paths: Iterable[Path], root: Path = SOURCES.parent) -> str:
    """Of the names of files below a folder, and of their content."""
    digest = hashlib.sha256()
    for path in paths:
        if path.is_file():
            digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def find_binaries() -> Path:
    """The folder of the binaries.

    Raises:
        NoBinaries: They have not been built.
    """
    folder = binaries_folder()
    if not (folder / "complete").exists():
        raise NoBinaries(f"the cluster's programs are not in {folder}: 'make cluster' builds them")
    return folder


def obtain_binaries() -> Path:
    """The folder of the binaries, built now if they are not there.

    Raises:
        NoBinaries: A tool that the build needs is missing, or a step of it failed.
    """
    folder = binaries_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            for tool in ("gcc", "pkg-config"):
                if shutil.which(tool) is None:
                    raise NoBinaries(f"runc is compiled with '{tool}', which is not installed")
            go = _find_go()
            bin_folder = folder / "bin"
            bin_folder.mkdir(exist_ok=True)
            _unpack_debian_packages(folder / "debian")
            _write_nft(folder)
            _build_containers(go, folder)
            _build_kubernetes(go, bin_folder)
            (folder / "complete").touch()
    return folder


def obtain_kwok() -> Path:
    """The program that plays nodes, built now if it is not there: a minute.

    Raises:
        NoBinaries: There is no Go, or the build failed.
    """
    return _obtain_tool(KWOK_SOURCES)


def find_kueue() -> Path:
    """The program that holds pods back for queues; `config` beside it is its manifests.

    Raises:
        NoBinaries: It has not been built.
    """
    program = _tool_path(KUEUE_SOURCES)
    if not (program.exists() and program.with_name("config").exists()):
        raise NoBinaries(f"Kueue is not in {program.parent}: 'make cluster-nightly' builds it")
    return program


def obtain_kueue() -> Path:
    """The same, built now if it is not there: minutes.

    Raises:
        NoBinaries: There is no Go, or the build failed.
    """
    program = _obtain_tool(KUEUE_SOURCES)
    manifests = program.with_name("config")
    if not manifests.exists():
        listed = [_find_go(), "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kueue"]
        module = Path(_run(listed, KUEUE_SOURCES).strip())
        shutil.copytree(module / "config", manifests)
    return program


def _obtain_tool(sources: Path) -> Path:
    """The one program of a module, built now if it is not there."""
    program = _tool_path(sources)
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=program.parent) as folder:
            build = [_find_go(), "build", "-trimpath", "-ldflags", _LINKING, "-o", folder, "tool"]
            _run(build, sources, CGO_ENABLED="0")
            Path(folder, program.name).replace(program)
    return program


def _tool_path(sources: Path) -> Path:
    name = sources.name
    modules = [sources / "go.mod", sources / "go.sum"]
    return cache_folder() / f"{name}-{hash_of(modules)}" / name


def _find_go() -> str:
    # 'make cluster' puts one into the environment that runs this where there is no other.
    packaged = Path(sys.prefix, "go").glob("lib/python*/site-packages/go/bin/go")
    for go in ("go", "/usr/local/go/bin/go", *map(str, packaged)):
        if found := shutil.which(go):
            return found
    raise NoBinaries("there is no Go: 'make cluster' gets one")


def _unpack_debian_packages(folder: Path) -> None:
    # 'apt-get download' needs no rights, only lists of packages; those only root can renew.
    download = ["apt-get", "download", *_DEBIAN_PACKAGES]
    with tempfile.TemporaryDirectory(prefix="ctrpipe-packages-") as packages:
        try:
            _run(download, packages)
        except NoBinaries:
            if os.geteuid() != 0:
                raise
            _run(["apt-get", "update"], packages)
            _run(download, packages)
        for package in sorted(Path(packages).glob("*.deb")):
            _run(["dpkg-deb", "--extract", str(package), str(folder)], packages)


def _write_nft(folder: Path) -> None:
    """A `nft` that finds its libraries beside it."""
    libraries = ":".join(str(path) for path in _library_folders(folder / "debian"))
    program = folder / "bin" / "nft"
    program.write_text(
        f'#!/bin/sh\nLD_LIBRARY_PATH={libraries} exec {folder}/debian/usr/sbin/nft "$@"\n'
    )
    program.chmod(0o755)


def _library_folders(root: Path) -> Iterable[Path]:
    yield from sorted({path.parent for path in root.rglob("*.so.*")})


def _build_containers(go: str, folder: Path) -> None:
    source = SOURCES / "containers"
    output = f"{folder / 'bin'}{os.sep}"
    listed = _run([go, "list", "tool"], source).split()
    runc = next(package for package in listed if package.endswith("/runc"))
    debian = folder / "debian"
    description = next(debian.rglob("libseccomp.pc"))
    libseccomp = {
        "CGO_ENABLED": "1",
        "PKG_CONFIG_SYSROOT_DIR": str(debian),
        "PKG_CONFIG_PATH": str(description.parent),
    }
    # Go's cache keeps the folder of the build that compiled the package first; it may be gone.
    library = next(debian.rglob("libseccomp.a")).parent
    static = f"{_LINKING} -extldflags '-static -L{library}'"
    tags = ["-tags", "seccomp netgo osusergo"]
    build = [go, "build", "-trimpath", "-o", output]
    _run([*build, *tags, "-ldflags", static, runc], source, **libseccomp)
    others = [package for package in listed if package != runc]
    _run([*build, "-ldflags", _LINKING, *others], source, CGO_ENABLED="0")


def _build_kubernetes(go: str, bin_folder: Path) -> None:
    source = SOURCES / "kubernetes"
    version = _run([go, "list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes"], source).strip()
    major, minor, _ = version.removeprefix("v").split(".")
    # Clients read the version of the server; without these it is a placeholder.
    named = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    package = "k8s.io/component-base/version"
    linking = " ".join(
        [_LINKING, *(f"-X {package}.{name}={value}" for name, value in named.items())]
    )
    output = f"{bin_folder}{os.sep}"
    _run([go, "build", "-trimpath", "-ldflags", linking, "-o", output, "./..."], source)


def _run(command: list[str], folder: Path | str, **environment: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "LC_ALL": "C", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        last = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:]) or "no output"
        raise NoBinaries(f"'{' '.join(command)}' failed: {last}")
    return done.stdout


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{obtain_binaries()}\n")
        if "kueue" in sys.argv[1:]:
            sys.stdout.write(f"{obtain_kueue()}\n")
    except (NoBinaries, OSError) as error:
        sys.exit(f"No test cluster here: {error}")
