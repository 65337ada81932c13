"""How a job lies in its ledger: records under names, each a JSON object.

- `head`: what there is one of.
- `base`: the ledger that rolls back, as a whole, at the beginning of an *era*: of an epoch, of the
  time between epochs, after a rollback, or after a cut.
- `task/<number>`: a training task that was leased, given back or ended since. Its batches that are
  done are in it as of then: a master that reads it hears of the others from the worker that holds
  it, or their bitmaps at the servers say that they are trained.
  Both name the batches that were reported and that no cut has shown.
- `scoring`, and `score/<split>/<number>`: what is being scored, and its tasks that have changed.
- `member/<role>/<index>`, `cut/<number>`.
- `servers`: who holds what, once that is other than at the beginning.

Records of tasks name their era. Those of an older one are void, and go when the next one begins: a
ledger is as large as the work since the last cut, however many tasks there are.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ctr_pipeline.distributed.coordination.claims import Claims
from ctr_pipeline.distributed.coordination.codec import (
    fields_to_record,
    from_record,
    set_fields,
    to_record,
)
from ctr_pipeline.distributed.coordination.cuts import CutRecord
from ctr_pipeline.distributed.coordination.events import Json, Persist
from ctr_pipeline.distributed.coordination.job.head import JobHead, Servers
from ctr_pipeline.distributed.coordination.job.state import JobState
from ctr_pipeline.distributed.coordination.ledger import Ledger
from ctr_pipeline.distributed.coordination.members import MemberState
from ctr_pipeline.distributed.coordination.messages import Role, TaskKey
from ctr_pipeline.distributed.coordination.settings import JobSettings
from ctr_pipeline.distributed.coordination.task_board import TaskBoard


class LedgerRecords:
    """What the ledger holds of a job; gives the difference between that and the job's state.

    Args:
        state: State of a job of which nothing is written yet.
    """

    def __init__(self, state: JobState) -> None:
        self._ledger_written: object = None
        self._scoring_written: TaskBoard | None = None
        self._cuts_written: frozenset[int] = frozenset()
        self._servers_written = state.servers
        self._base_era = self._scoring_era = 0
        self._task_names: set[str] = set()
        """Records of training tasks that have been put and not deleted."""
        self._changes: dict[str, Json | None] = {}
        self._is_urgent = False

    def continue_after(self, stored: "StoredJob", state: JobState) -> None:
        """Goes on where another master ended; the state is still what was stored."""
        self._ledger_written = _version_of_ledger(state)
        self._scoring_written = state.scoring
        self._cuts_written = frozenset(state.cuts)
        self._servers_written = state.servers
        self._base_era, self._scoring_era = stored.base_era, stored.scoring_era
        self._task_names = set(stored.task_names)

    def take(self, state: JobState) -> Persist | None:
        """The transaction that makes the ledger equal to the state; None if it is.

        Args:
            state: State of the job; what it notes as changed is taken from it.
        """
        version = _version_of_ledger(state)
        begins_era = version != self._ledger_written
        self._ledger_written = version
        if begins_era:
            self._begin_era(state)
        self._compare_scoring(state)
        self._compare_tasks(state, begins_era=begins_era)
        self._compare_cuts(state)
        if state.servers != self._servers_written:
            self._servers_written = state.servers
            self._put("servers", to_record(state.servers), is_urgent=True)
        for member in state.members.values():
            if member.is_changed:
                _, is_urgent = member.take_change()
                name = f"member/{member.role}/{member.index}"
                record = fields_to_record(member, MemberState.durable | MemberState.lazy)
                self._put(name, record, is_urgent=is_urgent)
        is_changed, is_urgent = state.head.take_change()
        if is_changed or begins_era:
            self._put("head", to_record(state.head), is_urgent=is_urgent or begins_era)
        if not self._changes:
            return None
        transaction = Persist(self._changes, self._is_urgent)
        self._changes, self._is_urgent = {}, False
        return transaction

    def _put(self, name: str, record: Json | None, *, is_urgent: bool) -> None:
        self._changes[name] = record
        self._is_urgent |= is_urgent

    def _next_era(self) -> int:
        return max(self._base_era, self._scoring_era) + 1

    def _begin_era(self, state: JobState) -> None:
        """Records of single tasks that were written before are void."""
        self._base_era = self._next_era()
        for name in self._task_names:
            self._put(name, None, is_urgent=False)
        self._task_names.clear()
        frozen, claims = state.ledger.freeze(), state.claims.to_json()
        record = {"era": self._base_era, "ledger": frozen, "claims": claims}
        self._put("base", record, is_urgent=True)

    def _compare_scoring(self, state: JobState) -> None:
        if state.scoring is self._scoring_written:
            return
        self._scoring_written = state.scoring
        if state.scoring is None:
            self._put("scoring", None, is_urgent=True)
            return
        self._scoring_era = self._next_era()
        record = {
            "era": self._scoring_era,
            "epoch": state.scored_epoch,
            "final": state.head.training_over,
        }
        self._put("scoring", record, is_urgent=True)

    def _compare_tasks(self, state: JobState, *, begins_era: bool) -> None:
        board = state.ledger.board
        if board is not None:
            changed = board.take_changed()
            if begins_era:
                # The ledger as a whole has what is done of them, and not who works on them.
                changed = {key: (task, False) for key, task in board.touched()}
            for key, (task, is_urgent) in changed.items():
                name = f"task/{key.task}"
                self._task_names.add(name)
                claims = state.claims.to_json(key.task)
                record = {"task": task.to_record(), "era": self._base_era, "claims": claims}
                self._put(name, record, is_urgent=is_urgent)
        if state.scoring is not None:
            for key, (task, is_urgent) in state.scoring.take_changed().items():
                record = {"task": task.to_record(), "era": self._scoring_era}
                self._put(f"score/{key.split}/{key.task}", record, is_urgent=is_urgent)

    def _compare_cuts(self, state: JobState) -> None:
        cuts = state.cuts.keys()
        if cuts == self._cuts_written:
            return
        for cut in cuts - self._cuts_written:
            self._put(f"cut/{cut}", to_record(state.cuts[cut]), is_urgent=True)
        for cut in self._cuts_written - cuts:
            self._put(f"cut/{cut}", None, is_urgent=False)
        self._cuts_written = frozenset(cuts)


def _version_of_ledger(state: JobState) -> object:
    """Equal while changes of the ledger are those of single tasks; each cut begins anew."""
    ledger = state.ledger
    return (
        ledger,
        len(ledger.closed),
        ledger.board is None,
        len(ledger.history),
        ledger.best_epoch,
        tuple(ledger.epoch_cuts.items()),
        max(state.cuts, default=0),
    )


@dataclass(frozen=True)
class StoredJob:
    """A job as its ledger describes it.

    Attributes:
        head: The state that a job has once.
        ledger: Which batches count as trained.
        scoring: Tasks that score splits; None: nothing is being scored.
        members: By role and index.
        cuts: By number.
        servers: None: as the job began.
        base_era: Era of the records of training tasks.
        scoring_era: Era of the records of score tasks.
        claims: Batches that were reported and that no cut has shown yet.
        task_names: Names of all records of training tasks, void ones included.
    """

    head: JobHead
    ledger: Ledger
    scoring: TaskBoard | None
    members: dict[tuple[Role, int], MemberState]
    cuts: dict[int, CutRecord]
    servers: Servers | None
    base_era: int
    scoring_era: int
    claims: Claims
    task_names: frozenset[str]


def read_records(records: Mapping[str, Json], settings: JobSettings) -> StoredJob | None:
    """The job that the records describe; None if its first transaction was never written.

    Args:
        records: Everything that was put, less what was deleted.
    """
    if "head" not in records or "base" not in records:
        return None
    base, scoring_record = records["base"], records.get("scoring")
    ledger = Ledger.thaw(base["ledger"], settings.plan_epoch)
    scoring: TaskBoard | None = None
    scoring_era, scored_epoch = 0, 0
    if scoring_record is not None:
        scoring_era, scored_epoch = scoring_record["era"], scoring_record["epoch"]
        scoring = TaskBoard.of_splits(
            settings.splits_to_score(final=scoring_record["final"]), scored_epoch
        )
    members: dict[tuple[Role, int], MemberState] = {}
    cuts: dict[int, CutRecord] = {}
    trained: dict[TaskKey, Json] = {}
    scored: dict[TaskKey, Json] = {}
    claims, task_names = Claims(), set[str]()
    claims.load_json(base["claims"])
    for name, record in records.items():
        kind, _, rest = name.partition("/")
        owner, _, number = rest.rpartition("/")
        if kind == "task":
            task_names.add(name)
        if kind == "task" and record["era"] == base["era"]:
            claims.load_json(record["claims"])
            trained[TaskKey("train", ledger.epoch, int(number), "train")] = record["task"]
        elif kind == "score" and scoring is not None and record["era"] == scoring_era:
            scored[TaskKey("score", scored_epoch, int(number), owner)] = record["task"]
        elif kind == "member":
            role: Role = "ps" if owner == "ps" else "worker"
            member = members[role, int(number)] = MemberState(role, int(number))
            set_fields(member, record)
            member.take_change()
        elif kind == "cut":
            cuts[int(number)] = from_record(CutRecord, record)
    if ledger.board is not None:
        ledger.board.load(trained)
    if scoring is not None:
        scoring.load(scored)
    head = from_record(JobHead, records["head"])
    servers = from_record(Servers, records["servers"]) if "servers" in records else None
    return StoredJob(
        head,
        ledger,
        scoring,
        members,
        cuts,
        servers,
        base["era"],
        scoring_era,
        claims,
        frozenset(task_names),
    )
