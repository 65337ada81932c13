"""Commits of one writer at a time to a storage, and those who read them."""

import io
import secrets
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any

from ctr_pipeline.errors import CheckpointError, StorageError
from ctr_pipeline.storage.commits import (
    MANIFESTS,
    PARTS,
    PINS,
    Entry,
    Manifest,
    Part,
    Pin,
    Seal,
    Slot,
    decode_entry,
    decode_pin,
    encode_entry,
    encode_pin,
    manifest_key,
    part_key,
    pin_key,
    plan_seal,
    slots_of,
    superseded,
    unneeded_parts,
)
from ctr_pipeline.storage.protocol import ObjectExistsError, ObjectMissingError, Storage

_BLOCK_BYTES = 1 << 20


class FencedError(StorageError):
    """Another process writes this storage now; what this one would commit does not count."""


class CommitReader:
    """The commits in a storage.

    Args:
        storage: Holds nothing else under `manifests/`, `parts/` and `pins/`.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        # A slot is written once.
        self._entries: dict[Slot, Entry] = {}

    def newest(self) -> Manifest | None:
        """The newest commit; None where nothing is committed.

        Raises:
            CheckpointError: Its manifest is damaged.
        """
        for slot in self.slots():
            entry = self._entry(slot)
            if isinstance(entry, Manifest):
                return entry
            if entry is None:
                # Retention has deleted it since: there is a newer one.
                return self.newest()
        return None

    def manifest(self, slot: Slot) -> Manifest | None:
        """The commit of a slot; None where there is a seal instead, or retention has deleted it.

        Raises:
            CheckpointError: Its manifest is damaged.
        """
        entry = self._entry(slot)
        return entry if isinstance(entry, Manifest) else None

    def open_part(self, part: Part) -> IO[bytes]:
        """Opens a part of a commit to be read; `Storage.open` says how.

        Raises:
            CheckpointError: It is missing.
        """
        try:
            return self.storage.open(part.key)
        except ObjectMissingError as error:
            raise CheckpointError("is missing", place=error.place) from error

    def verify_part(self, part: Part) -> None:
        """Reads a part to its end.

        Raises:
            CheckpointError: It is missing, or not as it was written.
        """
        num_bytes = crc32 = 0
        with self.open_part(part) as file:
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

    def pin(self, consumer: str) -> Manifest | None:
        """The newest commit, whose parts stay until the consumer's next pin or `unpin`.

        Args:
            consumer: A name of letters, digits, `_` and `-`.

        Returns:
            The commit; None where nothing is committed.
        """
        while (manifest := self.newest()) is not None:
            self.storage.write(pin_key(consumer), encode_pin(manifest))
            # Retention deletes a manifest first and looks for pins of its parts then.
            self._entries.pop(manifest.slot)
            if self._entry(manifest.slot) is not None:
                return manifest
        return None

    def unpin(self, consumer: str) -> None:
        """Parts that only this consumer needs may be deleted."""
        self.storage.delete([pin_key(consumer)])

    def slots(self) -> list[Slot]:
        """Slots of all manifests and seals, the newest first."""
        return slots_of(one.key for one in self.storage.list(MANIFESTS))

    def place_of(self, slot: Slot) -> str:
        """Where the manifest of a slot lies, as errors name it."""
        return self._place(manifest_key(slot))

    def _place(self, key: str) -> str:
        return f"{self.storage.address}/{key}"

    def _entry(self, slot: Slot) -> Entry | None:
        """What a slot holds; None where it was deleted meanwhile."""
        if slot not in self._entries:
            try:
                data = self.storage.read(manifest_key(slot))
            except ObjectMissingError:
                return None
            self._entries[slot] = decode_entry(slot, data, place=self.place_of(slot))
        return self._entries[slot]

    def _pins(self) -> list[Pin]:
        pins = []
        for one in self.storage.list(PINS):
            try:
                pins.append(decode_pin(self.storage.read(one.key), place=self._place(one.key)))
            except ObjectMissingError:
                continue  # unpinned meanwhile
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
        self._slot = Slot(seal.slot.generation + 1, 0)
        self._token = secrets.token_hex(8)

    @property
    def generation(self) -> int:
        """Higher than that of all writers before."""
        return self._slot.generation

    @contextmanager
    def create_part(self, name: str) -> Iterator["PartFile"]:
        """A part of the next commit, whole once the block ends; nothing of it counts before that.

        Raises:
            StorageAwayError: Write it again.
        """
        # Another attempt has another key: what the first one left may still arrive.
        key = part_key(self._slot, f"{self._token}{secrets.token_hex(4)}", name)
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
            manifest = Manifest(self._slot, self.writer, parts, state)
            try:
                self.storage.put_if_absent(manifest_key(self._slot), encode_entry(manifest))
            except ObjectExistsError as error:
                self._require_own(self._slot, error)
                # The answer to an earlier call was lost, and what it committed counts.
                self._slot = self._slot.next
                continue
            self._entries[self._slot] = manifest
            self._slot = self._slot.next
            return manifest

    def retain(self, kept: Collection[Slot]) -> None:
        """Deletes commits, damaged ones included, and the parts that no other one needs.

        Args:
            kept: Slots of commits that stay, beside the newest and those that consumers have
                pinned.

        Raises:
            FencedError: Another process has taken over; it decides what stays.
        """
        slots = self.slots()
        if slots and slots[0] >= self._slot:
            self._require_own(slots[0])
        manifests: dict[Slot, Manifest | None] = {}
        for slot in slots:
            try:
                entry = self._entry(slot)
            except CheckpointError:
                manifests[slot] = None
                continue
            if isinstance(entry, Manifest):
                manifests[slot] = entry
        pinned = {pin.slot for pin in self._pins()}
        doomed = superseded(manifests, kept={*kept, *pinned})
        self.storage.delete(manifest_key(slot) for slot in doomed)
        for slot in doomed:
            del manifests[slot]
            self._entries.pop(slot, None)
        unneeded = unneeded_parts(
            [one.key for one in self.storage.list(PARTS)],
            kept=[one for one in manifests.values() if one is not None],
            # A consumer that pinned a manifest before it went keeps the parts.
            pins=self._pins(),
            before=self._slot,
        )
        self.storage.delete(unneeded)

    def _take_over(self) -> Seal:
        while True:
            slots = self.slots()
            try:
                newest = self._entry(slots[0]) if slots else None
            except CheckpointError:
                # Whether it ends a generation cannot be read. The next round ends the other one.
                self._put_seal(slots[0].next)
                continue
            if slots and newest is None:
                continue  # deleted meanwhile: there is a newer one
            if (seal := self._put_seal(plan_seal(newest))) is not None:
                self._require_conditional_writes(seal)
                return seal

    def _put_seal(self, slot: Slot) -> Seal | None:
        """The seal; None where the writer before has committed once more."""
        seal = Seal(slot, self.writer)
        try:
            self.storage.put_if_absent(manifest_key(slot), encode_entry(seal))
        except ObjectExistsError as error:
            if isinstance(self._entry(slot), Seal):
                raise self._fenced() from error
            return None
        return seal

    def _require_conditional_writes(self, seal: Seal) -> None:
        try:
            # Other bytes, of the same content: equal ones count as put after a lost answer.
            self.storage.put_if_absent(manifest_key(seal.slot), encode_entry(seal) + b"\n")
        except ObjectExistsError:
            return
        raise StorageError(
            "the store ignores the condition of a write (If-None-Match), so that two masters could "
            "overwrite each other's checkpoints",
            place=self.storage.address,
            remedy="Use a store that has conditional writes, or a local folder",
        )

    def _require_own(self, slot: Slot, error: Exception | None = None) -> None:
        """Raises FencedError unless the slot holds a commit of this writer, of a lost answer."""
        try:
            entry = self._entry(slot)
        except CheckpointError:
            entry = None
        if not (isinstance(entry, Manifest) and entry.writer == self.writer):
            raise self._fenced() from error

    def _fenced(self) -> FencedError:
        return FencedError(
            "another process has taken over these checkpoints",
            place=self.storage.address,
            remedy="Let one process at a time write a run",
        )
