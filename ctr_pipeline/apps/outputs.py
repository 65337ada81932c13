"""Where a command may write: over nothing that it reads, and over nothing that a run made."""

import re
from collections.abc import Iterable
from pathlib import Path

from ctr_pipeline.config.resolved import RESOLVED_CONFIG, RUN_LOCK
from ctr_pipeline.dataset.inspection import local_files
from ctr_pipeline.errors import DataError, RunFolderError


def require_output(
    output: Path,
    *,
    overwrite: bool,
    reads: Iterable[str] = (),
    spares: Iterable[str] = (),
    makes_folder: bool = False,
) -> None:
    """Refuses an output before any work is spent on it.

    Args:
        output: The file to write.
        overwrite: Whether a file that stands there may be replaced.
        reads: Data that the command reads: files, globs, tables.
        spares: Data that it does not read and that has to stay, such as what a model was trained
            on; it may be gone.
        makes_folder: Whether the command makes the output's folder where it is absent.

    Raises:
        RunFolderError: It is an address such as s3://bucket/file, or a folder, or its folder does
            not exist; it is one of the files that are read or to stay, or lies in a run folder and
            exists; or it exists and may not be replaced.
    """
    if len(output.parts) > 1 and re.fullmatch(r"[a-z][a-z0-9+.-]+:", output.parts[0]):
        raise RunFolderError(
            "is an address, and outputs are written to this machine",
            place=str(output).replace(":/", "://", 1),
            remedy="Name a local file, and copy it there",
        )
    if output.is_dir() or not (makes_folder or output.parent.is_dir()):
        raise RunFolderError(
            "is a folder" if output.is_dir() else "its folder does not exist",
            place=str(output),
            remedy="Name a file in a folder that exists",
        )
    if not output.exists():
        return
    if any(output.samefile(file) for file in _files_of(reads)):
        raise RunFolderError(
            "is a file that this command reads", place=str(output), remedy="Name another output"
        )
    if any(output.samefile(file) for data in spares for file in _files_there(data)):
        raise RunFolderError(
            "is a file that the model was trained with",
            place=str(output),
            remedy="Name another output",
        )
    run = _run_of(output)
    if run is not None:
        raise RunFolderError(
            f"belongs to the run {run}", place=str(output), remedy="Name another output"
        )
    if not overwrite:
        raise RunFolderError(
            "exists already", place=str(output), remedy="Give --overwrite or name another output"
        )


def _files_of(reads: Iterable[str]) -> Iterable[Path]:
    for data in reads:
        if not (Path(data).expanduser() / RESOLVED_CONFIG).exists():
            yield from local_files(data, "the data")


def _files_there(data: str) -> list[Path]:
    try:
        return list(_files_of([data]))
    except DataError:
        return []


def _run_of(output: Path) -> Path | None:
    """The run folder that the file lies in, if it lies in one."""
    for folder in output.resolve().parents:
        if (folder / RUN_LOCK).exists() and (folder / RESOLVED_CONFIG).exists():
            return folder
    return None
