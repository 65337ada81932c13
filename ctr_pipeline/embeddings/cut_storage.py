"""Where a job's checkpoints lie: whether it is there, and what a failure to read it proves.

Where a volume is away, its place is empty or gone. So a file that is absent is lost only if the
place shows by what else it holds that it is the one; and a file that cannot be read is not damaged
for that.
"""

import json
import shutil
import zlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO

from ctr_pipeline.errors import CheckpointError, StorageError
from ctr_pipeline.storage.commit_log import CommitReader, CommitWriter
from ctr_pipeline.storage.commits import commit_id_of, commit_id_of_part
from ctr_pipeline.storage.opening import open_storage
from ctr_pipeline.storage.protocol import (
    ObjectChangedError,
    ObjectExistsError,
    ObjectMissingError,
    ObjectTruncatedError,
    Storage,
)

MARKER = "checkpoints-of.json"
_BLOCK_BYTES = 1 << 20


class CutStorage:
    """Files of the cuts of one job.

    Args:
        storage: Holds nothing else.
        prefix: Begins the keys of files that are written.
    """

    def __init__(self, storage: Storage, prefix: str = "") -> None:
        self._storage = storage
        self._prefix = prefix

    @classmethod
    def at(cls, address: str | Path) -> "CutStorage":
        """Opens what an address names; see `open_storage`."""
        return cls(open_storage(str(address)))

    def writing(self, prefix: str) -> "CutStorage":
        """The same for one attempt at a cut, whose files have keys of their own."""
        return CutStorage(self._storage, prefix)

    def key_of(self, name: str) -> str:
        """Where a file that is written lies."""
        return self._prefix + name

    @property
    def address(self) -> str:
        """As errors name it."""
        return self._storage.address

    def begin(self, job: str) -> None:
        """Leaves the mark of a job that begins.

        Raises:
            RunFolderError, StorageError: It cannot be written, or another job has begun here.
        """
        mark = json.dumps({"job": job}).encode()
        try:
            self._storage.put_if_absent(MARKER, mark)
        except ObjectExistsError as error:
            if self._storage.read(MARKER) == mark:
                return
            raise StorageError(
                "another job keeps its checkpoints here",
                place=self.address,
                remedy="Give each run its own 'output' and 'runtime.checkpoints'",
            ) from error

    def job(self) -> str | None:
        """The job whose mark is here; None: no job has begun.

        Raises:
            CheckpointError: The mark is damaged.
        """
        try:
            return str(json.loads(self._storage.read(MARKER))["job"])
        except ObjectMissingError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                "does not say which job it is of", place=self.place_of(MARKER)
            ) from error

    def is_there(self) -> bool:
        """Whether the storage is that of a job: it holds the job's mark, or files of cuts."""
        try:
            names = self.names()
        except StorageError:
            return False
        return any(
            name == MARKER or commit_id_of(name) is not None or commit_id_of_part(name) is not None
            for name in names
        )

    def require_there(self) -> None:
        """Refuses to use what stands in its place while its volume is away.

        Raises:
            StorageError: It is missing, cannot be listed, or is empty.
        """
        if not self.is_there():
            raise self._away()

    def commits(self) -> CommitReader:
        """What has been committed."""
        return CommitReader(self._storage)

    def take_over(self) -> CommitWriter:
        """Becomes the one process that commits; raises as `CommitWriter` does."""
        return CommitWriter(self._storage)

    def names(self) -> list[str]:
        """Names of all files, in order.

        Raises:
            StorageError: They cannot be listed at this moment.
        """
        return [one.key for one in self._storage.list("")]

    def num_bytes(self, name: str, *, absent: str = "the file is missing", place: str = "") -> int:
        """The size of a file; raises as `reading` does."""
        with self.explained(name, absent, place):
            return self._storage.stat(name).num_bytes

    @contextmanager
    def reading(
        self, name: str, *, absent: str = "the file is missing", place: str = ""
    ) -> Iterator[IO[bytes]]:
        """Opens a file to be read; `Storage.open` says how.

        Args:
            absent: The message about a file that is lost.
            place: How it is named; its whole address if empty.

        Raises:
            CheckpointError: The file is lost.
            StorageError: It cannot be read at this moment, and may be whole.
        """
        with self.explained(name, absent, place), self._storage.open(name) as file:
            yield file

    def crc32_of(self, name: str, *, absent: str = "the file is missing", place: str = "") -> int:
        """CRC-32 of a file's bytes; raises as `reading` does."""
        crc32 = 0
        with self.reading(name, absent=absent, place=place) as file:
            while block := file.read(_BLOCK_BYTES):
                crc32 = zlib.crc32(block, crc32)
        return crc32

    def fetch(self, name: str, target: Path) -> None:
        """Copies a file to this disk; raises as `reading` does."""
        with self.reading(name) as file, target.open("wb") as copy:
            shutil.copyfileobj(file, copy, _BLOCK_BYTES)

    def creating(self, name: str) -> AbstractContextManager[IO[bytes]]:
        """See `Storage.create`."""
        return self._storage.create(name)

    def write(self, name: str, data: bytes) -> None:
        """See `Storage.write`."""
        self._storage.write(name, data)

    def delete(self, names: Iterable[str]) -> None:
        """See `Storage.delete`."""
        self._storage.delete(names)

    def place_of(self, name: str) -> str:
        """A file as errors name it."""
        return f"{self.address}/{name}"

    @contextmanager
    def explained(
        self, name: str = "", absent: str = "the file is missing", place: str = ""
    ) -> Iterator[None]:
        """Tells what is lost from what cannot be read at this moment; raises as `reading` does."""
        place = place or (self.place_of(name) if name else self.address)
        try:
            yield
        except ObjectMissingError as error:
            if not self.is_there():
                raise self._away() from error
            remedy = "Use an earlier checkpoint"
            raise CheckpointError(absent, place=place, remedy=remedy) from error
        except (ObjectChangedError, ObjectTruncatedError) as error:
            remedy = "Use an earlier checkpoint"
            raise CheckpointError(error.message, place=place, remedy=remedy) from error
        except OSError as error:
            reason = error.strerror or error
            raise StorageError(f"cannot be read ({reason})", place=place) from error

    def _away(self) -> StorageError:
        return StorageError(
            "the folder of the checkpoints is not there",
            place=self.address,
            remedy="Mount its volume",
        )
