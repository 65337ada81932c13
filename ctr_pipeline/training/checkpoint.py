"""Checkpoints of training on one machine: commits to a storage, each either whole or absent.

The state is in the manifest, the parameters are in parts. Training resumes from the newest whole
one; damage is detected before anything is loaded.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any

from ctr_pipeline.errors import CheckpointError, CtrPipelineError
from ctr_pipeline.storage.commit_log import CommitReader, CommitWriter
from ctr_pipeline.storage.commits import CommitId, Manifest, Part
from ctr_pipeline.storage.protocol import Storage, StorageAwayError


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint, whose parts were whole when it was loaded."""

    manifest: Manifest
    commits: CommitReader = field(repr=False, compare=False)

    @property
    def state(self) -> Mapping[str, Any]:
        """State of the trainer, as JSON."""
        return self.manifest.state

    @property
    def step(self) -> int:
        """Steps done when it was taken."""
        return int(self.state["step"])

    def open(self, name: str) -> IO[bytes]:
        """Opens a part to be read.

        Raises:
            CheckpointError: There is none of this name.
        """
        for part in self.manifest.parts:
            if part.name == name:
                return self.commits.open_part(part)
        raise CheckpointError(
            f"has no '{name}'", place=self.commits.place_of(self.manifest.commit_id)
        )


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
        self, state: Mapping[str, Any], writers: Mapping[str, Callable[[IO[bytes]], None]]
    ) -> Checkpoint:
        """Writes a checkpoint; of several of one step the last one counts.

        Args:
            state: As JSON; its `step` is the steps done.
            writers: What writes each part, by name.

        Raises:
            FencedError: Another process saves checkpoints here.
            RunFolderError: The disk is full or read-only; earlier checkpoints are untouched.
        """
        if self._writer is None:
            self._commits = self._writer = CommitWriter(self._storage)
        writer = self._writer
        parts: list[Part] = []
        try:
            for name, write in writers.items():
                with writer.create_part(name) as file:
                    write(file)
                parts.append(file.part)
            return Checkpoint(writer.commit(parts, state), writer)
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

    def load_newest(self, log: Callable[[str], None]) -> Checkpoint | None:
        """Verifies the newest whole checkpoint and warns of damaged ones that it skips.

        Returns:
            The checkpoint; None if there is none at all.

        Raises:
            CheckpointError: There are checkpoints, and all of them are damaged.
        """
        newest: CheckpointError | None = None
        for commit_id in self._commits.commit_ids():
            try:
                manifest = self._commits.manifest(commit_id)
                if manifest is not None:
                    return self._verified(manifest)
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
            found.setdefault(int(manifest.state["step"]), manifest)
        return found

    def _readable(self) -> Iterator[Manifest]:
        for commit_id in self._commits.commit_ids():
            if commit_id in self._passed_over:
                continue
            try:
                manifest = self._commits.manifest(commit_id)
            except CheckpointError:
                continue
            if manifest is not None:
                yield manifest

    def _verified(self, manifest: Manifest) -> Checkpoint:
        for part in manifest.parts:
            self._commits.verify_part(part)
        return Checkpoint(manifest, self._commits)
