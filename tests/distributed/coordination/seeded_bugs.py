"""Bugs to be put in one at a time: each is one that systems of this kind have had.

A property test that finds none of these would find no other either. `job_world.Server` stands for
the parameter servers here; bugs of the real ones are in `tests/distributed/ps/server_bugs.py`.
"""

from collections.abc import Callable
from dataclasses import replace

from ctr_pipeline.distributed.coordination.events import AnswerLease
from ctr_pipeline.distributed.coordination.job import (
    Job,
    cuts,
    epochs,
    leases,
    lost_members,
    members,
    records,
    reports,
    restores,
    stalls,
)
from ctr_pipeline.distributed.coordination.job.head import JobHead
from ctr_pipeline.distributed.coordination.ledger import Ledger
from ctr_pipeline.distributed.coordination.messages import LeaseReply
from ctr_pipeline.distributed.coordination.task_board import TaskBoard
from ctr_pipeline.distributed.coordination.tasks import Task
from tests.distributed.coordination.job_world import Server, World

Patch = Callable[..., None]
"""`monkeypatch.setattr`."""


def reports_of_old_attempts_count(patch: Patch) -> None:
    original = reports.take_in

    def take_in(state, member, report, generation):
        board = state.board_of(report.key)
        if board is not None:
            report = replace(report, attempt=board.task(report.key).attempt)
        original(state, member, report, generation)

    patch(reports, "take_in", take_in)


def reports_of_old_generations_count(patch: Patch) -> None:
    original = reports.take_in

    def take_in(state, member, report, generation):
        original(state, member, report, state.head.generation)

    patch(reports, "take_in", take_in)


def servers_rolled_back_without_ledger(patch: Patch) -> None:
    patch(restores, "roll_ledger_back", lambda state, frozen: None)


def ledger_rolled_back_without_servers(patch: Patch) -> None:
    patch(
        Server, "restore", lambda self, generation, chain: setattr(self, "generation", generation)
    )


def ledger_frozen_after_the_snapshots(patch: Patch) -> None:
    original = World.__init__

    def begin(self, **arguments):
        original(self, **arguments)
        self.freeze_late = True

    patch(World, "__init__", begin)


def batches_applied_again(patch: Patch) -> None:
    patch(Server, "applies_once", False)


def marks_not_restored(patch: Patch) -> None:
    patch(Server, "restores_marks", False)


def servers_take_old_generations(patch: Patch) -> None:
    patch(Server, "fences_generations", False)


def rounds_keep_superseded_pushes(patch: Patch) -> None:
    patch(Server, "withdraws_superseded", False)


def generation_stays_at_rollback(patch: Patch) -> None:
    def stuck(self, value):
        self.__dict__["stuck"] = min(value, 1)

    number = property(lambda self: self.__dict__.get("stuck", 0), stuck)
    patch(JobHead, "generation", number)


def masks_replaced(patch: Patch) -> None:
    original = Task.count

    def count(self, report):
        if report.key.kind == "train":
            self.done_mask &= report.done_mask
        return original(self, report)

    patch(Task, "count", count)


def masks_lost_with_the_worker(patch: Patch) -> None:
    original = TaskBoard.release

    def release(self, key):
        original(self, key)
        self.task(key).done_mask = 0

    patch(TaskBoard, "release", release)


def done_tasks_leased_again(patch: Patch) -> None:
    original = TaskBoard.settle

    def settle(self, key):
        if self.task(key).holder and key.kind == "train" and key.task == 1:
            self.release(key)
        else:
            original(self, key)

    patch(TaskBoard, "settle", settle)


def lost_leases_forgotten(patch: Patch) -> None:
    patch(leases, "lost_leases", lambda queue, known: [])
    patch(stalls, "check_tasks", lambda state: None)


def standstill_never_seen(patch: Patch) -> None:
    patch(stalls, "check_tasks", lambda state: None)


def silence_never_heard(patch: Patch) -> None:
    patch(lost_members, "check", lambda state: None)


def leases_of_the_dead_kept(patch: Patch) -> None:
    original = TaskBoard.held_by
    patch(stalls, "check_tasks", lambda state: None)

    def lose(state, member, why):
        held_by = TaskBoard.held_by
        if member.role == "worker":
            TaskBoard.held_by = lambda self, incarnation: []  # type: ignore[method-assign]
        try:
            lose_original(state, member, why)
        finally:
            TaskBoard.held_by = held_by  # type: ignore[method-assign]

    lose_original = members.lose
    patch(TaskBoard, "held_by", original)
    patch(members, "lose", lose)


def waiting_workers_never_answered(patch: Patch) -> None:
    patch(leases, "answer_waiting", lambda state: None)


def waiting_workers_given_what_is_not_written(patch: Patch) -> None:
    original = Job._flush

    def flush(self):
        actions = original(self)
        return [*reversed(actions)] if any(type(one) is AnswerLease for one in actions) else actions

    patch(Job, "_flush", flush)


def deaths_count_as_failures(patch: Patch) -> None:
    original = members.lose

    def lose(state, member, why):
        for board in state.boards():
            for key, _ in board.held_by(member.incarnation):
                board.fail(key)
        original(state, member, why)

    patch(members, "lose", lose)


