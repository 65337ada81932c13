"""Manifests of cuts: `cut-<number>.json`, each the commit point of its cut.

A cut exists once its manifest does. The manifest carries its own checksum and those of all files
that the cut rests on, so a cut is either whole or seen not to be. Files of rows are shared: a cut
is the chain base, delta, …, delta of each partition, and a file goes when no kept manifest names
it.
"""

import json
import re
import secrets
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ctr_pipeline.distributed.coordination.claims import bitmaps_beyond, tasks_over
from ctr_pipeline.distributed.coordination.codec import MalformedMessage, decode, encode
from ctr_pipeline.distributed.coordination.events import Json
from ctr_pipeline.distributed.coordination.messages import (
    PartitionFiles,
    RestoreRequest,
    SnapshotReply,
    TaskBitmap,
)
from ctr_pipeline.distributed.coordination.placement import Placement, even_placement
from ctr_pipeline.embeddings.cut_storage import CutStorage
from ctr_pipeline.embeddings.log_chain import CutFile, cut_of, extend_chain, unneeded_files
from ctr_pipeline.errors import CheckpointError, RunFolderError, StorageError
from ctr_pipeline.storage.commits import PINS
from ctr_pipeline.storage.protocol import ObjectExistsError, StorageDeniedError

MANIFEST_FORMAT = 1
PIN_SECONDS = 86_400.0
"""After which a pin counts no more whose reader was killed."""

_NAME = re.compile(r"cut-(\d{6,})\.json")
_GIVEN_UP = re.compile(r"cut-(\d{6,})\.json\.given-up")


@dataclass(frozen=True)
class CutFacts:
    """What is known of a cut before its snapshots are taken.

    Attributes:
        cut: Number.
        parent: The cut that its deltas build on; 0 if it holds all rows itself.
        generation: Generation of the job when it was taken.
        num_parameter_servers: How many took it.
        epoch: In which it was taken.
        step: Batches of the job that it counts.
        best_cut: The job's best cut when this one was taken; 0: none yet.
        taken_at: Unix time, seconds.
        placement: Which of these servers held what; None: as a job of so many servers begins.
    """

    cut: int
    parent: int
    generation: int
    job: str
    config_fingerprint: str
    rows_fingerprint: str
    plan_fingerprint: str
    num_partitions: int
    num_parameter_servers: int
    epoch: int
    step: int
    best_cut: int
    taken_at: float
    placement: Placement | None = None

    @property
    def owners(self) -> tuple[int, ...]:
        """Server that wrote each partition."""
        if self.placement is not None:
            return self.placement.owners
        return even_placement(
            self.num_partitions, 0, self.num_parameter_servers, is_divided=True
        ).owners


@dataclass(frozen=True)
class CutFiles:
    """What the parameter servers wrote.

    Attributes:
        partitions: Files of each partition, ascending; a partition without rows has none.
        dense: Files of the dense parameters, by range.
        bitmaps: Bitmaps of each server, by its number.
        versions: Updates that each server had applied.
    """

    partitions: tuple[PartitionFiles, ...]
    dense: tuple[CutFile, ...]
    bitmaps: tuple[tuple[TaskBitmap, ...], ...]
    versions: tuple[int, ...]

    def all_files(self) -> tuple[CutFile, ...]:
        """Every file that the cut rests on."""
        rows = (file for partition in self.partitions for file in partition.files)
        return (*rows, *self.dense)


@dataclass(frozen=True)
class CutManifest:
    """One cut.

    Attributes:
        facts: Which one.
        files: Where it lies.
        frozen: The ledger as it counts it.
        history: Epochs until then, as `training.history.EpochRecord`.
    """

    facts: CutFacts
    files: CutFiles
    frozen: Json
    history: tuple[Json, ...]

    def restore_request(self, generation: int, placement: Placement | None) -> RestoreRequest:
        """What a parameter server is told to hold of this cut.

        Args:
            generation: From then on.
            placement: Which server holds what from then on; None: as the job begins.
        """
        files, before = self.files, self.facts.placement
        return RestoreRequest(
            generation=generation,
            cut=self.facts.cut,
            partitions=files.partitions,
            dense=files.dense,
            bitmaps=files.bitmaps,
            ranges=() if before is None else before.dense,
            placement=placement,
        )


