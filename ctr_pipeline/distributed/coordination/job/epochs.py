"""What the state of a job calls for next, from phase to phase."""

from ctr_pipeline.distributed.coordination.events import DecideEpoch, End, EpochDecided, SplitTotals
from ctr_pipeline.distributed.coordination.job import cuts, drains, moves, restores
from ctr_pipeline.distributed.coordination.job.state import JobState
from ctr_pipeline.distributed.coordination.task_board import TaskBoard
from ctr_pipeline.distributed.coordination.task_plans import ScoredSplit
from ctr_pipeline.distributed.coordination.tasks import merge_scores


def advance(state: JobState) -> None:
    """Does what the state calls for, until it calls for nothing more."""
    before = None
    while before != (before := state.head.phase):
        if state.is_over:
            _advance_end(state)
        elif state.head.phase in {"waiting", "restoring"}:
            _advance_restore(state)
        elif state.head.phase == "training":
            _advance_training(state)
        elif state.head.phase == "cutting":
            _advance_cutting(state)
        elif state.head.phase in {"validating", "scoring"}:
            _advance_scoring(state)
        elif state.head.phase == "stopping":
            _advance_stop(state)


def _advance_restore(state: JobState) -> None:
    if state.head.is_restored:
        workers = sum(bool(member.incarnation) for member in state.workers())
        if state.head.has_started or workers >= state.head.min_workers:
            _go_on(state)
        return
    restores.begin_if_due(state)


def _go_on(state: JobState) -> None:
    """Parameter servers hold what the ledger counts; whatever comes next begins."""
    ledger = state.ledger
    state.head.has_started = True
    if state.head.training_over:
        if state.all_is_scored:
            state.announce_recovery()
            state.enter("finished")
            return
        if state.scoring is None:
            state.begin_scoring()
        state.enter("scoring")
    elif ledger.board is not None:
        state.enter("training")
    elif len(ledger.history) < len(ledger.closed):
        if state.settings.valid is not None and state.scoring is None:
            state.begin_scoring()
        state.enter("validating")
    else:
        ledger.open_epoch(state.settings.plan_epoch(ledger.epoch))
        state.enter("training")


def _advance_training(state: JobState) -> None:
    board = state.ledger.board
    if board is not None and board.is_over:
        state.head.repeated = state.repeated()
        state.ledger.close_epoch()
        state.counted_since_cut = True
        state.storage.start_over(state.now)
        state.enter("cutting")
        return
    if drains.is_draining(state):
        if drains.is_at_rest(state):
            state.begin_recovery()
        if drains.wants_cut(state):
            cuts.take_if_due(state, at_once=True)
        return
    if state.counted_since_cut:
        cuts.take_if_due(state, at_once=False)
    moves.begin_if_due(state)


def _advance_cutting(state: JobState) -> None:
    if state.ledger.epoch - 1 in state.ledger.epoch_cuts:
        _go_on(state)
    else:
        cuts.take_if_due(state, at_once=True)


def _advance_scoring(state: JobState) -> None:
    board = state.scoring
    if state.head.phase == "scoring":
        if board is not None and board.is_over:
            state.head.final_scores = tuple(
                _split_totals(state, board, split) for split in state.settings.final_splits
            )
            state.end_scoring()
            state.enter("finished")
    elif not state.is_deciding and (board is None or board.is_over):
        state.is_deciding = True
        split, history = state.settings.valid, tuple(state.ledger.history)
        valid = None if split is None or board is None else _split_totals(state, board, split)
        state.actions.append(DecideEpoch(state.totals()[len(history)], valid, history))


def _split_totals(state: JobState, board: TaskBoard, split: ScoredSplit) -> SplitTotals:
    parts = [
        task.scores
        for key, task in board.touched()
        if key.split == split.name and task.scores is not None
    ]
    return SplitTotals(split.name, split.num_rows, merge_scores(parts))


def _advance_stop(state: JobState) -> None:
    if state.cut_schedule.in_flight:
        return
    has_cut = state.newest_cut >= state.stops_with
    is_lost = state.cut_schedule.failures_in_row >= cuts.MAX_FAILURES
    may_cut = state.head.is_restored and not has_cut and not is_lost
    if may_cut and not drains.holds_all(state):
        if drains.wants_cut(state):
            cuts.take_if_due(state, at_once=True)
        return
    last = state.newest_cut
    where = f"it can go on from checkpoint {last}" if last else "it will begin anew"
    # After a cut: by workers that did not come to rest in time.
    if state.counted_since_cut:
        where += "; what was trained since will be repeated"
    state.announce("the job stops, as asked", where)
    state.enter("stopped")


def _advance_end(state: JobState) -> None:
    now = state.now
    if state.has_ended:
        return
    if state.over_since is None:
        state.over_since, state.seen_since_over = now, False
    waited = now - state.over_since
    still_there = any(
        member.process.running
        if member.process is not None
        else bool(member.incarnation) and not member.must_leave
        for member in state.members.values()
    )
    if (state.seen_since_over and not still_there) or waited > 2 * state.settings.leave_seconds:
        state.has_ended = True
        state.actions.append(End(state.head.phase))


def take_in_decision(state: JobState, event: EpochDecided) -> None:
    """An epoch was judged: another begins, or training is over."""
    ledger = state.ledger
    # A job that was stopped, or has failed, while its decision was made does not begin again.
    is_awaited = state.is_deciding and state.head.phase == "validating"
    if not is_awaited or event.epoch != len(ledger.history):
        return
    state.is_deciding = False
    ledger.history.append(dict(event.record))
    ledger.best_epoch = event.best_epoch
    state.end_scoring()
    cuts.drop_old(state)
    if event.stop or ledger.epoch >= state.settings.course.epochs:
        _end_training(state, event.reason)
    else:
        _go_on(state)


def _end_training(state: JobState, reason: str) -> None:
    state.head.training_over = True
    state.announce(f"training is over: {reason}", "the best epoch is scored")
    held = state.ledger.epoch_cuts.get(state.ledger.epoch - 1, 0)
    if held and held == state.cut_to_restore():
        _go_on(state)
    else:
        state.head.generation += 1
        state.head.is_restored = False
        state.enter("restoring")


def stop(state: JobState) -> None:
    """Somebody asks the job to stop: workers pause, and it takes a last cut first."""
    if state.is_over or state.head.phase == "stopping":
        return
    state.stops_with = state.head.next_cut
    drains.begin_stop(state)
    if state.head.phase not in {"cutting", "training"}:
        # Nothing was trained since the last cut, or the servers do not hold it.
        state.counted_since_cut = False
    state.enter("stopping")
