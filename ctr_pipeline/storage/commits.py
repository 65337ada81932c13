"""What commits without a rename are called, which is the newest, and what may be deleted.

Parts lie under unique names. A commit is an object that names them, its manifest, and is put only
where there is none:

    parts/GENERATION-NUMBER-TOKEN-NAME         rows, counts, …
    manifests/GENERATION-NUMBER.json           the parts that count, or the seal of the generation
    pins/CONSUMER.json                         the parts that a consumer reads

Of a generation there is one writer, and its commits are numbered without gaps. Who takes over puts
a *seal* where the next manifest would lie, so the store itself decides between the two: the older
writer finds the seal in its place and commits nothing more.

Pure: nothing here reads or writes.
"""

import json
import re
import zlib
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from ctr_pipeline.errors import CheckpointError, StorageError

MANIFESTS = "manifests"
PARTS = "parts"
PINS = "pins"
FORMAT_VERSION = 1
_MANIFEST = re.compile(rf"{MANIFESTS}/(\d{{6,}})-(\d{{12,}})\.json")
_PART = re.compile(rf"{PARTS}/(\d{{6,}})-(\d{{12,}})-[0-9a-f]+-(.+)")


@dataclass(frozen=True, order=True)
class CommitId:
    """Generation and number of a commit; commits are in the order of their ids."""

    generation: int
    number: int

    @property
    def next(self) -> "CommitId":
        """The id of the same writer's next commit."""
        return CommitId(self.generation, self.number + 1)


@dataclass(frozen=True)
class Part:
    """An object of a commit.

    Attributes:
        key: In the storage; later commits may name it, too.
    """

    key: str
    num_bytes: int
    crc32: int

    @property
    def name(self) -> str:
        """What it was written as."""
        match = _PART.fullmatch(self.key)
        return match[3] if match else self.key


@dataclass(frozen=True)
class Manifest:
    """A commit.

    Attributes:
        writer: Unique to the process that wrote it.
        parts: All that belong to it.
        state: As JSON.
    """

    commit_id: CommitId
    writer: str
    parts: tuple[Part, ...]
    state: Mapping[str, Any]


@dataclass(frozen=True)
class Seal:
    """The end of a generation: `writer` has begun the next one."""

    commit_id: CommitId
    writer: str


@dataclass(frozen=True)
class Pin:
    """Parts that a consumer reads, and the commit that they are of.

    Attributes:
        until: Unix time, seconds, after which it counts no more: its consumer was killed.
    """

    commit_id: CommitId
    keys: tuple[str, ...]
    until: float


Entry = Manifest | Seal


def manifest_key(commit_id: CommitId) -> str:
    """Where the manifest, or the seal, of an id lies."""
    return f"{MANIFESTS}/{_digits(commit_id)}.json"


def commit_id_of(key: str) -> CommitId | None:
    """The id of a manifest; None for any other object."""
    match = _MANIFEST.fullmatch(key)
    return CommitId(int(match[1]), int(match[2])) if match else None


def part_key(commit_id: CommitId, token: str, name: str) -> str:
    """Where a part lies that is written for a commit.

    Args:
        token: Hexadecimal digits that no other attempt has.
    """
    return f"{PARTS}/{_digits(commit_id)}-{token}-{name}"


def commit_id_of_part(key: str) -> CommitId | None:
    """The commit that a part was written for; None for any other object."""
    match = _PART.fullmatch(key)
    return CommitId(int(match[1]), int(match[2])) if match else None


def pin_key(consumer: str) -> str:
    """Where the pin of a consumer lies."""
    return f"{PINS}/{consumer}.json"


def commit_ids_of(keys: Iterable[str]) -> list[CommitId]:
    """Ids of all manifests and seals among the keys, the newest first."""
    return sorted((commit_id for key in keys if (commit_id := commit_id_of(key))), reverse=True)


def plan_seal(newest: Entry | None) -> CommitId:
    """Where a writer that takes over puts its seal; the generation after that one is its own.

    Args:
        newest: The newest manifest or seal; None where there is none.
    """
    if newest is None:
        return CommitId(0, 0)
    if isinstance(newest, Seal):
        # The writer that put it has committed nothing yet.
        return CommitId(newest.commit_id.generation + 1, 0)
    return newest.commit_id.next


def superseded(commit_ids: Iterable[CommitId], *, kept: AbstractSet[CommitId]) -> list[CommitId]:
    """Manifests that may be deleted, by their ids: not the newest, nor the kept ones."""
    in_order = sorted(commit_ids)
    return [commit_id for commit_id in in_order[:-1] if commit_id not in kept]


def unneeded_parts(
    present: Iterable[str], needed: AbstractSet[str], *, before: CommitId
) -> list[str]:
    """Keys of parts that nobody needs.

    Args:
        present: Keys of all parts.
        needed: Parts that manifests and pins name.
        before: Parts of this commit and later ones may still be written, and stay.
    """
    return sorted(
        key
        for key in present
        if key not in needed
        and (commit_id := commit_id_of_part(key)) is not None
        and commit_id < before
    )


def encode_entry(entry: Entry) -> bytes:
    """The object of a manifest or a seal."""
    if isinstance(entry, Seal):
        return _encode({"writer": entry.writer, "sealed": True})
    parts = [[part.key, part.num_bytes, part.crc32] for part in entry.parts]
    return _encode({"writer": entry.writer, "parts": parts, "state": dict(entry.state)})


def decode_entry(commit_id: CommitId, data: bytes, *, place: str) -> Entry:
    """What `encode_entry` made.

    Args:
        commit_id: Where it lies.
        place: As errors name it.

    Raises:
        CheckpointError: It is damaged, or of another format.
    """
    found = _decode(data, place)
    try:
        if found.get("sealed"):
            return Seal(commit_id, found["writer"])
        parts = tuple(Part(*part) for part in found["parts"])
        return Manifest(commit_id, found["writer"], parts, found["state"])
    except (KeyError, TypeError) as error:
        raise CheckpointError("has another form than a manifest", place=place) from error


def encode_pin(pin: Pin) -> bytes:
    """The object of a pin."""
    commit_id = pin.commit_id
    return _encode(
        {
            "generation": commit_id.generation,
            "number": commit_id.number,
            "keys": pin.keys,
            "until": pin.until,
        }
    )


def decode_pin(data: bytes, *, place: str) -> Pin:
    """What `encode_pin` made.

    Args:
        place: As errors name it.

    Raises:
        StorageError: It is damaged, or of another format.
    """
    try:
        found = _decode(data, place)
        commit_id = CommitId(found["generation"], found["number"])
        return Pin(commit_id, tuple(found["keys"]), float(found["until"]))
    except (CheckpointError, KeyError, TypeError) as error:
        raise StorageError(
            "is no pin, so no checkpoint is deleted", place=place, remedy="Remove it"
        ) from error


def _digits(commit_id: CommitId) -> str:
    return f"{commit_id.generation:06d}-{commit_id.number:012d}"


def _encode(content: dict[str, Any]) -> bytes:
    content = {"version": FORMAT_VERSION, **content}
    return json.dumps({**content, "crc32": _crc32_of(content)}, indent=1).encode()


def _decode(data: bytes, place: str) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(data)
        crc32 = content.pop("crc32")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError("cannot be parsed", place=place) from error
    if crc32 != _crc32_of(content):
        raise CheckpointError("is damaged (CRC differs)", place=place)
    if content["version"] != FORMAT_VERSION:
        raise CheckpointError(
            f"has format {content['version']}, this program reads {FORMAT_VERSION}", place=place
        )
    return content


def _crc32_of(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
