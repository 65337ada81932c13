"""A folder on this disk whose files are committed to a storage, and fetched from it elsewhere."""

import json
import os
import re
import secrets
import threading
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ctr_pipeline import durable
from ctr_pipeline.errors import CheckpointError
from ctr_pipeline.storage.commit_log import CommitReader, CommitWriter, damage_explained
from ctr_pipeline.storage.commits import Manifest, Part
from ctr_pipeline.storage.protocol import Storage

INDEX = ".stored.json"
"""File in the folder: where it is kept, and which part each file is."""
FILES = "files"
_FOLDERS = "folders"
_BLOCK_BYTES = 1 << 20
_RETAIN_SECONDS = 60.0


@dataclass
class _Kept:
    """A file of a commit; `local` changes whenever the file on this disk does."""

    part: Part
    local: tuple[int, int, int]


@dataclass
class _Index:
    """What this disk has of the storage.

    Attributes:
        writer: The process of this machine that commits from the folder, or was the last to do so;
            empty where the folder was fetched since.
        files: By their names in the folder.
    """

    address: str
    writer: str = ""
    files: dict[str, _Kept] = field(default_factory=dict)


def stored_address(folder: Path) -> str | None:
    """Where a folder of this disk is kept; None: nowhere but here."""
    index = _load_index(folder)
    return None if index is None else index.address


class FolderCommits:
    """The files of a folder as commits, each of which holds all of them.

    Hidden files stay on this disk alone.

    Args:
        storage: As of a `CommitReader`.
        folder: On this disk.
        left_out: Whether a file, by its name in the folder, is never kept.
        survives: Whether such a file stays where another process has written the storage since.
    """

    def __init__(
        self,
        storage: Storage,
        folder: Path,
        *,
        left_out: Callable[[str], bool],
        survives: Callable[[str], bool],
    ) -> None:
        self._storage = storage
        self._folder = folder
        self._left_out = left_out
        self._survives = survives
        self._reader = CommitReader(storage)
        self._writer: CommitWriter | None = None
        self._lock = threading.Lock()
        self._retained_at = time.monotonic()
        self._index = _load_index(folder) or _Index(storage.address)

    @property
    def generation(self) -> int:
        """Generation of the commits that this process makes; 0 before `begin`."""
        return 0 if self._writer is None else self._writer.generation

    def newest(self) -> Manifest | None:
        """The newest commit; None where there is none.

        Raises:
            CheckpointError: Its manifest is damaged.
        """
        return self._reader.newest()

    def has_written(self, manifest: Manifest) -> bool:
        """Whether a commit was made from this folder, and none was fetched into it since."""
        return manifest.writer == self._index.writer

    def copy(self, names: Collection[str]) -> None:
        """Copies some files of the newest commit into the folder; those that it lacks are left out.

        Raises:
            CheckpointError: There is no commit of a folder, or a file is missing or damaged.
        """
        newest = self.newest()
        files = {} if newest is None else _files_of(newest, self._storage.address)
        for name in files.keys() & set(names):
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            self._copy(files[name], path)

    def fetch(self) -> Manifest | None:
        """Makes the folder that of the newest commit; returns it, None where there is none.

        Files that this disk has are not read again. Where the newest commit was made from this
        folder, nothing is done: what the process did since stays.

        Raises:
            CheckpointError: A file is missing or damaged in the storage.
        """
        try:
            return self._fetch()
        except CheckpointError as error:
            raise CheckpointError(
                error.message,
                place=error.place,
                remedy="Restore the object, or start the run anew in another 'output'",
            ) from error

    def _fetch(self) -> Manifest | None:
        while True:
            manifest = self.newest()
            if manifest is None or self.has_written(manifest):
                return manifest
            try:
                self._mirror(manifest)
            except CheckpointError:
                newer = self.newest()
                # Whoever writes it may have deleted what it has replaced since.
                if newer is None or newer.commit_id == manifest.commit_id:
                    raise
            else:
                return manifest

    def begin(self) -> None:
        """Makes this process the one that commits, from the newest commit on.

        Raises:
            FencedError: Another process does so at the same time.
            CheckpointError: As of `fetch`.
        """
        with durable.os_errors_explained(self._folder):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._reader = self._writer = CommitWriter(self._storage)
        self.fetch()
        self._index.writer = self._writer.writer

    def commit(
        self, state: Mapping[str, Any], *, holds_back: Callable[[str], bool] = lambda _: False
    ) -> None:
        """Commits the files as they are now.

        Args:
            state: As JSON.
            holds_back: Whether a file that has changed is left as the last commit has it.

        Raises:
            FencedError: Another process has taken over; nothing was committed.
            StorageAwayError: It may have been committed or not; call it again.
        """
        writer = self._committing()
        with self._lock:
            found = dict(self._find_files())
            attempt = secrets.token_hex(8)
            for name, local in found.items():
                kept = self._index.files.get(name)
                if kept is None or (kept.local != local and not holds_back(name)):
                    self._put(name, local, attempt)
            self._index.files = {
                name: kept for name, kept in self._index.files.items() if name in found
            }
            parts = {name: kept.part for name, kept in self._index.files.items()}
            files = {name: part.key for name, part in parts.items()}
            folders = self._find_empty_folders(files)
            writer.commit(parts.values(), {**state, FILES: files, _FOLDERS: folders})
            self._save_index()
            if time.monotonic() - self._retained_at >= _RETAIN_SECONDS:
                self.retain()

    def retain(self) -> None:
        """Deletes what earlier commits alone need, and no pin."""
        self._committing().retain(())
        self._retained_at = time.monotonic()

    def _committing(self) -> CommitWriter:
        if self._writer is None:
            raise RuntimeError("begin comes before commits")
        return self._writer

    def _put(self, name: str, local: tuple[int, int, int], attempt: str) -> None:
        writer = self._committing()
        try:
            file = (self._folder / name).open("rb")
        except FileNotFoundError:
            self._index.files.pop(name, None)
            return
        with file, writer.create_part(_as_key(name), attempt) as part:
            while block := file.read(_BLOCK_BYTES):
                part.write(block)
        self._index.files[name] = _Kept(part.part, local)

    def _mirror(self, manifest: Manifest) -> None:
        with durable.os_errors_explained(self._folder):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        wanted = _files_of(manifest, self._storage.address)
        # From here on it is not what the process wrote that committed from it.
        self._index.writer = ""
        self._save_index()
        for name in self._find_all():
            kept = self._index.files.get(name)
            is_same = (
                name in wanted
                and kept is not None
                and kept.part == wanted[name]
                and kept.local == _local(self._folder / name)
            )
            if not is_same and not self._survives(name):
                (self._folder / name).unlink(missing_ok=True)
        for name, part in wanted.items():
            path = self._folder / name
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                self._copy(part, path)
                self._index.files[name] = _Kept(part, _local(path))
        for name in manifest.state.get(_FOLDERS, ()):
            (self._folder / _checked(name, self._storage.address)).mkdir(
                parents=True, exist_ok=True
            )
        self._save_index()

    def _copy(self, part: Part, path: Path) -> None:
        num_bytes = crc32 = 0
        with (
            damage_explained(),
            self._reader.open_part(part) as source,
            durable.durable_write(path) as target,
        ):
            while block := source.read(_BLOCK_BYTES):
                num_bytes += len(block)
                crc32 = zlib.crc32(block, crc32)
                target.write(block)
            if (num_bytes, crc32) != (part.num_bytes, part.crc32):
                raise CheckpointError(
                    f"is not what a run wrote: {num_bytes:,} bytes, CRC {crc32:08x}, instead of "
                    f"{part.num_bytes:,} bytes, CRC {part.crc32:08x}",
                    place=f"{self._storage.address}/{part.key}",
                )

    def _find_all(self) -> Iterator[str]:
        for parent, folders, names in os.walk(self._folder):
            folders[:] = [one for one in folders if not one.startswith(".")]
            inside = Path(parent).relative_to(self._folder)
            yield from ((inside / one).as_posix() for one in names if not one.startswith("."))

    def _find_files(self) -> Iterator[tuple[str, tuple[int, int, int]]]:
        for name in sorted(self._find_all()):
            path = self._folder / name
            if not self._left_out(name) and not path.is_symlink():
                try:
                    yield name, _local(path)
                except FileNotFoundError:
                    continue  # deleted meanwhile

    def _find_empty_folders(self, files: Mapping[str, str]) -> list[str]:
        """Folders that no kept file lies in: that they are there says something, too."""
        above = {parent.as_posix() for name in files for parent in Path(name).parents}
        found = []
        for parent, folders, _ in os.walk(self._folder):
            folders[:] = [one for one in folders if not one.startswith(".")]
            inside = [(Path(parent) / one).relative_to(self._folder).as_posix() for one in folders]
            found += [one for one in inside if one not in above and not self._left_out(one)]
        return sorted(found)

    def _save_index(self) -> None:
        content = asdict(self._index)
        durable.write_text(self._folder / INDEX, json.dumps(content) + "\n")


