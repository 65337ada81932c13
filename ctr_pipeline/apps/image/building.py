"""Builds the image of the installed ctrpipe by docker, podman or buildah.

The build context is written from the package itself, so that an image can be built from a checkout
and from an installed package alike, and holds the code of whoever submits. Nothing of the machine
beyond the package is in it.
"""

import base64
import hashlib
import shlex
import shutil
import subprocess
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

import ctr_pipeline
from ctr_pipeline.apps.image import DEFAULT_BASE, Engine
from ctr_pipeline.errors import CtrPipelineError

_FOLDER = Path(__file__).parent
_PACKAGE = Path(ctr_pipeline.__file__).parent
_PROBE_SECONDS = 30
# Archives know no earlier time.
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class ImageBuild:
    """What is built.

    Attributes:
        tag: Name of the image.
        base: Image with Python 3.11 or 3.12 on Debian that it starts from.
        pip_config: pip's configuration during the build, such as of an index of one's own; it is
            in no layer. None: that of the base.
        options: Further options for the program that builds.
    """

    tag: str
    base: str = DEFAULT_BASE
    pip_config: Path | None = None
    options: Sequence[str] = ()

    def command(self, engine: str, context: Path) -> list[str]:
        """The command line that builds it from a folder that `write_context` wrote."""
        secret = () if self.pip_config is None else ("--secret", f"id=pip,src={self.pip_config}")
        arguments = ("--tag", self.tag, "--build-arg", f"BASE={self.base}", *secret)
        return [engine, "build", *arguments, *self.options, str(context)]


def dockerfile() -> str:
    """The text of the Dockerfile."""
    return (_FOLDER / "Dockerfile").read_text("utf-8")


def write_context(folder: Path) -> None:
    """Writes all files that the Dockerfile copies, and the Dockerfile.

    Args:
        folder: Is made.

    Raises:
        CtrPipelineError: It exists, or cannot be written.
    """
    try:
        folder.mkdir(parents=True)
        for name in ("Dockerfile", "requirements.txt"):
            shutil.copyfile(_FOLDER / name, folder / name)
        shutil.copytree(_FOLDER / "warmup", folder / "warmup")
        _write_wheel(folder)
    except FileExistsError:
        raise CtrPipelineError(
            "the folder exists", place=str(folder), remedy="Delete it, or name another one"
        ) from None
    except OSError as error:
        raise CtrPipelineError(
            f"the files of the build cannot be written: {error.strerror}",
            place=str(folder),
            remedy="Name a folder that can be written, and see that there is room",
        ) from error


def find_engine() -> Engine | None:
    """The first program that is installed and, as docker needs, has a service that answers."""
    return next((one for one in Engine if _answers(one)), None)


def build_image(build: ImageBuild, engine: str, context: Path) -> None:
    """Builds; what the program says goes to this process's output.

    Raises:
        CtrPipelineError: The program is not there, or failed.
    """
    try:
        code = _run(build.command(engine, context))
    except OSError as error:
        raise CtrPipelineError(
            f"'{engine}' cannot be started: {error.strerror}", remedy=_how_without(build)
        ) from error
    if code != 0:
        raise CtrPipelineError(
            f"'{engine}' could not build the image: it ended with {code}",
            remedy="Its last lines say why",
        )


def push_image(tag: str, engine: str) -> None:
    """Pushes an image that was built to the registry that its name begins with.

    Raises:
        CtrPipelineError: The program failed, as where it is not logged in.
    """
    if (code := _run([engine, "push", tag])) != 0:
        host = tag.partition("/")[0]
        raise CtrPipelineError(
            f"'{engine}' built '{tag}' and could not push it: it ended with {code}",
            remedy=f"Its last lines say why; '{engine} login {host}' gives it an account there, "
            f"and '{engine} push {tag}' tries again",
        )


def require_registry(tag: str) -> None:
    """Raises CtrPipelineError if the name of an image does not begin with a registry."""
    host, slash, _ = tag.partition("/")
    if not slash or not ({".", ":"} & set(host) or host == "localhost"):
        raise CtrPipelineError(
            f"'{tag}' names no registry to push to",
            remedy=f"Give it one, as in --tag registry.example.com/{tag}",
        )


def _run(command: Sequence[str]) -> int:
    return subprocess.run(command, check=False).returncode  # noqa: S603  as the user says


def no_engine(build: ImageBuild) -> CtrPipelineError:
    """The error where no program can build."""
    *others, last = Engine
    return CtrPipelineError(
        f"neither {', '.join(others)} nor {last} works here: none is installed, or its service "
        "does not answer",
        remedy=_how_without(build),
    )


def _how_without(build: ImageBuild) -> str:
    elsewhere = shlex.join(build.command(Engine.DOCKER, Path("FOLDER")))
    return (
        "Install one and call this again; or write the files of the build with 'ctrpipe image "
        f"--context FOLDER', take the folder to a machine that has one, and run '{elsewhere}' there"
    )


def _answers(engine: str) -> bool:
    command = [engine, "version"]
    try:
        done = subprocess.run(  # noqa: S603  our own arguments
            command, capture_output=True, check=False, timeout=_PROBE_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _write_wheel(folder: Path) -> None:
    """This package as a wheel, also where it is installed from a checkout."""
    found = distribution("ctrpipe")
    files = {
        f"{_PACKAGE.name}/{path.relative_to(_PACKAGE).as_posix()}": path.read_bytes()
        for path in sorted(_PACKAGE.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    about = f"ctrpipe-{found.version}.dist-info"
    for name in ("METADATA", "entry_points.txt"):
        files[f"{about}/{name}"] = (found.read_text(name) or "").encode()
    files[f"{about}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: ctrpipe\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    record = [f"{name},sha256={_digest(content)},{len(content)}" for name, content in files.items()]
    files[f"{about}/RECORD"] = "\n".join([*record, f"{about}/RECORD,,", ""]).encode()
    with zipfile.ZipFile(folder / f"ctrpipe-{found.version}-py3-none-any.whl", "w") as wheel:
        for name, content in files.items():
            wheel.writestr(zipfile.ZipInfo(name, _ZIP_TIME), content, zipfile.ZIP_DEFLATED)


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
