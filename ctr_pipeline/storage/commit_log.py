"""Commits of one writer at a time to a storage, and those who read them."""

import io
import secrets
import time
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any

from ctr_pipeline.errors import CheckpointError, StorageError
from ctr_pipeline.storage.commits import (
    MANIFESTS,
    PARTS,
    PINS,
    CommitId,
    Entry,
    Manifest,
    Part,
    Pin,
    Seal,
    commit_ids_of,
    decode_entry,
    decode_pin,
    encode_entry,
    encode_pin,
    manifest_key,
    part_key,
    pin_key,
    plan_seal,
    superseded,
    unneeded_parts,
)
from ctr_pipeline.storage.protocol import (
    ObjectChangedError,
    ObjectExistsError,
    ObjectMissingError,
    ObjectTruncatedError,
    Storage,
)

_BLOCK_BYTES = 1 << 20


class FencedError(StorageError):
    """Another process writes this storage now; what this one would commit does not count."""


def fenced(address: str) -> FencedError:
    """The error of a writer that another one has replaced."""
    return FencedError(
        "another process has taken over",
        place=address,
        remedy="Let one process at a time write a run",
    )


@contextmanager
def damage_explained() -> Iterator[None]:
    """An object that is not as a commit names it is a damaged checkpoint.

    Raises:
        CheckpointError: It is missing, ends too early, or was written again while it was read.
    """
    try:
        yield
    except ObjectMissingError as error:
        raise CheckpointError("is missing", place=error.place) from error
    except (ObjectChangedError, ObjectTruncatedError) as error:
        raise CheckpointError(error.message, place=error.place) from error