def chain_files(
    facts: CutFacts,
    parent: CutManifest | None,
    replies: Sequence[SnapshotReply],
    frozen: Json,
) -> CutFiles:
    """Joins the parts of a cut with the cut that its deltas build on.

    Args:
        parent: The manifest of `facts.parent`; None if that is 0.
        replies: Replies of each server, by its number; none is refused.
        frozen: The ledger as the cut counts it.

    Raises:
        CheckpointError: A server left something out, or wrote a delta to nothing.
    """
    owners = facts.owners
    written: dict[int, CutFile] = {}
    for server, reply in enumerate(replies):
        for file in reply.files:
            if file.kind == "dense":
                continue
            if owners[file.partition] != server or file.partition in written:
                raise CheckpointError(
                    f"parameter server {server} wrote partition {file.partition}, which is not its"
                    " to write",
                    place=f"checkpoint {facts.cut}",
                )
            written[file.partition] = file
    before: dict[int, tuple[CutFile, ...]] = {}
    if parent is not None:
        before = {entry.partition: entry.files for entry in parent.files.partitions}
    partitions = []
    for partition in range(facts.num_partitions):
        new = written.get(partition)
        try:
            files = extend_chain(before.get(partition, ()), new)
        except ValueError as error:
            raise CheckpointError(str(error), place=f"checkpoint {facts.cut}") from None
        partitions.append(PartitionFiles(partition, files, owners[partition]))
    dense = sorted(
        (file for reply in replies for file in reply.files if file.kind == "dense"),
        key=lambda file: file.first,
    )
    return CutFiles(
        tuple(partitions),
        tuple(dense),
        # Those of tasks that may be given out again: few, however long the epoch is.
        tuple(bitmaps_beyond(reply.bitmaps, *tasks_over(frozen)) for reply in replies),
        tuple(reply.version for reply in replies),
    )


