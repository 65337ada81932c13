"""Commits of one writer at a time to a storage, and those who read them."""

import secrets
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

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

    def read_part(self, part: Part) -> bytes:
        """A part of a commit, verified.

        Raises:
            CheckpointError: It is missing or damaged.
        """
        try:
            data = self.storage.read(part.key)
        except ObjectMissingError as error:
            raise CheckpointError("is missing", place=error.place) from error
        if len(data) != part.num_bytes or zlib.crc32(data) != part.crc32:
            raise CheckpointError(
                "is damaged (size or CRC differs)", place=f"{self.storage.address}/{part.key}"
            )
        return data

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

    def _entry(self, slot: Slot) -> Entry | None:
        """What a slot holds; None where it was deleted meanwhile."""
        if slot not in self._entries:
            key = manifest_key(slot)
            try:
                self._entries[slot] = decode_entry(key, self.storage.read(key))
            except ObjectMissingError:
                return None
        return self._entries[slot]

    def _pins(self) -> list[Pin]:
        pins = []
        for one in self.storage.list(PINS):
            try:
                pins.append(decode_pin(one.key, self.storage.read(one.key)))
            except ObjectMissingError:
                continue  # unpinned meanwhile
        return pins


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

    def write_part(self, name: str, parts: Iterable[bytes]) -> Part:
        """Writes a part of the next commit as its bytes come; nothing of it counts before that.

        Raises:
            StorageAwayError: Write it again.
        """
        # Another attempt has another key: what the first one left may still arrive.
        key = part_key(self._slot, f"{self._token}{secrets.token_hex(4)}", name)
        num_bytes = crc32 = 0

        def counted() -> Iterable[bytes]:
            nonlocal num_bytes, crc32
            for part in parts:
                num_bytes += len(part)
                crc32 = zlib.crc32(part, crc32)
                yield part

        self.storage.write_parts(key, counted())
        return Part(key, num_bytes, crc32)

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
                self._require_own(error)
                # The answer to an earlier call was lost, and what it committed counts.
                self._slot = self._slot.next
                continue
            self._entries[self._slot] = manifest
            self._slot = self._slot.next
            return manifest

    def retain(self, keep: int) -> None:
        """Deletes what is needed neither by the newest `keep` commits nor by pins.

        Raises:
            FencedError: Another process has taken over; it decides what stays.
        """
        slots = self.slots()
        if slots and slots[0] >= self._slot:
            newest = self._entry(slots[0])
            # One of its own is a commit whose answer was lost.
            if newest is None or newest.writer != self.writer:
                raise self._fenced()
        entries = [entry for slot in slots if (entry := self._entry(slot)) is not None]
        pinned = {pin.slot for pin in self._pins()}
        doomed = superseded(entries, keep=keep, pinned=pinned)
        self.storage.delete(manifest_key(one.slot) for one in doomed)
        for one in doomed:
            del self._entries[one.slot]
        gone = {one.slot for one in doomed}
        kept = [one for one in entries if isinstance(one, Manifest) and one.slot not in gone]
        unneeded = unneeded_parts(
            [one.key for one in self.storage.list(PARTS)],
            kept=kept,
            # A consumer that pinned a manifest before it went keeps the parts.
            pins=self._pins(),
            before=self._slot,
        )
        self.storage.delete(unneeded)

    def _take_over(self) -> Seal:
        while True:
            slots = self.slots()
            newest = self._entry(slots[0]) if slots else None
            if slots and newest is None:
                continue  # deleted meanwhile: there is a newer one
            seal = Seal(plan_seal(newest), self.writer)
            key, data = manifest_key(seal.slot), encode_entry(seal)
            try:
                self.storage.put_if_absent(key, data)
            except ObjectExistsError as error:
                if isinstance(self._entry(seal.slot), Seal):
                    raise self._fenced() from error
                continue  # the writer before has committed once more
            self._require_conditional_writes(key, data)
            return seal

    def _require_conditional_writes(self, key: str, data: bytes) -> None:
        try:
            # Other bytes, of the same content: equal ones count as put after a lost answer.
            self.storage.put_if_absent(key, data + b"\n")
        except ObjectExistsError:
            return
        raise StorageError(
            "the store ignores the condition of a write (If-None-Match), so that two masters could "
            "overwrite each other's checkpoints",
            place=self.storage.address,
            remedy="Use a store that has conditional writes, or a local folder",
        )

    def _require_own(self, error: ObjectExistsError) -> None:
        entry = self._entry(self._slot)
        if not (isinstance(entry, Manifest) and entry.writer == self.writer):
            raise self._fenced() from error

    def _fenced(self) -> FencedError:
        return FencedError(
            "another process has taken over these checkpoints",
            place=self.storage.address,
            remedy="Let one process at a time write a run",
        )