class CommitReader:
    """The commits in a storage.

    Args:
        storage: Holds nothing else under `manifests/`, `parts/` and `pins/`.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        # A commit is written once.
        self._entries: dict[CommitId, Entry] = {}

    def newest(self) -> Manifest | None:
        """The newest commit; None where nothing is committed.

        Raises:
            CheckpointError: Its manifest is damaged.
        """
        for commit_id in self.commit_ids():
            entry = self._entry(commit_id)
            if isinstance(entry, Manifest):
                return entry
            if entry is None:
                # Retention has deleted it since: there is a newer one.
                return self.newest()
        return None

    def manifests(self) -> Iterator[Manifest | CheckpointError]:
        """All commits, the newest first; in place of a damaged one, what is wrong with it."""
        for commit_id in self.commit_ids():
            try:
                manifest = self.manifest(commit_id)
            except CheckpointError as error:
                yield error
            else:
                if manifest is not None:
                    yield manifest

    def manifest(self, commit_id: CommitId) -> Manifest | None:
        """The commit of an id; None where there is a seal instead, or retention has deleted it.

        Raises:
            CheckpointError: Its manifest is damaged.
        """
        entry = self._entry(commit_id)
        return entry if isinstance(entry, Manifest) else None

    def require_newest(self, generation: int) -> None:
        """Refuses to go on for a writer that another one has replaced.

        Raises:
            FencedError: There is a later generation, or the seal of this one.
        """
        ids = self.commit_ids()
        if not ids or ids[0].generation < generation:
            return
        if ids[0].generation > generation or isinstance(self._entry(ids[0]), Seal):
            raise fenced(self.storage.address)

    def open_part(self, part: Part) -> IO[bytes]:
        """Opens a part of a commit to be read; `Storage.open` says how.

        Raises:
            CheckpointError: It is missing.
        """
        with damage_explained():
            return self.storage.open(part.key)

    def verify_part(self, part: Part) -> None:
        """Reads a part to its end.

        Raises:
            CheckpointError: It is missing, or not as it was written.
        """
        num_bytes = crc32 = 0
        with damage_explained(), self.open_part(part) as file:
            while block := file.read(_BLOCK_BYTES):
                num_bytes += len(block)
                crc32 = zlib.crc32(block, crc32)
        if num_bytes != part.num_bytes:
            what = f"is damaged ({num_bytes:,} bytes instead of {part.num_bytes:,})"
        elif crc32 != part.crc32:
            what = "is damaged (CRC differs)"
        else:
            return
        raise CheckpointError(what, place=self._place(part.key))

    def pin(self, consumer: str, manifest: Manifest, *, until: float) -> bool:
        """Keeps the parts of a commit until the consumer's next pin, `unpin` or some time.

        Args:
            consumer: A name of letters, digits, `_` and `-`.
            manifest: The commit.
            until: Unix time, seconds.

        Returns:
            Whether the commit is there; retention may have deleted it before.
        """
        keys = tuple(part.key for part in manifest.parts)
        self.storage.write(pin_key(consumer), encode_pin(Pin(manifest.commit_id, keys, until)))
        # Retention deletes a manifest first and looks for pins of its parts then.
        self._entries.pop(manifest.commit_id, None)
        return self._entry(manifest.commit_id) is not None

    def unpin(self, consumer: str) -> None:
        """Parts that only this consumer needs may be deleted."""
        self.storage.delete([pin_key(consumer)])

    def commit_ids(self) -> list[CommitId]:
        """Ids of all manifests and seals, the newest first."""
        return commit_ids_of(one.key for one in self.storage.list(MANIFESTS))

    def place_of(self, commit_id: CommitId) -> str:
        """Where a manifest lies, as errors name it."""
        return self._place(manifest_key(commit_id))

    def _place(self, key: str) -> str:
        return f"{self.storage.address}/{key}"

    def _entry(self, commit_id: CommitId) -> Entry | None:
        """What is stored under an id; None where it was deleted meanwhile."""
        if commit_id not in self._entries:
            try:
                data = self.storage.read(manifest_key(commit_id))
            except ObjectMissingError:
                return None
            self._entries[commit_id] = decode_entry(commit_id, data, place=self.place_of(commit_id))
        return self._entries[commit_id]

    def _pins(self) -> list[Pin]:
        """Pins whose time is not over."""
        now, pins = time.time(), []
        for one in self.storage.list(PINS):
            try:
                pin = decode_pin(self.storage.read(one.key), place=self._place(one.key))
            except ObjectMissingError:
                continue  # unpinned meanwhile
            if pin.until > now:
                pins.append(pin)
            else:
                self.storage.delete([one.key])
        return pins


class PartFile(io.BufferedWriter):
    """A part that is being written."""

    def __init__(self, file: IO[bytes], key: str) -> None:
        self._counted = _CountedFile(file)
        super().__init__(self._counted)
        self._key = key

    @property
    def part(self) -> Part:
        """What was written, once the file is closed."""
        return Part(self._key, self._counted.num_bytes, self._counted.crc32)


class _CountedFile(io.RawIOBase):
    """Sums up what passes through."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.num_bytes = self.crc32 = 0

    def writable(self) -> bool:
        return True

    def write(self, block: Any, /) -> int:
        self.num_bytes += len(block)
        self.crc32 = zlib.crc32(block, self.crc32)
        self._file.write(block)
        return len(block)


