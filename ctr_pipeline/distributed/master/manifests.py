"""Cuts of a job as commits to its storage.

The manifest of a commit carries its own checksum and those of all files that the cut rests on, so
a cut is either whole or seen not to be. Files of rows are shared: a cut is the chain base, delta,
…, delta of each partition, and a file goes when no kept manifest names it.
"""

import json
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ctr_pipeline.distributed.coordination.claims import bitmaps_beyond, tasks_over
from ctr_pipeline.distributed.coordination.codec import MalformedMessage, decode, encode
from ctr_pipeline.distributed.coordination.events import Json
from ctr_pipeline.distributed.coordination.ledger import Ledger, frozen_without_job
from ctr_pipeline.distributed.coordination.messages import (
    PartitionFiles,
    RestoreRequest,
    SnapshotReply,
    TaskBitmap,
)
from ctr_pipeline.distributed.coordination.placement import Placement, even_placement
from ctr_pipeline.distributed.coordination.spec import JobSpec
from ctr_pipeline.distributed.master.settings import plan_epoch
from ctr_pipeline.embeddings.cut_storage import CutStorage
from ctr_pipeline.embeddings.log_chain import CutFile, extend_chain
from ctr_pipeline.errors import CheckpointError, RunFolderError
from ctr_pipeline.storage.commit_log import CommitWriter
from ctr_pipeline.storage.commits import Manifest, Part, manifest_key
from ctr_pipeline.storage.protocol import StorageDeniedError
from ctr_pipeline.training.checkpoint import (
    FILES,
    NUMBER,
    STEP,
    TRAINING,
    ended_epoch,
    files_of,
    is_of_training,
    number_of,
)

