"""Bugs to be put into the real parameter server one at a time; a property test must find each.

Those of the master, and of a double of the servers, are in `coordination/seeded_bugs.py`.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ctr_pipeline.distributed.coordination.rounds import Admission, Round
from ctr_pipeline.distributed.ps import server_state as server_state_module
from ctr_pipeline.distributed.ps import updates as updates_module
from ctr_pipeline.distributed.ps.applied_batches import AppliedBatches
from ctr_pipeline.distributed.ps.checkpoints import Checkpoints
from ctr_pipeline.distributed.ps.core import PsCore
from ctr_pipeline.distributed.ps.dense import DenseRange
from ctr_pipeline.distributed.ps.server_state import Cut, ServerState
from ctr_pipeline.distributed.ps.serving import Serving
from ctr_pipeline.distributed.ps.updates import Updates
from ctr_pipeline.distributed.rpc.packed import Status
from ctr_pipeline.embeddings import log_kernels
from ctr_pipeline.embeddings.rows import RowStorage
from ctr_pipeline.embeddings.snapshot import RowSnapshot

Patch = Callable[..., None]
"""`monkeypatch.setattr`."""


# Bitmaps of batches.


def batches_applied_again(patch: Patch) -> None:
    patch(AppliedBatches, "missing_units", lambda self, batch: np.ones(len(self.units), np.bool_))


def marks_not_in_cuts(patch: Patch) -> None:
    patch(Cut, "bitmaps", ())


def marks_not_restored(patch: Patch) -> None:
    original = AppliedBatches.restored

    def restored(spec, placement, server, request):
        return original(
            spec, placement, server, replace(request, bitmaps=tuple(() for _ in request.bitmaps))
        )

    patch(AppliedBatches, "restored", restored)


def marks_survive_a_rollback(patch: Patch) -> None:
    original = ServerState.restore

    def restore(self, request):
        before = self.applied
        original(self, request)
        for task, mask in before._masks.items():
            self.applied._masks[task] = self.applied._masks.get(task, 0) | mask

    patch(ServerState, "restore", restore)


def marks_of_the_first_server_taken_for_all(patch: Patch) -> None:
    patch(AppliedBatches, "_sources", lambda self, request, owners, ranges: [0] * len(self.units))


def marks_of_some_parts_taken_for_all(patch: Patch) -> None:
    patch(AppliedBatches, "_covers", lambda self, scope, unit: True)


def parts_taken_for_alike(patch: Patch) -> None:
    def unite(self, task):
        masks = self._masks_by_unit.pop(task)
        self._masks[task] = int(np.bitwise_or.reduce(masks))

    patch(AppliedBatches, "_unite", unite)


def parts_that_have_a_batch_get_it_again(patch: Patch) -> None:
    original = AppliedBatches.missing_units

    def missing_units(self, batch):
        found = original(self, batch)
        return np.full_like(found, found.any())

    patch(AppliedBatches, "missing_units", missing_units)


# Attempts, epochs, generations.


def earlier_attempts_served(patch: Patch) -> None:
    original = AppliedBatches.begin
    patch(AppliedBatches, "begin", lambda self, batch: original(self, replace(batch, attempt=9)))


def pulls_not_fenced(patch: Patch) -> None:
    original = Updates.pull
    patch(Updates, "pull", lambda self, request: original(self, replace(request, batch=None)))


def earlier_epochs_served(patch: Patch) -> None:
    original = AppliedBatches.begin
    patch(
        AppliedBatches,
        "begin",
        lambda self, batch: batch.epoch < self._epoch or original(self, batch),
    )


def earlier_generations_served(patch: Patch) -> None:
    original = Serving.gate
    patch(
        Serving, "gate", lambda self, generation: original(self, max(generation, self.generation))
    )


def later_generations_served(patch: Patch) -> None:
    original = Serving.gate

    def gate(self, generation):
        return None if generation > self.generation >= 0 else original(self, generation)

    patch(Serving, "gate", gate)


def served_while_restoring(patch: Patch) -> None:
    original = Serving.gate

    def gate(self, generation):
        return None if generation == self.announced else original(self, generation)

    patch(Serving, "gate", gate)


# Restores.


def older_restores_obeyed(patch: Patch) -> None:
    original = Checkpoints.restore

    def restore(self, request):
        self._serving.announced = min(self._serving.announced, request.generation)
        return original(self, request)

    patch(Checkpoints, "restore", restore)


def repeated_restores_start_over(patch: Patch) -> None:
    original = Checkpoints.restore

    def restore(self, request):
        if request.generation == self._serving.generation:
            self._serving.generation = -1
        return original(self, request)

    patch(Checkpoints, "restore", restore)


def rows_left_behind(patch: Patch) -> None:
    patch(RowStorage, "clear", lambda self: None)


def dense_values_left_behind(patch: Patch) -> None:
    original = ServerState.restore

    def restore(self, request):
        before = self._dense
        original(self, request)
        self._dense = self._dense or before

    patch(ServerState, "restore", restore)


def rows_of_other_servers_restored(patch: Patch) -> None:
    original = ServerState.restore

    def restore(self, request):
        take_place = self._take_place

        def take_all(placement):
            take_place(placement)
            self._partitions = tuple(range(self._spec.num_partitions))

        self._take_place = take_all
        original(self, request)
        self._take_place = take_place
        self._partitions = self.placement.partitions_of(self._index)

    patch(ServerState, "restore", restore)


def deltas_not_restored(patch: Patch) -> None:
    original = server_state_module.restore_rows
    patch(
        server_state_module,
        "restore_rows",
        lambda store, folder, chains, **facts: original(
            store, folder, [chain[:1] for chain in chains], **facts
        ),
    )


# Cuts.


def marks_of_a_later_moment(patch: Patch) -> None:
    patch(AppliedBatches, "copy", lambda self: self)


def dense_values_of_a_later_moment(patch: Patch) -> None:
    original = ServerState.write_cut

    def write_cut(self, request, cut):
        cut.dense = self._given_dense().copy()
        return original(self, request, cut)

    patch(ServerState, "write_cut", write_cut)


def dense_values_not_copied(patch: Patch) -> None:
    original = DenseRange.copy_values

    def copy_values(self):
        return self._pieces[0].values if len(self._pieces) == 1 else original(self)

    patch(DenseRange, "copy_values", copy_values)


def rows_of_a_later_moment(patch: Patch) -> None:
    def before_change(self, rows_U):
        log_kernels.mark_rows(rows_U, self._rows.marks_N, self._rows.era)

    patch(RowSnapshot, "before_change", before_change)


def changes_forgotten_while_a_cut_is_written(patch: Patch) -> None:
    original = RowSnapshot.finish

    def finish(self, writer):
        files = original(self, writer)
        self._rows.marks_N[: self._rows.num_rows] = 0
        return files

    patch(RowSnapshot, "finish", finish)


def changes_forgotten_between_cuts(patch: Patch) -> None:
    original = RowStorage.before_change

    def before_change(self, rows_U):
        if self.observer is not None:
            original(self, rows_U)

    patch(RowStorage, "before_change", before_change)


def deltas_to_a_cut_that_was_given_up(patch: Patch) -> None:
    def begin_cut(self, request, snapshot):
        snapshot.begin(full=request.full)
        return Cut(snapshot, self._given_dense().copy(), self.applied.copy())

    patch(ServerState, "begin_cut", begin_cut)


def deltas_after_a_cut_that_failed(patch: Patch) -> None:
    original = RowSnapshot.begin

    def begin(self, **arguments):
        before = self._rows.delta_after
        original(self, **arguments)
        self._rows.delta_after = before

    patch(RowSnapshot, "begin", begin)


def repeated_request_takes_another_cut(patch: Patch) -> None:
    original = Checkpoints.snapshot

    def snapshot(self, request):
        self._last_cut = None
        return original(self, request)

    patch(Checkpoints, "snapshot", snapshot)


# Rounds of synchronous mode.


def superseded_pushes_kept(patch: Patch) -> None:
    original = Updates._withdraw

    def withdraw(self, batch, status):
        if status is not Status.SUPERSEDED:
            original(self, batch, status)

    patch(Updates, "_withdraw", withdraw)


def pushes_kept_over_a_rollback(patch: Patch) -> None:
    original = Updates._withdraw

    def withdraw(self, batch, status):
        if status is not Status.ROLLED_BACK:
            original(self, batch, status)

    patch(Updates, "_withdraw", withdraw)


def withdrawn_pushes_applied(patch: Patch) -> None:
    original = Updates._withdraw

    def withdraw(self, batch, status):
        waiting = self._waiting[batch]
        original(self, batch, status)
        self._apply([waiting.gradients])

    patch(Updates, "_withdraw", withdraw)


def withdrawn_pushes_fill_the_round(patch: Patch) -> None:
    patch(Round, "left_by", lambda self, batch: self)


def repeated_calls_join_again(patch: Patch) -> None:
    def joined_by(self, worker, batch):
        return replace(self, members=(*self.members, (worker, batch)))

    class Forgetful(dict):
        def get(self, _batch):
            return None

    original = Updates.__init__

    def begin(self, *arguments, **options):
        original(self, *arguments, **options)
        self._waiting = Forgetful()

    patch(Round, "joined_by", joined_by)
    patch(Updates, "__init__", begin)


def some_members_of_a_round_dropped(patch: Patch) -> None:
    original = Updates._apply
    patch(Updates, "_apply", lambda self, batches: original(self, batches[:2]))


def members_of_a_round_applied_one_by_one(patch: Patch) -> None:
    original = Updates._apply

    def apply(self, batches):
        for batch in batches:
            original(self, [batch])

    patch(Updates, "_apply", apply)


def members_of_a_round_not_marked(patch: Patch) -> None:
    original = ServerState.apply

    def apply(self, batches):
        bitmaps = dict(self.applied._masks)
        found = original(self, batches)
        if len(batches) > 1:
            self.applied._masks = bitmaps
        return found

    patch(ServerState, "apply", apply)


def rounds_close_too_early(patch: Patch) -> None:
    patch(Round, "is_complete", lambda self, rule, active: bool(self.members))


def rounds_wait_for_the_dead(patch: Patch) -> None:
    patch(
        Round,
        "is_complete",
        lambda self, rule, active: len(self.members) >= rule.grads_to_wait,
    )


def news_of_the_dead_close_no_round(patch: Patch) -> None:
    patch(Updates, "set_active_workers", lambda self, incarnations: None)


def rounds_wait_for_who_waits_elsewhere(patch: Patch) -> None:
    patch(Round, "excusing", lambda self, worker: self)


def excuses_outlive_their_round(patch: Patch) -> None:
    original = Updates._close_complete_round

    def close(self):
        excused = self._round.excused
        original(self)
        self._round = replace(self._round, excused=self._round.excused | excused)

    patch(Updates, "_close_complete_round", close)


def late_pushes_weigh_as_much(patch: Patch) -> None:
    patch(updates_module, "admit_push", lambda rule, **versions: Admission("join", 1.0))


def timeout_never_ends(patch: Patch) -> None:
    original = PsCore.__init__

    def begin(self, *arguments, **options):
        original(self, *arguments, **{**options, "round_timeout_seconds": float("1e6")})

    patch(PsCore, "__init__", begin)


BUGS_OF_SERVERS: tuple[Callable[[Patch], None], ...] = (
    batches_applied_again,
    marks_not_in_cuts,
    marks_not_restored,
    marks_survive_a_rollback,
    marks_of_the_first_server_taken_for_all,
    marks_of_some_parts_taken_for_all,
    parts_taken_for_alike,
    parts_that_have_a_batch_get_it_again,
    earlier_attempts_served,
    pulls_not_fenced,
    earlier_epochs_served,
    earlier_generations_served,
    later_generations_served,
    served_while_restoring,
    older_restores_obeyed,
    repeated_restores_start_over,
    rows_left_behind,
    dense_values_left_behind,
    rows_of_other_servers_restored,
    deltas_not_restored,
    marks_of_a_later_moment,
    dense_values_of_a_later_moment,
    rows_of_a_later_moment,
    changes_forgotten_while_a_cut_is_written,
    changes_forgotten_between_cuts,
    deltas_to_a_cut_that_was_given_up,
    deltas_after_a_cut_that_failed,
    repeated_request_takes_another_cut,
)

BUGS_OF_ROUNDS: tuple[Callable[[Patch], None], ...] = (
    superseded_pushes_kept,
    pushes_kept_over_a_rollback,
    withdrawn_pushes_applied,
    withdrawn_pushes_fill_the_round,
    repeated_calls_join_again,
    some_members_of_a_round_dropped,
    members_of_a_round_applied_one_by_one,
    members_of_a_round_not_marked,
    rounds_close_too_early,
    rounds_wait_for_the_dead,
    news_of_the_dead_close_no_round,
    rounds_wait_for_who_waits_elsewhere,
    excuses_outlive_their_round,
    late_pushes_weigh_as_much,
    timeout_never_ends,
)
