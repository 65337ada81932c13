"""Checkpoints of training: commits to a storage, each either whole or absent.

The state is in the manifest, the parameters are in parts. Training resumes from the newest whole
one; damage is detected before anything is loaded. One process, the first of several replicas and
the master of a job commit to the same storage, one after another, so each goes on from what another
one has written.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import IO, Any

from ctr_pipeline.embeddings.cut_storage import CutStorage
from ctr_pipeline.embeddings.log_chain import CutFile, ParameterFiles
from ctr_pipeline.errors import CheckpointError, CtrPipelineError
from ctr_pipeline.storage.commit_log import CommitReader, CommitWriter
from ctr_pipeline.storage.commits import CommitId, Manifest, Part, manifest_key
from ctr_pipeline.storage.protocol import Storage, StorageAwayError

NUMBER, STEP, TRAINING, FILES = "number", "step", "training", "files"
"""Keys of a commit: which checkpoint it is; steps done; where training stands; its files."""


def number_of(manifest: Manifest) -> int:
    """Which checkpoint a commit is; 0: none."""
    number = manifest.state.get(NUMBER, 0)
    return number if isinstance(number, int) else 0


def is_of_training(manifest: Manifest) -> bool:
    """Whether any kind of training can go on from it.

    From a checkpoint that was taken while batches were on their way to several servers only a job
    can: it knows what each of them had applied.
    """
    return isinstance(manifest.state.get(TRAINING), dict)


def ended_epoch(manifest: Manifest) -> int | None:
    """The epoch, from 0, at whose end a commit was made; None: it was not at one."""
    if not is_of_training(manifest):
        return None
    place = manifest.state[TRAINING]["position"]
    is_end = place["epoch"] and not place["task"] and not place["batch"]
    return int(place["epoch"]) - 1 if is_end else None


def newest_number(storage: Storage) -> int:
    """The newest readable checkpoint in a storage; 0: there is none."""
    return next(map(number_of, _readable(storage)), 0)


def newest_step(storage: Storage) -> int | None:
    """Steps of the newest readable checkpoint in a storage; None: there is none."""
    return next((int(one.state[STEP]) for one in _readable(storage)), None)


def _readable(storage: Storage) -> Iterator[Manifest]:
    return (one for one in CommitReader(storage).manifests() if isinstance(one, Manifest))


def require_to_go_on(storage: Storage) -> None:
    """Refuses checkpoints that only a job can go on from.

    Raises:
        CheckpointError: There are such, and no others.
    """
    found = list(_readable(storage))
    if found and not any(map(is_of_training, found)):
        raise CheckpointError(
            "all checkpoints were taken while batches were on their way to several servers, so "
            "only several processes can go on from them",
            place=storage.address,
            remedy="Resume as it was begun until the end of an epoch or 'ctrpipe stop', or give "
            "--overwrite to start anew",
        )


def files_of(manifest: Manifest) -> ParameterFiles:
    """Files of the parameters of a commit.

    Raises:
        CheckpointError: It does not say.
    """
    try:
        found = manifest.state[FILES]
        return ParameterFiles(
            chains=tuple(
                tuple(CutFile(**file) for file in chain["files"]) for chain in found["partitions"]
            ),
            dense=tuple(CutFile(**file) for file in found["dense"]),
            trained_by=len(found["versions"]),
        )
    except (KeyError, TypeError) as error:
        raise CheckpointError(
            "does not say where its parameters are", place=manifest_key(manifest.commit_id)
        ) from error


def _describe_files(rows: Part, dense: Part, num_dense: int) -> dict[str, Any]:
    whole = CutFile(rows.key, rows.num_bytes, rows.crc32, 0, 0, "whole", 0)
    given = CutFile(dense.key, dense.num_bytes, dense.crc32, num_dense, -1, "dense", 0)
    return {
        "partitions": [{"files": [asdict(whole)]}],
        "dense": [asdict(given)] if num_dense else [],
        "versions": [0],
    }


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint, whose parts were whole when it was loaded."""

    manifest: Manifest
    commits: CommitReader = field(repr=False, compare=False)

    @property
    def state(self) -> Mapping[str, Any]:
        """State of the trainer, as JSON."""
        state: Mapping[str, Any] = self.manifest.state[TRAINING]
        return state

    @property
    def number(self) -> int:
        """The checkpoint's number; later ones have higher numbers."""
        return number_of(self.manifest)

    @property
    def storage(self) -> CutStorage:
        """Where its files are."""
        return CutStorage(self.commits.storage)

    @property
    def files(self) -> ParameterFiles:
        """Files of its parameters."""
        return files_of(self.manifest)

    @property
    def step(self) -> int:
        """Steps done when it was taken."""
        return int(self.manifest.state[STEP])