_FACTS = "facts"
PIN_SECONDS = 86_400.0
"""After which a pin counts no more whose reader was killed."""


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
        training: Where training stood, as `training.trainer.TrainingState`; None where batches were
            on their way, so that only a job can go on from it.
    """

    facts: CutFacts
    files: CutFiles
    frozen: Json
    training: Json | None = None

    @property
    def history(self) -> tuple[Json, ...]:
        """Epochs until then, as `training.history.EpochRecord`."""
        return tuple(self.frozen["history"])

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


def describe_training(
    spec: JobSpec, facts: CutFacts, files: CutFiles, frozen: Json
) -> dict[str, object] | None:
    """`CutManifest.training` of a cut.

    Args:
        files: With the batches that servers had applied.
        frozen: The ledger as the cut counts it.
    """
    board = frozen["board"]
    counted = {
        (facts.epoch, task): mask
        for task, mask, _, dropped in ([] if board is None else board["tasks"])
        if not dropped
    }
    for bitmaps in files.bitmaps:
        applied = {(one.epoch, one.task): one.mask for one in bitmaps if one.scope is None}
        if len(applied) < len(bitmaps) or applied != counted:
            return None
    return {
        **Ledger.thaw(frozen, partial(plan_epoch, spec)).describe_training(),
        "step": facts.step,
        "epoch_seconds": 0.0,
        "finished": "",
        "rows_fingerprint": facts.rows_fingerprint,
        "plan_fingerprint": facts.plan_fingerprint,
        "earlier_steps": spec.earlier_steps,
        "refit": None,
        "worlds": [],
    }


class Cuts:
    """The cuts of a run, as commits, and the files that they name.

    Args:
        storage: Where they lie.
        spec: The job's; with it, checkpoints of training without a job are cuts, too.
    """

    def __init__(self, storage: CutStorage, spec: JobSpec | None = None) -> None:
        self.storage = storage
        self._spec = spec
        self._commits = storage.commits()
        self._writer: CommitWriter | None = None

    def numbers(self) -> list[int]:
        """Cuts whose manifest can be read, newest first.

        Raises:
            StorageError: They cannot be listed or read at this moment.
        """
        return [cut for cut, _ in self._committed()]

    def _committed(self) -> Iterator[tuple[int, Manifest]]:
        for found in self._manifests():
            if isinstance(found, Manifest):
                yield number_of(found), found

    def _manifests(self) -> Iterator[Manifest | CheckpointError]:
        with self.storage.explained():
            yield from self._commits.manifests()

    def begin(self) -> str:
        """What begins the keys of the next cut's files, at each attempt another.

        Who begins one becomes the one process that commits cuts; the one before commits no more.

        Raises:
            FencedError: Another process takes over at the same time.
            StorageError, RunFolderError: As for `save`.
        """
        return self._taken_over().part_prefix()

    def _taken_over(self) -> CommitWriter:
        if self._writer is None:
            self._commits = self._writer = self.storage.take_over()
        return self._writer

    def save(self, manifest: CutManifest) -> None:
        """Commits a cut; its files are durable before.

        Raises:
            FencedError: Another master has taken over.
            StorageError: The storage is not there.
            RunFolderError: The disk is full, or the folder cannot be written.
        """
        self.storage.require_there()
        parts = [Part(one.name, one.num_bytes, one.crc32) for one in manifest.files.all_files()]
        self._taken_over().commit(parts, _to_state(manifest))

    def load(self, cut: int) -> CutManifest:
        """A cut's manifest; its files are not looked at.

        Raises:
            CheckpointError: It is missing or damaged.
            StorageError: It cannot be read at this moment.
        """
        return self._decoded(self._commit_of(cut))

    def _commit_of(self, cut: int) -> Manifest:
        damages = []
        for found in self._manifests():
            if isinstance(found, CheckpointError):
                damages.append(found)
            elif number_of(found) == cut:
                return found
        self.storage.require_there()
        if damages:
            raise damages[0]
        raise CheckpointError(
            "there is no such checkpoint", place=f"{self.storage.address}, checkpoint {cut}"
        )

    def _decoded(self, commit: Manifest) -> CutManifest:
        if self._spec is not None and is_of_training(commit) and _FACTS not in commit.state:
            return self._adopted(commit, self._spec)
        return _of_state(commit, self._commits.place_of(commit.commit_id))

    def _adopted(self, commit: Manifest, spec: JobSpec) -> CutManifest:
        """The checkpoint of one process, or of replicas, as a cut of the job."""
        ends: dict[int, int] = {}
        for number, other in self._committed():
            if (ended := ended_epoch(other)) is not None:
                ends.setdefault(ended, number)
        number, training, given = number_of(commit), commit.state[TRAINING], files_of(commit)
        ledger = Ledger.of_training(training, ends, partial(plan_epoch, spec))
        frozen, epoch = frozen_without_job(ledger, number), ledger.last_epoch
        facts = CutFacts(
            cut=number,
            parent=0,
            generation=0,
            job=spec.job,
            config_fingerprint=spec.config_fingerprint,
            rows_fingerprint=training["rows_fingerprint"],
            plan_fingerprint=training["plan_fingerprint"],
            num_partitions=spec.num_partitions,
            num_parameter_servers=1,
            epoch=epoch,
            step=ledger.batches,
            best_cut=ledger.best_cut,
            taken_at=commit.state["taken_at"],
        )
        board: Any = frozen["board"]
        bitmaps = [] if board is None else [(task, mask) for task, mask, *_ in board["tasks"]]
        (whole,) = given.chains[0]
        files = CutFiles(
            partitions=tuple(
                PartitionFiles(partition, (replace(whole, partition=partition),), 0)
                for partition in range(spec.num_partitions)
            ),
            dense=given.dense,
            bitmaps=(tuple(TaskBitmap(epoch, task, mask) for task, mask in bitmaps),),
            versions=(0,),
        )
        return CutManifest(facts, files, frozen, training)

    @property
    def is_writer(self) -> bool:
        """Whether it has begun a cut."""
        return self._writer is not None

    def keys_of(self, manifest: CutManifest) -> list[str]:
        """Keys of the files that a cut rests on, and of its manifest."""
        commit = self._commit_of(manifest.facts.cut)
        return [*(part.key for part in commit.parts), manifest_key(commit.commit_id)]

    def check_files(self, manifest: CutManifest, *, read: bool) -> None:
        """Compares a cut's files with its manifest.

        Args:
            read: Compare checksums of their bytes too.

        Raises:
            CheckpointError: Names the first file that is missing or damaged.
            StorageError: Names the first that cannot be read at this moment.
        """
        # Of one process, all partitions name one file.
        for file in {file.name: file for file in manifest.files.all_files()}.values():
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
        for found in self._manifests():
            if isinstance(found, CheckpointError):
                reasons.append(f"a checkpoint: {found}")
                continue
            try:
                manifest = self._decoded(found)
                self.check_files(manifest, read=read)
            except CheckpointError as error:
                reasons.append(f"checkpoint {number_of(found)}: {error}")
            else:
                whole.append(manifest)
        return whole, reasons

    @contextmanager
    def pinned(
        self, manifest: CutManifest, *, clock: Callable[[], float] = time.time
    ) -> Iterator[None]:
        """Keeps a cut and its files from being deleted inside.

        A storage that this process may only read is read without a pin.

        Args:
            clock: Unix time, seconds.

        Raises:
            CheckpointError: It is gone already.
        """
        cut = manifest.facts.cut
        consumer, commit = f"cut-{cut}-{secrets.token_hex(8)}", self._commit_of(cut)
        is_there = is_written = True
        try:
            is_there = self._commits.pin(consumer, commit, until=clock() + PIN_SECONDS)
        except (StorageDeniedError, RunFolderError):
            is_written = False
        try:
            if not is_there:
                raise CheckpointError("is gone", place=f"{self.storage.address}, checkpoint {cut}")
            yield
        finally:
            if is_written:
                self._commits.unpin(consumer)

    def keep_only(self, cuts: Iterable[int]) -> dict[int, str]:
        """Deletes other cuts, and files that no kept one names and no reader has pinned.

        Cuts newer than all kept ones stay, and so do files that may still be written. If a kept cut
        proves damaged, nothing is deleted this time: an older one may be needed in its place.

        Returns:
            Kept cuts that are damaged, with why.

        Raises:
            StorageError, RunFolderError: Some files could not be read or deleted at this moment.
        """
        kept = set(cuts)
        if not kept:
            return {}
        writer = self._writer
        if writer is None:
            # Its own first cut comes before.
            return {}
        self.storage.require_there()
        committed = list(self._committed())
        damages: dict[int, str] = {}
        for cut in kept.difference(cut for cut, _ in committed):
            try:
                self.load(cut)
            except CheckpointError as error:
                damages[cut] = str(error)
        if damages:
            return damages
        newest = max(kept)
        writer.retain([one.commit_id for cut, one in committed if cut in kept or cut > newest])
        return {}


def _to_state(manifest: CutManifest) -> dict[str, Any]:
    return {
        NUMBER: manifest.facts.cut,
        STEP: manifest.facts.step,
        TRAINING: manifest.training,
        FILES: json.loads(encode(manifest.files)),
        _FACTS: json.loads(encode(manifest.facts)),
        "frozen": manifest.frozen,
    }


def _of_state(commit: Manifest, place: str) -> CutManifest:
    """What `_to_state` made; `place` as errors name it."""
    try:
        state = commit.state
        return CutManifest(
            decode(CutFacts, json.dumps(state[_FACTS]).encode()),
            decode(CutFiles, json.dumps(state[FILES]).encode()),
            state["frozen"],
            state[TRAINING],
        )
    except (KeyError, TypeError, MalformedMessage) as error:
        raise CheckpointError("is no checkpoint of a job", place=place) from error
