"""The folder of a job's checkpoints: whether it is there, and what a failure to read it proves.

Where a volume is away, its place is empty or gone. So a file that is absent is lost only if the
folder shows by what else it holds that it is the one; and a file that cannot be read is not damaged
for that.
"""

import json
import os
import re
from pathlib import Path

from ctr_pipeline import durable
from ctr_pipeline.embeddings.log_chain import cut_of
from ctr_pipeline.errors import CheckpointError, StorageError

MARKER = "checkpoints-of.json"
_MANIFEST = re.compile(r"cut-\d{6,}\.json")


def create_folder(folder: Path, job: str) -> None:
    """Makes the folder of a job that begins.

    Raises:
        RunFolderError: It cannot be written.
    """
    with durable.os_errors_explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
    durable.write_text(folder / MARKER, json.dumps({"job": job}))


def is_there(folder: Path) -> bool:
    """Whether the folder is that of a job: it holds the job's mark, or files of checkpoints."""
    try:
        with os.scandir(folder) as entries:
            return any(
                entry.name == MARKER or _MANIFEST.fullmatch(entry.name) or cut_of(entry.name)
                for entry in entries
            )
    except OSError:
        return False


def require_there(folder: Path) -> None:
    """Refuses to use what stands in the place of the folder while its volume is away.

    Raises:
        StorageError: The folder is missing, cannot be listed, or is empty.
    """
    if not is_there(folder):
        raise _away(folder)


def explain_read_error(
    error: OSError, path: Path, *, absent: str = "the file is missing", place: str = ""
) -> CheckpointError | StorageError:
    """What an error of the system proves of a file in the folder.

    Args:
        error: Raised where the file was opened or read.
        absent: The message about a file that is lost.
        place: How it is named; its path if empty.

    Returns:
        A `CheckpointError` where the file is lost; a `StorageError` where it may be whole.
    """
    place = place or str(path)
    if not isinstance(error, FileNotFoundError):
        return StorageError(f"cannot be read ({error.strerror or error})", place=place)
    if is_there(path.parent):
        return CheckpointError(absent, place=place, remedy="Use an earlier checkpoint")
    return _away(path.parent)


def _away(folder: Path) -> StorageError:
    return StorageError(
        "the folder of the checkpoints is not there",
        place=str(folder),
        remedy="Mount its volume",
    )
