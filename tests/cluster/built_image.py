"""The image of `ctrpipe image`, built by Debian's buildah without a registry of images.

Its base is a Debian with Python that debootstrap puts together once; where one of the two programs
is missing, `NoBuilder` says so.

    python -m tests.cluster.built_image IMAGE.tar
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.cluster.cluster_binaries import cache_folder

BUILT_IMAGE = "localhost/ctrpipe:built"
_BASE = "localhost/debian-python:1"
_BASE_PACKAGES = "python3,python3-venv,ca-certificates"
_CERTIFICATES = "/etc/ssl/certs"
_TREE = Path(__file__).parents[2]


class NoBuilder(Exception):
    """No image can be built here; says why."""


def lack_of_builder() -> str:
    """Why no image can be built here; empty if one can."""
    missing = [one for one in ("buildah", "debootstrap") if shutil.which(one) is None]
    return f"apt-get install {' '.join(missing)} would bring what is missing" if missing else ""


def build_image(archive: Path) -> None:
    """Builds the image of this tree and writes it as an archive that containerd imports.

    Takes minutes, 8 GB beside the archive, and packages from the index that pip uses.

    Raises:
        NoBuilder: A program is missing.
    """
    if lack := lack_of_builder():
        raise NoBuilder(lack)
    with tempfile.TemporaryDirectory(dir=archive.parent) as made:
        folder = Path(made)
        storage = folder / "storage.conf"
        storage.write_text(
            f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/images"\nrunroot = "{folder}/run"\n'
        )
        environment = {
            **os.environ,
            "CONTAINERS_STORAGE_CONF": str(storage),
            "BUILDAH_ISOLATION": "chroot",
            "PYTHONPATH": str(_TREE),
        }

        def run(*command: str, within: Path = _TREE) -> None:
            subprocess.run(command, check=True, env=environment, cwd=within)

        context = folder / "base"
        context.mkdir()
        shutil.copyfile(_base_files(), context / "base.tar")
        (context / "Dockerfile").write_text("FROM scratch\nADD base.tar /\n")
        run("buildah", "build", "--quiet", "--tag", _BASE, str(context))
        command = [sys.executable, "-m", "ctr_pipeline", "image", "--engine", "buildah"]
        command += ["--tag", BUILT_IMAGE, "--base", _BASE]
        if (pip_config := Path("/etc/pip.conf")).exists():
            command += ["--pip-config", str(pip_config)]
        # Certificates of the machine, for an index of its own.
        run(*command, "--", "--pull-never", "--volume", f"{_CERTIFICATES}:{_CERTIFICATES}:ro")
        run("buildah", "push", "--quiet", BUILT_IMAGE, f"docker-archive:{archive}:{BUILT_IMAGE}")


def _base_files() -> Path:
    """A tar archive of the root file system, kept for the next build."""
    archive = cache_folder() / "debian-python.tar"
    if not archive.exists():
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=archive.parent) as made:
            root, whole = Path(made) / "root", Path(made) / "root.tar"
            command = ["debootstrap", "--variant=minbase", f"--include={_BASE_PACKAGES}"]
            subprocess.run([*command, "bookworm", str(root)], check=True, stdout=sys.stderr)
            subprocess.run(["tar", "-C", str(root), "-cf", str(whole), "."], check=True)
            whole.rename(archive)
    return archive


if __name__ == "__main__":
    build_image(Path(sys.argv[1]))
