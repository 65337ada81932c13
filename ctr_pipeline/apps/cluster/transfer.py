"""Files that travel between this machine and a folder that a pod sees, either way.

    python -m ctr_pipeline.apps.cluster.transfer list|pack|missing|unpack FOLDER

runs in the pod: `list` and `pack` for what is fetched, `missing` and `unpack` for what is uploaded.
It takes a line of JSON or the archive from stdin, and writes the other to stdout. The archive is a
tar of plain files. Who unpacks it trusts nothing in it: a name that leads out of the target, a link
or a device ends it with an error.

What came of a file that broke off stays beside its place, and the next transfer sends the rest.
"""

import io
import json
import os
import stat
import sys
import tarfile
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import astuple, dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Protocol, cast

from ctr_pipeline.errors import CtrPipelineError

if TYPE_CHECKING:
    # A pod that only takes or gives files loads no client of Kubernetes.
    from ctr_pipeline.distributed.launchers.kubernetes.api import KubernetesApi, RunningCommand

NO_FOLDER = 66
"""Exit code where there is no such folder."""

OF_THE_CLUSTER = frozenset({"cache", "job", "members"})
"""Folders of a run that another machine has no use for, or that hold the secrets of a job."""
CHECKPOINTS = "checkpoints"
_END = ".end-of-files"
"""The last entry: `tarfile` takes a stream that breaks off between two files for a whole one."""
_OFFSET, _MODIFIED = "CTRPIPE.offset", "CTRPIPE.modified"
_BLOCK_BYTES = 1 << 16
"""Bytes that are sent, and kept, at a time."""
_PART = ".part"


class DamagedStreamError(CtrPipelineError):
    """The stream is no archive, or ends early."""


@dataclass(frozen=True)
class FoundFile:
    """One state of a file.

    Attributes:
        name: Its path in the folder.
        modified: When, Unix time in microseconds, which all file systems keep.
    """

    name: str
    num_bytes: int
    modified: int

    @classmethod
    def of(cls, name: str, found: os.stat_result) -> "FoundFile":
        """The file of which the file system says this."""
        return cls(name, found.st_size, found.st_mtime_ns // 1000)

    @property
    def part_name(self) -> str:
        """The name of what has come of it so far, beside its place."""
        return f".{PurePosixPath(self.name).name}.{self.num_bytes}-{self.modified}{_PART}"


@dataclass(frozen=True)
class Piece:
    """What is to be sent of a file: all bytes from an offset on."""

    file: FoundFile
    offset: int

    @property
    def num_bytes(self) -> int:
        """How many those are."""
        return self.file.num_bytes - self.offset


def list_folder(folder: Path, *, left_out: Collection[str] = ()) -> list[FoundFile]:
    """Plain files of a folder at any depth, in order; one that goes away meanwhile is left out.

    Args:
        left_out: Names of folders at any depth.
    """
    files = []
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in left_out)
        for name in sorted(names):
            path = Path(root, name)
            try:
                found = path.lstat()
            except FileNotFoundError:
                continue
            if stat.S_ISREG(found.st_mode) and not name.endswith(_PART):
                files.append(FoundFile.of(path.relative_to(folder).as_posix(), found))
    return files


def find_missing(target: Path, files: Iterable[FoundFile]) -> list[Piece]:
    """What a folder lacks of files: those that are not there in the same state."""
    pieces = []
    for file in files:
        path = target / file.name
        if path.is_file() and FoundFile.of(file.name, path.stat()) == file:
            continue
        part = path.with_name(file.part_name)
        offset = part.stat().st_size if part.is_file() else 0
        pieces.append(Piece(file, min(offset, file.num_bytes)))
    return pieces


class Sink(Protocol):
    """Takes bytes."""

    def write(self, data: bytes, /) -> object:
        """Takes the next ones."""


def pack(
    folder: Path,
    pieces: Iterable[Piece],
    stream: Sink,
    *,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> None:
    """Writes pieces of a folder's files; a file that has gone away is left out.

    One that has changed since it was listed is sent from its beginning.

    Args:
        on_bytes: Told of bytes that were read.
    """
    with tarfile.open(
        fileobj=cast("IO[bytes]", stream),
        mode="w|",
        bufsize=_BLOCK_BYTES,
        format=tarfile.PAX_FORMAT,
    ) as archive:
        for piece in pieces:
            try:
                content = (folder / piece.file.name).open("rb")
            except FileNotFoundError:
                continue
            with content:
                # Files are replaced as a whole, and a log only grows: the size now stays true.
                now = FoundFile.of(piece.file.name, os.fstat(content.fileno()))
                offset = piece.offset if now == piece.file else 0
                content.seek(offset)
                entry = tarfile.TarInfo(now.name)
                entry.size = now.num_bytes - offset
                entry.pax_headers = {_OFFSET: str(offset), _MODIFIED: str(now.modified)}
                archive.addfile(entry, cast("IO[bytes]", _Counted(content, on_bytes)))
        archive.addfile(tarfile.TarInfo(_END))


def unpack(
    blocks: Iterable[bytes], target: Path, *, on_bytes: Callable[[int], None] = lambda _: None
) -> None:
    """Writes what `pack` made into a folder; each file appears whole or not at all.

    Args:
        blocks: The stream in pieces of any size.
        on_bytes: Told of bytes that were written.

    Raises:
        DamagedStreamError: The stream is no such archive, or ends early.
        CtrPipelineError: It would write elsewhere.
    """
    target.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        with tarfile.open(fileobj=io.BufferedReader(_Stream(blocks)), mode="r|") as archive:
            for entry in archive:
                if entry.name == _END:
                    return
                path = _place(target, entry)
                content = archive.extractfile(entry)
                if content is None:
                    raise _refusal(entry.name)
                path.parent.mkdir(parents=True, exist_ok=True)
                _write(path, entry, content, on_bytes)
    except tarfile.TarError as error:
        raise DamagedStreamError(f"the files came damaged: {error}") from error
    raise DamagedStreamError("the files came damaged: the last ones are missing")


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
        f"the pod sent '{name}', which is no file of the folder",
        remedy="Do not trust the image of this job: nothing more was written",
    )