def _load_index(folder: Path) -> _Index | None:
    try:
        found = json.loads((folder / INDEX).read_text("utf-8"))
        files = {
            name: _Kept(Part(**kept["part"]), tuple(kept["local"]))
            for name, kept in found["files"].items()
        }
        return _Index(found["address"], found["writer"], files)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _local(path: Path) -> tuple[int, int, int]:
    state = path.stat()
    return state.st_size, state.st_mtime_ns, state.st_ino


def _files_of(manifest: Manifest, address: str) -> dict[str, Part]:
    by_key = {part.key: part for part in manifest.parts}
    try:
        files: Mapping[str, str] = manifest.state[FILES]
        return {_checked(name, address): by_key[key] for name, key in files.items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            "holds commits of something else than a run folder", place=address
        ) from error


def _checked(name: str, address: str) -> str:
    """The name of a file, which does not lead out of the folder."""
    path = Path(name)
    if path.is_absolute() or any(part.startswith(".") for part in path.parts):
        raise CheckpointError(f"names a file '{name}' outside of the run", place=address)
    return name


def _as_key(name: str) -> str:
    """The name within a key; one with other characters than keys have ends with its checksum."""
    clean = re.sub(r"[^\w.=/-]", "_", name, flags=re.ASCII)
    return clean if clean == name else f"{clean}-{zlib.crc32(name.encode()):08x}"
