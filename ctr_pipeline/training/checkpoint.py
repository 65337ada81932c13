"""Checkpoints that are either whole or absent; a damaged one is detected.

A checkpoint is a folder of files and a `manifest.json` with their sizes and CRC-32 and with a
CRC-32 of its own. It is written under a temporary name, flushed to disk and renamed. Training
resumes from the newest whole one.
"""

import json
import os
import shutil
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctr_pipeline import durable
from ctr_pipeline.errors import CheckpointError, CtrPipelineError

FORMAT_VERSION = 1
_PREFIX = "step-"


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint on disk.

    Attributes:
        folder: Folder of its files.
        step: Steps done when it was taken.
        state: State of the trainer, as JSON.
    """

    folder: Path
    step: int
    state: dict[str, Any]


class CheckpointFolder:
    """All checkpoints of a run.

    Args:
        folder: Parent folder of the checkpoints; created when the first one is saved.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, step: int, state: dict[str, Any], write: Callable[[Path], None]) -> Checkpoint:
        """Writes a checkpoint and replaces an earlier one of the same step.

        Args:
            step: Steps done.
            state: JSON-serialisable state, kept in the manifest.
            write: Writes all other files into the folder that it is given.

        Raises:
            RunFolderError: The disk is full or read-only; earlier checkpoints are untouched.
        """
        final = self.folder / f"{_PREFIX}{step:012d}"
        temporary = self.folder / f".{final.name}.tmp"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            write(temporary)
            files = {}
            for file in sorted(temporary.iterdir()):
                _sync_file(file)
                files[file.name] = {"bytes": file.stat().st_size, "crc32": durable.crc32_of(file)}
            manifest = {"version": FORMAT_VERSION, "step": step, "files": files, "state": state}
            manifest["crc32"] = _crc32_of_manifest(manifest)
            durable.write_text(temporary / "manifest.json", json.dumps(manifest, indent=1) + "\n")
            if final.exists():
                shutil.rmtree(final)
            temporary.rename(final)
            durable.sync_folder(self.folder)
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise durable.explain_os_error(error, final) from error
        except CtrPipelineError:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        return Checkpoint(final, step, state)

    def steps(self) -> list[int]:
        """Returns the steps of all checkpoints, damaged ones included, in ascending order."""
        return sorted(int(path.name.removeprefix(_PREFIX)) for path in self.folder.glob("step-*"))

    def load(self, step: int) -> Checkpoint:
        """Reads and verifies one checkpoint.

        Raises:
            CheckpointError: It is absent, damaged or in another format.
        """
        folder = self.folder / f"{_PREFIX}{step:012d}"
        try:
            manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
            version, files, state = manifest["version"], manifest["files"], manifest["state"]
            damaged = manifest.get("crc32") != _crc32_of_manifest(manifest)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError("has no readable manifest", place=str(folder)) from error
        if version != FORMAT_VERSION:
            raise CheckpointError(
                f"has format {version}, this program reads {FORMAT_VERSION}", place=str(folder)
            )
        if damaged:
            raise CheckpointError("its manifest is damaged (CRC differs)", place=str(folder))
        for name, expected in files.items():
            file = folder / name
            if not file.is_file() or file.stat().st_size != expected["bytes"]:
                raise CheckpointError(f"'{name}' is missing or cut short", place=str(folder))
            if durable.crc32_of(file) != expected["crc32"]:
                raise CheckpointError(f"'{name}' is damaged (CRC differs)", place=str(folder))
        return Checkpoint(folder, step, state)

    def load_newest(self, log: Callable[[str], None]) -> Checkpoint | None:
        """Loads the newest whole checkpoint and warns of damaged ones that it skips.

        Returns:
            The checkpoint; None if there is none at all.

        Raises:
            CheckpointError: There are checkpoints, and all of them are damaged.
        """
        newest: CheckpointError | None = None
        for step in reversed(self.steps()):
            try:
                return self.load(step)
            except CheckpointError as error:
                log(f"Skipping a checkpoint: {error}")
                newest = newest or error
        if newest is not None:
            raise CheckpointError(
                f"all checkpoints are damaged, the newest: {newest.message}",
                place=newest.place,
                remedy="Run 'ctrpipe train' without --resume to train from the start",
            )
        return None

    def discard_after(self, step: int) -> None:
        """Deletes the checkpoints of later steps; a damaged one must not stay the newest."""
        for later in self.steps():
            if later > step:
                shutil.rmtree(self.folder / f"{_PREFIX}{later:012d}", ignore_errors=True)

    def retain(self, keep: int, pinned: int | None) -> None:
        """Deletes all but the newest `keep` and the pinned one."""
        kept = {*self.steps()[-keep:], pinned}
        for step in self.steps():
            if step not in kept:
                shutil.rmtree(self.folder / f"{_PREFIX}{step:012d}", ignore_errors=True)

    def clear(self) -> None:
        """Deletes all checkpoints."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _crc32_of_manifest(manifest: dict[str, Any]) -> int:
    """Returns the CRC-32 of everything in the manifest but the CRC-32 itself."""
    rest = {name: value for name, value in manifest.items() if name != "crc32"}
    return zlib.crc32(json.dumps(rest, sort_keys=True).encode("utf-8"))


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