class Cuts:
    """Manifests of one job's cuts and the files that they name.

    Args:
        storage: Where they lie.
        job: Only cuts of this job count; None: of any.
    """

    def __init__(self, storage: CutStorage, job: str | None) -> None:
        self.storage = storage
        self._job = job

    def numbers(self) -> list[int]:
        """Cuts with a manifest, sound or not, newest first; those given up are left out.

        Raises:
            StorageError: They cannot be listed.
        """
        return sorted(self._numbers_like(_NAME), reverse=True)

    def _numbers_like(self, pattern: re.Pattern[str]) -> list[int]:
        return [
            int(match[1]) for name in self.storage.names() if (match := pattern.fullmatch(name))
        ]

    def save(self, manifest: CutManifest) -> None:
        """Commits a cut, once; its files are durable before.

        Numbers of cuts are never used twice, so only a master that another one has replaced finds
        its number taken.

        Raises:
            CheckpointError: Another master has committed this cut.
            StorageError: The storage is not there.
            RunFolderError: The disk is full, or the folder cannot be written.
        """
        self.storage.require_there()
        name = cut_file_name(manifest.facts.cut)
        try:
            self.storage.put_if_absent(name, _render(manifest).encode())
        except ObjectExistsError as error:
            raise CheckpointError(
                "another master has committed it", place=self.storage.place_of(name)
            ) from error

    def load(self, cut: int) -> CutManifest:
        """A cut's manifest; its files are not looked at.

        Raises:
            CheckpointError: It is missing, damaged, of another format, or of another job.
            StorageError: It cannot be read at this moment.
        """
        name = cut_file_name(cut)
        manifest = self._read(name)
        if manifest.facts.cut != cut:
            raise CheckpointError(
                f"is the manifest of checkpoint {manifest.facts.cut}",
                place=self.storage.place_of(name),
            )
        if self._job is not None and manifest.facts.job != self._job:
            raise CheckpointError(
                f"belongs to job '{manifest.facts.job}', not to '{self._job}'",
                place=self.storage.place_of(name),
                remedy="Give each job its own 'output'",
            )
        return manifest

    def check_files(self, manifest: CutManifest, *, read: bool) -> None:
        """Compares a cut's files with its manifest.

        Args:
            read: Compare checksums of their bytes too.

        Raises:
            CheckpointError: Names the first file that is missing or damaged.
            StorageError: Names the first that cannot be read at this moment.
        """
        for file in manifest.files.all_files():
            place = self.storage.place_of(file.name)
            num_bytes = self.storage.num_bytes(file.name, absent="is missing")
            if num_bytes != file.num_bytes:
                raise CheckpointError(
                    f"has {num_bytes:,} bytes instead of {file.num_bytes:,}", place=place
                )
            if read and self.storage.crc32_of(file.name, absent="is missing") != file.crc32:
                raise CheckpointError("is damaged: its checksum differs", place=place)

    def sound(self, *, read: bool = False) -> tuple[list[CutManifest], list[str]]:
        """Cuts that can be restored, newest first, and why each of the others cannot.

        Args:
            read: Compare checksums of all bytes, not only sizes.

        Raises:
            StorageError: Files cannot be read at this moment.
        """
        whole, reasons = [], []
        for cut in self.numbers():
            try:
                manifest = self.load(cut)
                self.check_files(manifest, read=read)
            except CheckpointError as error:
                reasons.append(f"checkpoint {cut}: {error}")
            else:
                whole.append(manifest)
        return whole, reasons

    def give_up(self, cut: int) -> None:
        """Sets a damaged cut aside: it counts no more, and its files stay.

        Raises:
            StorageError: It cannot be changed at this moment.
            RunFolderError: The disk is full.
        """
        name = cut_file_name(cut)
        try:
            with self.storage.reading(name) as file:
                manifest = file.read()
        except CheckpointError:
            return  # Its manifest is what it lacks.
        self.storage.write(given_up_name(cut), manifest)
        self.storage.delete([name])

    @contextmanager
    def pinned(
        self, manifest: CutManifest, *, clock: Callable[[], float] = time.time
    ) -> Iterator[None]:
        """Keeps a cut and its files from being deleted inside.

        A storage that this process may only read is read without a pin.

        Args:
            clock: Unix time, seconds.

        Raises:
            CheckpointError: Some are gone already.
        """
        key = f"{PINS}/cut-{manifest.facts.cut}-{secrets.token_hex(8)}.json"
        pin = {
            "cut": manifest.facts.cut,
            "files": [file.name for file in manifest.files.all_files()],
            "until": clock() + PIN_SECONDS,
        }
        is_written = True
        try:
            self.storage.write(key, json.dumps(pin).encode())
        except (StorageDeniedError, RunFolderError):
            is_written = False
        try:
            # A master that looked for pins before may have deleted them since.
            self.check_files(manifest, read=False)
            yield
        finally:
            if is_written:
                self.storage.delete([key])

    def _pins(self, now: float) -> list[dict[str, Any]]:
        """What readers have pinned; deletes pins whose time is over."""
        found = []
        for name in self.storage.names():
            if not name.startswith(f"{PINS}/"):
                continue
            try:
                with self.storage.reading(name) as file:
                    pin = json.loads(file.read())
                is_over = pin["until"] <= now
                found += [] if is_over else [{"cut": pin["cut"], "files": list(pin["files"])}]
            except CheckpointError:
                continue  # unpinned meanwhile
            except (ValueError, KeyError, TypeError) as error:
                raise StorageError(
                    "is no pin, so no checkpoint is deleted",
                    place=self.storage.place_of(name),
                    remedy="Remove it",
                ) from error
            if is_over:
                self.storage.delete([name])
        return found

    def keep_only(self, cuts: Iterable[int]) -> dict[int, str]:
        """Deletes other cuts, and files that no kept one names and no reader has pinned.

        Manifests newer than all kept ones stay, and so do files newer than all kept cuts: they may
        still be written. So do the files of cuts that were given up, until their manifests are
        removed by hand. A kept manifest that proves damaged is given up, and nothing is deleted
        this time: an older cut may be needed in its place.

        Returns:
            Cuts that were given up, with why.

        Raises:
            StorageError, RunFolderError: Some files could not be read or deleted at this moment.
        """
        kept = set(cuts)
        if not kept:
            return {}
        self.storage.require_there()
        newest = max(kept)
        pins = self._pins(time.time())
        pinned = {pin["cut"] for pin in pins}
        present = self.numbers()
        needed: set[str] = set()
        damages: dict[int, str] = {}
        for cut in present:
            if cut in kept or cut > newest:
                try:
                    needed.update(file.name for file in self.load(cut).files.all_files())
                except CheckpointError as error:
                    self.give_up(cut)
                    damages[cut] = str(error)
        if damages:
            return damages
        needed.update(self._files_of_given_up())
        needed.update(name for pin in pins for name in pin["files"])
        self.storage.delete(
            cut_file_name(cut) for cut in present if cut not in kept | pinned and cut < newest
        )
        self._delete_files(needed, before_cut=newest)
        return {}

    def _delete_files(self, needed: set[str], *, before_cut: int) -> None:
        present = self.storage.names()
        self.storage.delete(unneeded_files(present, needed, before_cut=before_cut))
        # What a member was writing that died.
        self.storage.delete_unfinished(
            lambda name: bool(unneeded_files([name], (), before_cut=before_cut))
        )

    def _files_of_given_up(self) -> Iterator[str]:
        """What cuts that were given up rest on; of a damaged manifest, what that cut wrote."""
        for cut in self._numbers_like(_GIVEN_UP):
            try:
                manifest = self._read(given_up_name(cut))
            except CheckpointError:
                yield from (name for name in self.storage.names() if cut_of(name) == cut)
            else:
                yield from (file.name for file in manifest.files.all_files())

    def _read(self, name: str) -> CutManifest:
        """A manifest.

        Raises:
            CheckpointError: It is missing, damaged or of another format.
            StorageError: It cannot be read at this moment.
        """
        with self.storage.reading(name, absent="there is no such checkpoint") as file:
            return _parse(file.read(), self.storage.place_of(name))