def _write(
    path: Path, entry: tarfile.TarInfo, content: IO[bytes], on_bytes: Callable[[int], None]
) -> None:
    try:
        offset, modified = (int(entry.pax_headers[key]) for key in (_OFFSET, _MODIFIED))
    except (KeyError, ValueError) as error:
        raise DamagedStreamError(f"the files came damaged: {entry.name} lacks facts") from error
    part = path.with_name(FoundFile(entry.name, offset + entry.size, modified).part_name)
    # A link there would lead elsewhere.
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | (0 if offset else os.O_TRUNC)
    with os.fdopen(os.open(part, flags, 0o600), "wb") as file:
        if file.seek(0, os.SEEK_END) != offset:
            raise DamagedStreamError(f"the files came damaged: the middle of {entry.name} lacks")
        while block := content.read(_BLOCK_BYTES):
            file.write(block)
            on_bytes(len(block))
    os.utime(part, ns=(modified * 1000, modified * 1000))
    part.replace(path)
    for other in path.parent.iterdir():
        # Of earlier states of the file.
        if other.name.startswith(f".{path.name}.") and other.name.endswith(_PART):
            other.unlink()


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


class _Counted:
    """A file that tells of what is read of it."""

    def __init__(self, file: IO[bytes], on_bytes: Callable[[int], None]) -> None:
        self._file, self._on_bytes = file, on_bytes

    def read(self, size: int) -> bytes:
        block = self._file.read(size)
        self._on_bytes(len(block))
        return block


class PodFolder:
    """A folder that a pod sees.

    Args:
        folder: Its path there.
    """

    def __init__(self, api: "KubernetesApi", pod: str, folder: str) -> None:
        self._api, self._pod, self._folder = api, pod, folder

    def list_files(self) -> list[FoundFile] | None:
        """The files of a run folder; None: there is no such folder."""
        with self._run("list") as running:
            text = b"".join(running)
        if running.exit_code == NO_FOLDER:
            return None
        self._require_success(running)
        return [FoundFile(*one) for one in json.loads(text)]

    def fetch(
        self, pieces: Sequence[Piece], target: Path, *, on_bytes: Callable[[int], None]
    ) -> None:
        """Copies pieces of its files to a folder of this machine, as `unpack` does."""
        with self._run("pack") as running:
            running.write(_line(pieces))
            damage: DamagedStreamError | None = None
            try:
                unpack(running, target, on_bytes=on_bytes)
            except DamagedStreamError as error:
                damage = error
            for _ in running:
                pass
        self._require_success(running)
        if damage is not None:
            raise damage

    def find_missing(self, files: Sequence[FoundFile]) -> list[Piece]:
        """What it lacks of files."""
        with self._run("missing") as running:
            running.write(_line([Piece(file, 0) for file in files]))
            text = b"".join(running)
        self._require_success(running)
        return _pieces(text)

    def upload(
        self, source: Path, pieces: Sequence[Piece], *, on_bytes: Callable[[int], None]
    ) -> None:
        """Copies pieces of files of a folder of this machine to it."""
        with self._run("unpack") as running:
            # It may end before, and says why below; if the connection has ended, that says so.
            with suppress(CtrPipelineError):
                pack(source, pieces, running, on_bytes=on_bytes)
            for _ in running:
                pass
        self._require_success(running)

    def _run(self, action: str) -> "AbstractContextManager[RunningCommand]":
        command = ["python", "-m", __name__, action, self._folder]
        return self._api.run(self._pod, command, has_input=action != "list")

    def _require_success(self, running: "RunningCommand") -> None:
        if running.exit_code != 0:
            lines = running.errors.strip().splitlines() or ["no message"]
            raise CtrPipelineError(f"'{self._folder}' of the claim: {lines[-1]}")


def _line(pieces: Iterable[Piece]) -> bytes:
    return json.dumps([[*astuple(one.file), one.offset] for one in pieces]).encode() + b"\n"


def _pieces(line: bytes) -> list[Piece]:
    return [Piece(FoundFile(*file), offset) for *file, offset in json.loads(line)]


def main(arguments: Sequence[str]) -> int:
    """What a pod does of a transfer."""
    action, folder = arguments
    root, out = Path(folder), sys.stdout.buffer
    if action == "list" and not root.is_dir():
        return NO_FOLDER
    # Blocks as they come, not only whole ones.
    given = cast("io.BufferedReader", sys.stdin.buffer)
    if action == "list":
        files = list_folder(root, left_out=OF_THE_CLUSTER)
        out.write(json.dumps([astuple(file) for file in files]).encode())
    elif action == "pack":
        pack(root, _pieces(given.readline()), out)
    elif action == "missing":
        out.write(_line(find_missing(root, [one.file for one in _pieces(given.readline())])))
    else:
        unpack(iter(lambda: given.read1(_BLOCK_BYTES), b""), root)
    out.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