def unknown_workers_told_the_end(patch: Patch) -> None:
    original = Job.lease

    def lease(self, request, now, call=None):
        reply, actions = original(self, request, now, call)
        if request.generation != self.generation:
            reply = LeaseReply("end", self.generation, (), 0.0)
        return reply, actions

    patch(Job, "lease", lease)


def _write_heads_with(patch: Patch, **wrong: int) -> None:
    original = records.to_record

    def to_record(value):
        record = original(value)
        return {**record, **wrong} if isinstance(value, JobHead) else record

    patch(records, "to_record", to_record)


def attempts_forgotten_by_a_new_master(patch: Patch) -> None:
    _write_heads_with(patch, attempt=0)


def leases_not_durable(patch: Patch) -> None:
    original = TaskBoard._hold

    def hold(self, key, incarnation, attempt, now):
        original(self, key, incarnation, attempt, now)
        self._changed[key] = self.task(key), False

    patch(TaskBoard, "_hold", hold)
    patch(JobHead, "durable", JobHead.durable - {"attempt"})
    patch(JobHead, "lazy", JobHead.lazy | {"attempt"})


def ends_of_tasks_not_durable(patch: Patch) -> None:
    original = TaskBoard.settle

    def settle(self, key):
        task = self.task(key)
        original(self, key)
        self._changed[key] = task, False

    patch(TaskBoard, "settle", settle)


def numbers_of_cuts_forgotten(patch: Patch) -> None:
    _write_heads_with(patch, next_cut=1)


def deltas_after_a_failed_cut(patch: Patch) -> None:
    original = cuts.decide_full

    def decide(parent, *, chain_intact, full_every):
        return original(parent, chain_intact=True, full_every=full_every)

    patch(cuts, "decide_full", decide)


def any_cut_ends_the_epoch(patch: Patch) -> None:
    original = cuts.take_in

    def take_in(state, event):
        if state.head.phase == "cutting":
            state.pending_ends_epoch = True
        original(state, event)

    patch(cuts, "take_in", take_in)


def best_cut_not_pinned(patch: Patch) -> None:
    original = cuts.cuts_to_keep
    patch(
        cuts,
        "cuts_to_keep",
        lambda known, keep, pinned: tuple(original(known, keep, set()))[-1:],
    )


def last_epoch_scored_as_the_best(patch: Patch) -> None:
    original = epochs._end_training

    def end(state, reason):
        state.ledger.epoch_cuts[0] = state.newest_cut
        original(state, reason)

    patch(epochs, "_end_training", end)


def epochs_overlap(patch: Patch) -> None:
    is_over = TaskBoard.is_over

    def nearly(self):
        assert is_over.fget is not None
        return is_over.fget(self) or (self.num_over == self.num_tasks - 1 and not self.num_todo)

    patch(TaskBoard, "is_over", property(nearly))


def rolled_back_records_not_repeated(patch: Patch) -> None:
    patch(Ledger, "trained_by_epoch", lambda self: {})


def repeats_counted_with_every_report(patch: Patch) -> None:
    original = TaskBoard.count

    def count(self, key, report):
        return original(self, key, replace(report, repeated_mask=report.done_mask))

    patch(TaskBoard, "count", count)


def rounds_wait_for_workers_without_work(patch: Patch) -> None:
    def everyone(state):
        return tuple(
            f"{member.role}-{member.index}-{number}"
            for member in state.workers()
            for number in range(9)
        )

    patch(leases, "active_workers", everyone)


def decisions_count_after_a_stop(patch: Patch) -> None:
    original = epochs.take_in_decision

    def take_in(state, event):
        if state.is_deciding:
            state.head.phase = "validating"
        original(state, event)

    patch(epochs, "take_in_decision", take_in)


SEEDED_BUGS: tuple[Callable[[Patch], None], ...] = (
    reports_of_old_attempts_count,
    reports_of_old_generations_count,
    servers_rolled_back_without_ledger,
    ledger_rolled_back_without_servers,
    ledger_frozen_after_the_snapshots,
    batches_applied_again,
    marks_not_restored,
    servers_take_old_generations,
    rounds_keep_superseded_pushes,
    generation_stays_at_rollback,
    masks_replaced,
    masks_lost_with_the_worker,
    done_tasks_leased_again,
    lost_leases_forgotten,
    standstill_never_seen,
    silence_never_heard,
    leases_of_the_dead_kept,
    waiting_workers_never_answered,
    waiting_workers_given_what_is_not_written,
    deaths_count_as_failures,
    unknown_workers_told_the_end,
    attempts_forgotten_by_a_new_master,
    leases_not_durable,
    ends_of_tasks_not_durable,
    numbers_of_cuts_forgotten,
    deltas_after_a_failed_cut,
    any_cut_ends_the_epoch,
    best_cut_not_pinned,
    last_epoch_scored_as_the_best,
    epochs_overlap,
    rolled_back_records_not_repeated,
    repeats_counted_with_every_report,
    rounds_wait_for_workers_without_work,
    decisions_count_after_a_stop,
)