def cut_file_name(cut: int) -> str:
    """Of the manifest of a cut."""
    return f"cut-{cut:06d}.json"


def given_up_name(cut: int) -> str:
    """Of the manifest of a cut that was given up."""
    return f"{cut_file_name(cut)}.given-up"


def _parse(content: bytes, place: str) -> CutManifest:
    try:
        document = json.loads(content)
        version = document["format"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError("is damaged: it is no manifest", place=place) from error
    if version != MANIFEST_FORMAT:
        raise CheckpointError(
            f"has format {version}, and this program knows format {MANIFEST_FORMAT}",
            place=place,
            remedy="Go on with the version of ctrpipe that began the job",
        )
    try:
        body = document["body"]
        if document["crc32"] != zlib.crc32(_canonical(body)):
            raise CheckpointError("is damaged: its checksum differs", place=place)
        return CutManifest(
            # Cuts of earlier versions name no placement.
            decode(CutFacts, _canonical({"placement": None, **body["facts"]})),
            decode(CutFiles, _canonical(body["files"])),
            body["frozen"],
            tuple(body["history"]),
        )
    except (KeyError, TypeError, MalformedMessage) as error:
        raise CheckpointError("is damaged: something is missing", place=place) from error


def _render(manifest: CutManifest) -> str:
    body: Mapping[str, Any] = {
        "facts": json.loads(encode(manifest.facts)),
        "files": json.loads(encode(manifest.files)),
        "frozen": manifest.frozen,
        "history": list(manifest.history),
    }
    document = {"format": MANIFEST_FORMAT, "crc32": zlib.crc32(_canonical(body)), "body": body}
    return json.dumps(document)


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