class CommitWriter(CommitReader):
    """The one process that commits to a storage, until another one takes over.

    Args:
        storage: As of a `CommitReader`.

    Raises:
        FencedError: Another process takes over at the same time.
        StorageError: The storage lets two writers put one object.
    """

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self.writer = secrets.token_hex(8)
        seal = self._take_over()
        self._next_id = CommitId(seal.commit_id.generation + 1, 0)
        self._token = secrets.token_hex(8)

    @property
    def generation(self) -> int:
        """Higher than that of all writers before."""
        return self._next_id.generation

    def part_prefix(self, attempt: str | None = None) -> str:
        """What begins the keys of parts of the next commit, which other processes may write.

        Args:
            attempt: Hexadecimal digits that the keys of parts written together share; None: drawn.
        """
        # Another attempt has another key: what the first one left may still arrive.
        return part_key(self._next_id, f"{self._token}{attempt or secrets.token_hex(4)}", "")

    @contextmanager
    def create_part(self, name: str, attempt: str | None = None) -> Iterator["PartFile"]:
        """A part of the next commit, whole once the block ends; nothing of it counts before that.

        Args:
            name: Ends its key.
            attempt: As for `part_prefix`.

        Raises:
            StorageAwayError: Write it again, in another attempt.
        """
        key = self.part_prefix(attempt) + name
        with self.storage.create(key) as file, PartFile(file, key) as part:
            yield part

    def discard(self, parts: Iterable[Part]) -> None:
        """Deletes parts that no commit names."""
        self.storage.delete(part.key for part in parts)

    def commit(self, parts: Iterable[Part], state: Mapping[str, Any]) -> Manifest:
        """Makes the parts the newest commit, all at once.

        Args:
            parts: New ones, and those of the newest commit that go on to count.
            state: As JSON.

        Raises:
            FencedError: Another process has taken over; nothing was committed.
            StorageAwayError: It may have been committed or not; `commit` may be called again.
        """
        parts = tuple(parts)
        while True:
            manifest = Manifest(self._next_id, self.writer, parts, state)
            try:
                self.storage.put_if_absent(manifest_key(self._next_id), encode_entry(manifest))
            except ObjectExistsError as error:
                self._require_own(self._next_id, error)
                # The answer to an earlier call was lost, and what it committed counts.
                self._next_id = self._next_id.next
                continue
            self._entries[self._next_id] = manifest
            self._next_id = self._next_id.next
            return manifest

    def retain(self, kept: Collection[CommitId]) -> None:
        """Deletes commits, damaged ones included, and the parts that no other one needs.

        Args:
            kept: Ids of commits that stay, beside the newest and those that consumers have
                pinned.

        Raises:
            FencedError: Another process has taken over; it decides what stays.
        """
        commit_ids = self.commit_ids()
        if commit_ids and commit_ids[0] >= self._next_id:
            self._require_own(commit_ids[0])
        manifests: dict[CommitId, Manifest | None] = {}
        for commit_id in commit_ids:
            try:
                entry = self._entry(commit_id)
            except CheckpointError:
                manifests[commit_id] = None
                continue
            if isinstance(entry, Manifest):
                manifests[commit_id] = entry
        pinned = {pin.commit_id for pin in self._pins()}
        doomed = superseded(manifests, kept={*kept, *pinned})
        self.storage.delete(manifest_key(commit_id) for commit_id in doomed)
        for commit_id in doomed:
            del manifests[commit_id]
            self._entries.pop(commit_id, None)
        needed = {part.key for one in manifests.values() if one is not None for part in one.parts}
        # A consumer that pinned a manifest before it went keeps the parts.
        needed.update(key for pin in self._pins() for key in pin.keys)
        present = [one.key for one in self.storage.list(PARTS)]
        self.storage.delete(unneeded_parts(present, needed, before=self._next_id))
        # What a process was writing that died.
        self.storage.delete_unfinished(
            lambda key: bool(unneeded_parts([key], set(), before=self._next_id))
        )

    def _take_over(self) -> Seal:
        while True:
            commit_ids = self.commit_ids()
            try:
                newest = self._entry(commit_ids[0]) if commit_ids else None
            except CheckpointError:
                # Whether it ends a generation cannot be read. The next round ends the other one.
                self._put_seal(commit_ids[0].next)
                continue
            if commit_ids and newest is None:
                continue  # deleted meanwhile: there is a newer one
            if (seal := self._put_seal(plan_seal(newest))) is not None:
                self._require_conditional_writes(seal)
                return seal

    def _put_seal(self, commit_id: CommitId) -> Seal | None:
        """The seal; None where the writer before has committed once more."""
        seal = Seal(commit_id, self.writer)
        try:
            self.storage.put_if_absent(manifest_key(commit_id), encode_entry(seal))
        except ObjectExistsError as error:
            if isinstance(self._entry(commit_id), Seal):
                raise fenced(self.storage.address) from error
            return None
        return seal

    def _require_conditional_writes(self, seal: Seal) -> None:
        try:
            # Other bytes, of the same content: equal ones count as put after a lost answer.
            self.storage.put_if_absent(manifest_key(seal.commit_id), encode_entry(seal) + b"\n")
        except ObjectExistsError:
            return
        raise StorageError(
            "the store ignores the condition of a write (If-None-Match), so that two masters could "
            "overwrite each other's checkpoints",
            place=self.storage.address,
            remedy="Use a store that has conditional writes, or a local folder",
        )

    def _require_own(self, commit_id: CommitId, error: Exception | None = None) -> None:
        """Raises FencedError unless the id is that of a commit of this writer, of a lost answer."""
        try:
            entry = self._entry(commit_id)
        except CheckpointError:
            entry = None
        if not (isinstance(entry, Manifest) and entry.writer == self.writer):
            raise fenced(self.storage.address) from error
