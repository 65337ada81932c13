"""The file that keeps how far records are read, for a rendezvous that is started again."""

import sqlite3
from pathlib import Path

from ctr_pipeline.distributed.coordination.record_positions import RecordPosition
from ctr_pipeline.errors import RunFolderError

_TABLE = """
CREATE TABLE IF NOT EXISTS records (
    name TEXT PRIMARY KEY, content TEXT NOT NULL, world INTEGER NOT NULL, position INTEGER NOT NULL,
    has_begun INTEGER NOT NULL
)
"""


class RecordLedger:
    """Positions in a file, which outlive the process that writes them.

    A power cut may take those of the last seconds.

    Args:
        path: Made if there is none; None: kept in memory.

    Raises:
        RunFolderError: The file cannot be written, or is no ledger.
    """

    def __init__(self, path: Path | None) -> None:
        self._place = str(path)
        try:
            # Its user calls it under a lock, from many threads.
            self._database = sqlite3.connect(
                ":memory:" if path is None else path, check_same_thread=False, isolation_level=None
            )
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = NORMAL")
            self._database.execute(_TABLE)
            self.load()
        except sqlite3.Error as error:
            raise self._explain(error) from error

    def load(self) -> dict[str, RecordPosition]:
        """All positions, by name."""
        rows = self._database.execute(
            "SELECT name, content, world, position, has_begun FROM records"
        )
        return {
            name: RecordPosition(content, world, position, bool(has_begun))
            for name, content, world, position, has_begun in rows
        }

    def save(self, name: str, known: RecordPosition) -> None:
        """Replaces a position.

        Raises:
            RunFolderError: The disk is full, or the file was removed.
        """
        values = (name, known.content, known.world, known.position, known.has_begun)
        try:
            self._database.execute("REPLACE INTO records VALUES (?, ?, ?, ?, ?)", values)
        except sqlite3.Error as error:
            raise self._explain(error) from error

    def close(self) -> None:
        """Closes the file."""
        self._database.close()

    def _explain(self, error: sqlite3.Error) -> RunFolderError:
        return RunFolderError(
            f"cannot keep how far records are read ({error})",
            place=self._place,
            remedy="Name a file of an earlier rendezvous, or a new one on a disk with space",
        )
