"""The files of a run as one stream: packed where the run folder is, unpacked elsewhere.

    python -m ctr_pipeline.apps.cluster.artefacts FOLDER [--checkpoints]

writes the stream to stdout. It is a tar archive of plain files and folders. Who unpacks it trusts
nothing in it: a name that leads out of the target, a link or a device ends it with an error.
"""

import io
import os
import stat
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from ctr_pipeline.errors import CtrPipelineError

NO_FOLDER = 66
"""Exit code where there is no run folder."""

_LEFT_OUT = frozenset({"cache", "job", "members"})
"""Folders that another machine has no use for, or that hold the secrets of a job."""
_CHECKPOINTS = "checkpoints"
_END = ".end-of-run-folder"
"""The last entry: `tarfile` takes a stream that breaks off between two files for a whole one."""
_BLOCK_BYTES = 1 << 20


class DamagedStreamError(CtrPipelineError):
    """The stream is no archive, or ends early."""


@dataclass(frozen=True)
class Unpacked:
    """What was written."""

    num_files: int
    num_bytes: int


def pack(folder: Path, stream: IO[bytes], *, checkpoints: bool = False) -> None:
    """Writes the files of a run folder; one that goes away meanwhile is left out.

    Args:
        checkpoints: Whether checkpoints are among them.
    """
    left_out = _LEFT_OUT if checkpoints else _LEFT_OUT | {_CHECKPOINTS}
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for path in _files(folder, left_out):
            try:
                content = path.open("rb")
            except FileNotFoundError:
                continue
            with content:
                # Files are replaced as a whole, and a log only grows: the size now stays true.
                entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
                found = os.fstat(content.fileno())
                entry.size, entry.mtime = found.st_size, int(found.st_mtime)
                archive.addfile(entry, content)
        archive.addfile(tarfile.TarInfo(_END))


def _files(folder: Path, left_out: frozenset[str]) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in left_out)
        for name in sorted(names):
            path = Path(root, name)
            try:
                is_file = stat.S_ISREG(path.lstat().st_mode)
            except FileNotFoundError:
                continue
            if is_file:
                yield path


def unpack(
    blocks: Iterable[bytes], target: Path, *, on_bytes: Callable[[int], None] = lambda _: None
) -> Unpacked:
    """Writes what `pack` made into a folder; each file appears whole or not at all.

    Args:
        blocks: The stream in pieces of any size.
        on_bytes: Told of bytes that were written.

    Raises:
        DamagedStreamError: The stream is no such archive, or ends early.
        CtrPipelineError: It would write elsewhere.
    """
    target.mkdir(parents=True, exist_ok=True, mode=0o700)
    num_files = num_bytes = 0
    try:
        with tarfile.open(fileobj=io.BufferedReader(_Stream(blocks)), mode="r|") as archive:
            for entry in archive:
                if entry.name == _END:
                    return Unpacked(num_files, num_bytes)
                path = _place(target, entry)
                content = archive.extractfile(entry)
                if content is None:
                    raise _refusal(entry.name)
                path.parent.mkdir(parents=True, exist_ok=True)
                _write(path, content, on_bytes)
                num_files, num_bytes = num_files + 1, num_bytes + entry.size
    except tarfile.TarError as error:
        raise DamagedStreamError(f"the files of the run came damaged: {error}") from error
    raise DamagedStreamError("the files of the run came damaged: the last ones are missing")


def _place(target: Path, entry: tarfile.TarInfo) -> Path:
    name = PurePosixPath(entry.name)
    if not entry.isreg() or name.is_absolute() or ".." in name.parts or not name.parts:
        raise _refusal(entry.name)
    path = target.joinpath(*name.parts)
    # A link in the target may lead out of it as well.
    if not path.parent.resolve().is_relative_to(target.resolve()):
        raise _refusal(entry.name)
    return path


def _refusal(name: str) -> CtrPipelineError:
    return CtrPipelineError(
        f"the pod sent '{name}', which is no file of a run folder",
        remedy="Do not trust the image of this job: nothing more was written",
    )


def _write(path: Path, content: IO[bytes], on_bytes: Callable[[int], None]) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".fetch-", delete=False) as file:
        try:
            while block := content.read(_BLOCK_BYTES):
                file.write(block)
                on_bytes(len(block))
            file.flush()
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


class _Stream(io.RawIOBase):
    """Blocks as a file that is read once."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks = iter(blocks)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "bytearray | memoryview") -> int:  # type: ignore[override]
        while not self._rest:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._rest = memoryview(block)
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def main(arguments: list[str]) -> int:
    """Packs to stdout."""
    folder, *options = arguments
    pack(Path(folder), sys.stdout.buffer, checkpoints="--checkpoints" in options)
    sys.stdout.buffer.flush()
    return 0 if Path(folder).is_dir() else NO_FOLDER


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