class Checkpoints:
    """All checkpoints of a training. Whoever saves one first becomes the one process that does.

    Args:
        storage: Holds nothing else.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._commits = CommitReader(storage)
        self._writer: CommitWriter | None = None
        self._passed_over: set[CommitId] = set()

    def save(
        self,
        state: Mapping[str, Any],
        *,
        rows: Callable[[IO[bytes]], None],
        dense: Callable[[IO[bytes]], None],
        num_dense: int,
    ) -> Checkpoint:
        """Writes a checkpoint; of several of one step the last one counts.

        Args:
            state: As JSON; its `step` is the steps done.
            rows: Writes the embedding rows, as of `row_file`.
            dense: Writes the dense parameters, as of `DenseParameters`.
            num_dense: How many there are.

        Raises:
            FencedError: Another process saves checkpoints here.
            RunFolderError: The disk is full or read-only; earlier checkpoints are untouched.
        """
        if self._writer is None:
            self._commits = self._writer = CommitWriter(self._storage)
        writer = self._writer
        parts: list[Part] = []
        try:
            for name, write in (("rows.bin", rows), ("dense.bin", dense)):
                with writer.create_part(name) as file:
                    write(file)
                parts.append(file.part)
            before = (one for one in writer.manifests() if isinstance(one, Manifest))
            content = {
                NUMBER: 1 + next(map(number_of, before), 0),
                STEP: state["step"],
                "taken_at": time.time(),
                TRAINING: state,
                FILES: _describe_files(parts[0], parts[1], num_dense),
            }
            return Checkpoint(writer.commit(parts, content), writer)
        except StorageAwayError:
            raise  # It may have been committed.
        except CtrPipelineError:
            writer.discard(parts)
            raise

    def steps(self) -> list[int]:
        """Steps of all checkpoints with a readable manifest, in ascending order."""
        return sorted(self._by_step())

    def load(self, step: int) -> Checkpoint:
        """Verifies one checkpoint.

        Raises:
            CheckpointError: It is absent or damaged.
        """
        manifest = self._by_step().get(step)
        if manifest is None:
            raise CheckpointError(
                f"has no readable manifest of step {step}", place=self._storage.address
            )
        return self._verified(manifest)

    def load_epoch(self, epoch: int, *, newest: Checkpoint | None = None) -> Checkpoint:
        """Verifies the last one at the end of an epoch.

        Args:
            epoch: From 0.
            newest: Verified already; it is not read again if it is the one.

        Raises:
            CheckpointError: There is none, or it is damaged.
        """
        if newest is not None and ended_epoch(newest.manifest) == epoch:
            return newest
        for manifest in self._readable():
            if ended_epoch(manifest) == epoch:
                return self._verified(manifest)
        raise CheckpointError(
            f"has no readable checkpoint of the end of epoch {epoch + 1}",
            place=self._storage.address,
        )

    def load_newest(self, log: Callable[[str], None]) -> Checkpoint | None:
        """Verifies the newest whole checkpoint and warns of damaged ones that it skips.

        Returns:
            The checkpoint; None if there is none at all.

        Raises:
            CheckpointError: There are checkpoints, and all of them are damaged.
        """
        newest: CheckpointError | None = None
        for found in self._commits.manifests():
            try:
                if isinstance(found, CheckpointError):
                    raise found
                if is_of_training(found):
                    return self._verified(found)
            except CheckpointError as error:
                log(f"Skipping a checkpoint: {error}")
                newest = newest or error
        if newest is not None:
            raise CheckpointError(
                f"all checkpoints are damaged, the newest: {newest.message}",
                place=newest.place,
                remedy="Run 'ctrpipe run' with --overwrite to train from the start",
            )
        return None

    def go_on_from(self, checkpoint: Checkpoint) -> None:
        """Later ones were passed over: `retain` does not count them, and deletes them."""
        commit_ids = self._commits.commit_ids()
        self._passed_over = {
            commit_id for commit_id in commit_ids if commit_id > checkpoint.manifest.commit_id
        }

    def retain(self, keep: int, pinned: int | None) -> None:
        """Deletes all but those of the newest `keep` steps and of the pinned step.

        Raises:
            FencedError: Another process saves checkpoints here.
        """
        if self._writer is None:
            return
        found = self._by_step()
        kept = {*list(found)[:keep], pinned}
        self._writer.retain([one.commit_id for step, one in found.items() if step in kept])

    def _by_step(self) -> dict[int, Manifest]:
        """The last one of each step, the newest first."""
        found: dict[int, Manifest] = {}
        for manifest in self._readable():
            found.setdefault(int(manifest.state[STEP]), manifest)
        return found

    def _readable(self) -> Iterator[Manifest]:
        for found in self._commits.manifests():
            if (
                isinstance(found, Manifest)
                and found.commit_id not in self._passed_over
                and is_of_training(found)
            ):
                yield found

    def _verified(self, manifest: Manifest) -> Checkpoint:
        for part in manifest.parts:
            self._commits.verify_part(part)
        return Checkpoint(manifest, self._commits)
