"""Takes and restores cuts: asks the parameter servers, reads and writes manifests."""

import logging
from collections.abc import Callable, Sequence

from ctr_pipeline.distributed.coordination.claims import TaskRanges, tasks_over, unproven
from ctr_pipeline.distributed.coordination.events import (
    CutContradicted,
    CutDamaged,
    CutFailed,
    CutTaken,
    RestoreCut,
    RestoreDone,
    RestoreFailed,
    RestoreFailure,
    TakeCut,
)
from ctr_pipeline.distributed.coordination.messages import (
    RestoreReply,
    RestoreRequest,
    SnapshotReply,
    SnapshotRequest,
)
from ctr_pipeline.distributed.coordination.placement import Placement
from ctr_pipeline.distributed.coordination.spec import JobSpec
from ctr_pipeline.distributed.master.manifests import (
    CutFacts,
    CutManifest,
    Cuts,
    chain_files,
    describe_training,
)
from ctr_pipeline.distributed.master.server_calls import (
    CallAbandonedError,
    ServerCalls,
    ServerRefusedError,
)
from ctr_pipeline.distributed.master.status import NO_CUT, NewestCut
from ctr_pipeline.distributed.rpc.failures import PeerUnavailable
from ctr_pipeline.embeddings.eviction import oldest_step_kept
from ctr_pipeline.embeddings.log_chain import needs_base
from ctr_pipeline.errors import CheckpointError, CtrPipelineError, RunFolderError, StorageError

_LOGGER = logging.getLogger(__name__)


