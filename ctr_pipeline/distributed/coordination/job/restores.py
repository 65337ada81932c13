"""Going back to a cut: when servers were lost, when files are damaged or out of reach."""

from typing import assert_never

from ctr_pipeline.distributed.coordination.events import (
    Json,
    RestoreCut,
    RestoreDone,
    RestoreFailed,
)
from ctr_pipeline.distributed.coordination.job.state import JobState
from ctr_pipeline.distributed.coordination.ledger import Ledger

_RESTORE_RETRY_SECONDS = 1.0
_MAX_RESTORE_FAILURES = 5


def begin_if_due(state: JobState) -> None:
    """Has the parameter servers load the cut to go back to, once all are there."""
    waits = state.restore_in_flight or state.now < state.restore_retry_at
    if waits or not all(state.ps_addresses):
        return
    state.head.generation += 1
    state.restore_in_flight = True
    state.enter("restoring")
    state.actions.append(RestoreCut(state.cut_to_restore(), state.head.generation))


def roll_back(state: JobState) -> None:
    """Everything since the last cut is void; the ledger follows when the servers have."""
    state.head.generation += 1
    state.head.is_restored = state.restore_in_flight = state.is_deciding = False
    state.pending_cut = None
    state.move_schedule.give_up()
    state.cut_schedule.start_over(state.now)
    state.release_all()
    if not state.head.training_over:
        state.end_scoring()
    state.begin_recovery()
    # A job that stops does so without its servers: it can go on from its last cut.
    if state.head.phase not in {"waiting", "stopping"}:
        state.head.phase = "restoring"


def end_storage_wait(state: JobState) -> None:
    """Checkpoints were read or written."""
    seconds = state.storage.end(state.now)
    if seconds is not None:
        what = "checkpoints can be read and written again"
        state.announce(what, "", seconds, topic="checkpoint")


def fail_for_storage(state: JobState, more: str) -> None:
    """The job has waited for storage as long as it may."""
    last = state.newest_cut
    where = (
        f"goes on from checkpoint {last}" if last else "begins anew, as there is no checkpoint yet"
    )
    state.fail(
        f"storage could not be used for {state.settings.supervision.storage_timeout_seconds:g} s: "
        f"{state.storage.reason}. Nothing that was saved is lost: once it is back, --resume "
        f"{where}; {more}"
    )


def _is_awaited(state: JobState, generation: int) -> bool:
    return (
        state.restore_in_flight
        and state.head.phase == "restoring"
        and generation == state.head.generation
    )


def take_in(state: JobState, event: RestoreDone) -> None:
    """Parameter servers hold a cut, or the beginning."""
    if not _is_awaited(state, event.generation):
        return
    state.restore_in_flight = False
    state.restore_failures = 0
    end_storage_wait(state)
    state.claims.forget()
    state.head.is_restored = state.head.chain_intact = True
    state.cut_schedule.start_over(state.now)
    state.counted_since_cut = False
    state.rows_rolled_back = 0
    if state.head.training_over:
        _name_restored_epoch(state, event.cut)
    else:
        roll_ledger_back(state, event.frozen)
    state.head.phase = "waiting"


def _name_restored_epoch(state: JobState, cut: int) -> None:
    """The best epoch is one whose cut is left."""
    ledger = state.ledger
    if ledger.best_epoch is None or ledger.best_cut == cut:
        return
    for epoch, of_epoch in ledger.epoch_cuts.items():
        if of_epoch == cut:
            ledger.best_epoch = epoch


def roll_ledger_back(state: JobState, frozen: Json) -> None:
    """The ledger counts what a cut holds; how often tasks failed is not forgotten."""
    before, failures = state.ledger, {}
    repeated = state.repeated()
    if before.board is not None:
        failures = {key: task.failures for key, task in before.board.touched()}
    state.ledger = Ledger.thaw(frozen, state.settings.plan_epoch)
    again = before.rows_beyond(state.ledger)
    state.rows_rolled_back = sum(again.values())
    for epoch, rows in again.items():
        repeated[epoch] = repeated.get(epoch, 0) + rows
    state.head.repeated = repeated
    # Failures belong to the task, not to the model.
    board = state.ledger.board
    for key, count in failures.items():
        if count and board is not None and key in board:
            board.remember_failures(key, count)


def take_in_failure(state: JobState, event: RestoreFailed) -> None:
    """Parameter servers did not load a cut."""
    if not _is_awaited(state, event.generation):
        return
    state.restore_in_flight = False
    what = f"checkpoint {event.cut} cannot be restored: {event.reason}"
    match event.cause:
        case "damage":
            _use_cut_before(state, event.cut, what)
        case "storage":
            _wait_for_storage(state, what)
        case "outrun":
            # The ledger was lost, and an older one or none took its place.
            state.head.generation = max(state.head.generation, event.announced)
            _retry(state, what, _RESTORE_RETRY_SECONDS)
        case "server":
            _retry(state, what, _RESTORE_RETRY_SECONDS)
        case _:
            assert_never(event.cause)


def _use_cut_before(state: JobState, cut: int, what: str) -> None:
    others = set(state.cuts) - {cut}
    before = state.cut_to_restore(others)
    state.restore_retry_at = state.now
    if not before:
        whole = " of a whole epoch" if state.head.training_over else ""
        # It stays known, so that nothing begins anew unless a person says so.
        state.fail(f"no checkpoint{whole} is left: {what}; --overwrite begins anew")
        return
    state.forget_cut(cut)
    done = f"checkpoint {before} is used"
    if state.head.training_over:
        # Scores of two models are no scores of one.
        state.end_scoring()
        epochs = {of: epoch for epoch, of in state.ledger.epoch_cuts.items()}
        done += f", of epoch {epochs[before] + 1}"
    state.announce(what, done, topic="checkpoint")


def _wait_for_storage(state: JobState, what: str) -> None:
    now = state.now
    state.storage.fail(now, what)
    state.restore_retry_at = now + state.storage.retry_seconds
    if state.storage.is_over(now):
        fail_for_storage(state, "it is tried again then")
    elif state.storage.is_new:
        state.announce(what, "it is tried until storage is back", topic="checkpoint")


def _retry(state: JobState, what: str, seconds: float) -> None:
    state.restore_retry_at = state.now + seconds
    state.restore_failures += 1
    if state.restore_failures >= _MAX_RESTORE_FAILURES:
        state.fail(what)
    else:
        state.announce(what, "it is tried again")
