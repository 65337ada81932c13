"""When cuts are taken, what they hold, and which of them are kept."""

from ctr_pipeline.distributed.coordination.codec import to_record
from ctr_pipeline.distributed.coordination.cuts import CutRecord, cuts_to_keep, decide_full
from ctr_pipeline.distributed.coordination.events import (
    CutContradicted,
    CutDamaged,
    CutFailed,
    CutTaken,
    DropCuts,
    TakeCut,
)
from ctr_pipeline.distributed.coordination.job import members, restores
from ctr_pipeline.distributed.coordination.job.state import JobState

MAX_FAILURES = 5
"""Failures in a row, at the end of an epoch or of a job that is stopped."""


def take_if_due(state: JobState, *, at_once: bool) -> None:
    """Begins a cut if its time has come, or if something waits for one."""
    # Neither begins while the other is under way.
    if state.move_schedule.in_flight or not state.cut_schedule.is_due(state.now, at_once=at_once):
        return
    ledger, number = state.ledger, state.head.next_cut
    parent = state.cuts.get(state.newest_cut)
    full = decide_full(
        parent, chain_intact=state.head.chain_intact, full_every=state.settings.full_every
    )
    record = CutRecord(
        cut=number,
        parent=0 if full or parent is None else parent.cut,
        depth=0 if full or parent is None else parent.depth + 1,
        best_cut=ledger.best_cut,
    )
    state.head.next_cut += 1
    # Until it is known to be durable, nobody knows what the servers count as touched since.
    state.head.chain_intact = False
    state.pending_cut = record
    state.pending_ends_epoch = ledger.board is None and bool(ledger.closed)
    state.cut_schedule.begin(number)
    state.cut_began_at = state.now
    state.counted_since_cut = False
    frozen = ledger.freeze()
    if state.pending_ends_epoch:
        frozen["epoch_cuts"] = [
            *(list(pair) for pair in ledger.epoch_cuts.items()),
            [ledger.epoch - 1, number],
        ]
    frozen["cut"] = to_record(record)
    frozen["attempt"] = state.head.attempt
    frozen["repeated"] = [list(pair) for pair in state.repeated().items()]
    frozen["seconds"] = [list(pair) for pair in state.head.seconds.items()]
    state.actions.append(
        TakeCut(
            cut=number,
            generation=state.head.generation,
            parent=record.parent,
            full=full,
            epoch=ledger.last_epoch,
            step=ledger.batches,
            best_cut=ledger.best_cut,
            frozen=frozen,
            ends_epoch=state.pending_ends_epoch,
            claims=state.claims.begin_cut(),
        )
    )


def take_in(state: JobState, event: CutTaken) -> None:
    """A cut can be restored from now on."""
    record = state.pending_cut
    if record is None or record.cut != event.cut:
        # Of a generation that is over: the servers went back behind it.
        return
    state.pending_cut = None
    restores.end_storage_wait(state)
    state.claims.end_cut()
    state.cut_schedule.succeed(state.now)
    state.cut_seconds = state.now - state.cut_began_at
    state.head.chain_intact = True
    state.cuts[record.cut] = record
    # One that was begun before the epoch was over is not the cut at its end.
    if state.pending_ends_epoch:
        state.ledger.epoch_cuts[state.ledger.epoch - 1] = record.cut
    board = state.ledger.board
    if board is not None:
        state.head.repeated = state.repeated()
        board.forget_repeated()
    drop_old(state)


def take_in_failure(state: JobState, event: CutFailed) -> None:
    """A cut did not come about."""
    if state.pending_cut is None or state.pending_cut.cut != event.cut:
        return
    state.pending_cut = None
    state.cut_schedule.fail(state.now)
    state.counted_since_cut = True
    now = state.now
    if event.of_storage:
        state.storage.fail(now, event.reason)
    if not event.of_storage or state.storage.is_new:
        what = f"checkpoint {event.cut} failed: {event.reason}"
        state.announce(what, "it is tried again", topic="checkpoint")
    if state.head.phase != "cutting":
        return
    if state.storage.is_over(now):
        restores.fail_for_storage(state, "what was trained since is trained again then")
    elif not state.storage.reason and state.cut_schedule.failures_in_row >= MAX_FAILURES:
        state.fail(f"no checkpoint can be taken at the end of an epoch: {event.reason}")


def take_in_contradiction(state: JobState, event: CutContradicted) -> None:
    """A model that holds less than is counted is of no use: back to the last cut."""
    if state.pending_cut is None or state.pending_cut.cut != event.cut:
        return
    batches = sum(mask.bit_count() for _, mask in event.missing)
    what = f"{batches:,} batches were reported as trained, and no server holds them all"
    cut = state.newest_cut
    done = f"the job goes back to {f'checkpoint {cut}' if cut else 'its beginning'}"
    state.announce(what, done, is_disruption=True)
    claimants = state.claims.claimants(event.missing)
    restores.roll_back(state)
    for worker in state.workers():
        if worker.incarnation in claimants:
            members.kill(state, worker, f"{worker.name} reported batches that no server holds")
    state.head.errors_in_row += 1
    if state.head.errors_in_row >= state.settings.max_start_failures:
        state.fail(f"{what}; this has happened {state.head.errors_in_row} times in a row")


def take_in_damage(state: JobState, event: CutDamaged) -> None:
    """Files of a cut are not what was written."""
    if event.cut not in state.cuts:
        return
    what = f"checkpoint {event.cut} is damaged: {event.reason}"
    state.announce(what, "it counts no more", topic="checkpoint")
    if len(state.cuts) > 1:
        # The last one stays known: a restore of it fails, where none would begin anew.
        state.forget_cut(event.cut)
    state.head.chain_intact = False


def drop_old(state: JobState) -> None:
    """Forgets all cuts but the newest and the best."""
    ledger = state.ledger
    pinned = {ledger.best_cut}
    if ledger.epoch_cuts:
        pinned.add(ledger.epoch_cuts[max(ledger.epoch_cuts)])
    keep = cuts_to_keep(state.cuts, state.settings.course.keep_checkpoints, pinned)
    for cut in set(state.cuts).difference(keep):
        state.forget_cut(cut)
    state.actions.append(DropCuts(keep))