class CutKeeper:
    """Cuts of one job, one at a time; for one thread.

    Args:
        calls: To the parameter servers.
        deadline_seconds: For a server to write or read its part.
        wall_clock: Unix time, seconds.
        require_own: Raises a StorageError where another process has taken over the run.
    """

    def __init__(
        self,
        spec: JobSpec,
        cuts: Cuts,
        calls: ServerCalls,
        *,
        deadline_seconds: float,
        wall_clock: Callable[[], float],
        require_own: Callable[[], None] = lambda: None,
    ) -> None:
        self._spec = spec
        self._cuts = cuts
        self._calls = calls
        self._deadline_seconds = deadline_seconds
        self._wall_clock = wall_clock
        self._require_own = require_own
        # The epoch of the cut that servers hold or follow, and its tasks that are over.
        self._shown: tuple[int, TaskRanges] = (0, ())

    def take(
        self,
        action: TakeCut,
        addresses: Sequence[str],
        placement: Placement,
        *,
        abandoned: Callable[[], bool],
        fence: Callable[[], None],
    ) -> CutTaken | CutFailed | CutContradicted:
        """Takes a cut: snapshots of all servers in parallel, then the manifest.

        Args:
            action: Which.
            addresses: Addresses of the servers, by number.
            placement: Which of them holds what.
            abandoned: Whether the cut is of no use any more.
            fence: Raises if this master may not write any more; called before its first cut, and
                before each manifest.
        """
        try:
            self._cuts.storage.require_there()
            if not self._cuts.is_writer:
                # Whoever begins a cut keeps the one before from ending one.
                fence()
                self._require_own()
            prefix = self._cuts.begin()
            parent = self._cuts.load(action.parent) if action.parent else None
            # Deltas that have outgrown their base end sooner than the schedule says.
            full = action.full or (
                parent is not None and needs_base(entry.files for entry in parent.files.partitions)
            )
            request = SnapshotRequest(
                action.generation,
                action.cut,
                action.parent,
                full,
                self._oldest_step(action),
                *self._shown,
                placement.version,
                prefix,
            )
            replies = self._calls.call_all(
                "Snapshot",
                addresses,
                request,
                SnapshotReply,
                deadline_seconds=self._deadline_seconds,
                abandoned=abandoned,
            )
            for number, reply in enumerate(replies):
                if reply.refused:
                    reason = f"parameter server {number}: {reply.refused}"
                    raise (StorageError if reply.of_storage else ServerRefusedError)(reason)
            missing = unproven(action.claims, [reply.bitmaps for reply in replies], action.epoch)
            if missing:
                return CutContradicted(action.cut, missing)
            facts = self._facts(action, placement)
            files = chain_files(facts, parent, replies, action.frozen)
            training = describe_training(self._spec, facts, files, action.frozen)
            manifest = CutManifest(facts, files, action.frozen, training)
            self._cuts.check_files(manifest, read=False)
            fence()
            self._require_own()
            self._cuts.save(manifest)
        except CallAbandonedError:
            return CutFailed(action.cut, "the job went back to an earlier checkpoint meanwhile")
        except (StorageError, RunFolderError) as error:
            return CutFailed(action.cut, str(error), of_storage=True)
        except (CtrPipelineError, ServerRefusedError) as error:
            return CutFailed(action.cut, str(error))
        self._shown = tasks_over(action.frozen)
        return CutTaken(action.cut, max(reply.pause_seconds for reply in replies))

    def restore(
        self,
        action: RestoreCut,
        addresses: Sequence[str],
        placement: Placement,
        *,
        abandoned: Callable[[], bool],
    ) -> tuple[RestoreDone | RestoreFailed, NewestCut | None]:
        """Tells all servers to hold a cut.

        Args:
            action: Which.
            addresses: Addresses of the servers, by number.
            placement: Which of them holds what from then on.
            abandoned: Whether the job wants another cut by now.

        Returns:
            The outcome, and what was restored if it was.
        """

        def failed(
            reason: object, cause: RestoreFailure, announced: int = 0
        ) -> tuple[RestoreFailed, None]:
            text = str(reason)
            return RestoreFailed(action.generation, action.cut, text, cause, announced), None

        manifest: CutManifest | None = None
        request = RestoreRequest(action.generation, 0, (), (), (), placement=placement)
        if not action.cut and self._spec.earlier_steps:
            reason = "no checkpoint is left, and the job began with parameters of an earlier run"
            return failed(reason, "damage")
        try:
            if action.cut:
                manifest = self._cuts.load(action.cut)
                require_same_job(manifest, self._spec)
                self._cuts.check_files(manifest, read=False)
                request = manifest.restore_request(action.generation, placement)
        except StorageError as error:
            return failed(error, "storage")
        except CheckpointError as error:
            return failed(error, "damage")
        try:
            replies = self._calls.call_all(
                "Restore",
                addresses,
                request,
                RestoreReply,
                deadline_seconds=self._deadline_seconds,
                abandoned=abandoned,
            )
        except CallAbandonedError:
            return failed("another checkpoint is wanted by now", "server")
        except (PeerUnavailable, ServerRefusedError) as error:
            return failed(error, "server")
        announced = max(reply.announced for reply in replies)
        for number, reply in enumerate(replies):
            if reply.refused:
                reason = f"parameter server {number}: {reply.refused}"
                if announced:
                    return failed(reason, "outrun", announced)
                return failed(reason, "damage" if reply.damaged else "storage")
        self._shown = (0, ())
        if manifest is None:
            return RestoreDone(action.generation, 0, {}), NO_CUT
        return (
            RestoreDone(action.generation, action.cut, manifest.frozen),
            NewestCut(action.cut, manifest.facts.step, manifest.facts.taken_at),
        )

    def keep_only(self, cuts: Sequence[int]) -> tuple[CutDamaged, ...]:
        """Deletes other cuts and files that none of these needs; says so if it cannot.

        Returns:
            Cuts among these that proved damaged.
        """
        try:
            self._require_own()
            damages = self._cuts.keep_only(cuts)
        except (RunFolderError, StorageError) as error:
            _LOGGER.warning("old checkpoints cannot be deleted: %s", error)
            return ()
        return tuple(CutDamaged(cut, reason) for cut, reason in damages.items())

    def _oldest_step(self, action: TakeCut) -> int:
        """Which rows a cut removes first: the same on all servers, and if it is tried again."""
        if not action.ends_epoch:
            return 0
        return oldest_step_kept(self._spec.earlier_steps + action.step, self._spec.rows.evict_after)

    def _facts(self, action: TakeCut, placement: Placement) -> CutFacts:
        spec = self._spec
        return CutFacts(
            cut=action.cut,
            parent=action.parent,
            generation=action.generation,
            job=spec.job,
            config_fingerprint=spec.config_fingerprint,
            rows_fingerprint=spec.rows_fingerprint,
            plan_fingerprint=spec.plan_fingerprint,
            num_partitions=spec.num_partitions,
            num_parameter_servers=placement.num_servers,
            epoch=action.epoch,
            step=action.step,
            best_cut=action.best_cut,
            taken_at=self._wall_clock(),
            placement=placement,
        )


def require_same_job(manifest: CutManifest, spec: JobSpec) -> None:
    """Refuses a cut that was taken with another model or other rows.

    Raises:
        CheckpointError: Says what differs.
    """
    facts = manifest.facts
    for found, ours, what in (
        (facts.config_fingerprint, spec.config_fingerprint, "another configuration"),
        (facts.rows_fingerprint, spec.rows_fingerprint, "other training rows"),
        (facts.plan_fingerprint, spec.plan_fingerprint, "other transforms"),
        (facts.num_partitions, spec.num_partitions, "another number of partitions"),
    ):
        if found != ours:
            raise CheckpointError(
                f"was taken with {what}",
                place=f"checkpoint {facts.cut}",
                remedy="Resume with what the job was begun with, or start anew with --overwrite",
            )
