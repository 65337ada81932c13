"""How a job lies in its ledger: records under names, each a JSON object.

- `head`: what there is one of.
- `base`: the ledger that rolls back, as a whole, at the beginning of an *era*: of an epoch, of the
  time between epochs, after a rollback, or after a cut.
- `task/<number>`: a training task that was leased, given back or ended since. Its batches that are
  done are in it as of then: a master that reads it hears of the others from the worker that holds
  it, or their marks at the servers say that they are trained.
  Both name the batches that were reported and that no cut has shown.
- `scoring`, and `score/<split>/<number>`: what is being scored, and its tasks that have changed.
- `member/<role>/<index>`, `cut/<number>`.
- `servers`: who holds what, once that is other than at the beginning.

Records of tasks name their era. Those of an older one are void, and go when the next one begins: a
ledger is as large as the work since the last cut, however many tasks there are.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from ctr_pipeline.distributed.coordination.claims import Claims
from ctr_pipeline.distributed.coordination.cuts import CutRecord
from ctr_pipeline.distributed.coordination.events import Json, Persist, Phase, SplitTotals
from ctr_pipeline.distributed.coordination.ledger import Ledger
from ctr_pipeline.distributed.coordination.members import MemberState
from ctr_pipeline.distributed.coordination.messages import Role, TaskKey
from ctr_pipeline.distributed.coordination.placement import Placement
from ctr_pipeline.distributed.coordination.settings import JobSettings
from ctr_pipeline.distributed.coordination.tasks import (
    Task,
    TaskBoard,
    scores_from_json,
    scores_to_json,
)


@dataclass(frozen=True)
class Servers:
    """The parameter servers; a rollback does not take it back.

    Attributes:
        placement: Who holds what.
        wanted: So many there are to be.
        is_balancing: Partitions move until all of these have as many.
    """

    placement: Placement
    wanted: int
    is_balancing: bool = False

    @property
    def number(self) -> int:
        """That are needed now: those that hold something, and those that are to."""
        return max(self.wanted, self.placement.num_servers)

    @classmethod
    def from_json(cls, record: Json) -> "Servers":
        """Back from JSON."""
        placement = record["placement"]
        return cls(
            Placement(
                placement["version"],
                tuple(placement["owners"]),
                tuple((low, high) for low, high in placement["dense"]),
            ),
            record["wanted"],
            record["is_balancing"],
        )


@dataclass
class JobHead:
    """What a job has one of, and does not take back in a rollback.

    Attributes:
        min_workers: Training starts when so many have registered.
        max_workers: There are never more.
        target_workers: Wanted now.
        phase: Where the job is.
        reason: Why it failed; empty otherwise.
        traceback: Of the member whose failure failed it.
        generation: Rollbacks and restores so far.
        attempt: The newest lease; numbers are never used twice.
        next_cut: Number of the next cut; never used twice either.
        chain_intact: The parameter servers know what changed since the last cut.
        is_restored: They hold what the ledger counts.
        has_started: There were enough workers once.
        training_over: The best cut is what is left to be scored.
        repeated: Records executed beyond those counted, by epoch; of tasks on the board,
            the board counts them.
        seconds: Spent training, by epoch.
        best_trained: The most records that were ever counted at a time.
        errors_in_row: Ends of members by their own fault, without progress between them.
        stalls_in_row: Times that nothing was counted any more, without progress between them.
        refused_reports: Reports of older attempts and generations.
        final_scores: Of the final splits, once all are scored.
    """

    min_workers: int
    max_workers: int
    target_workers: int
    phase: Phase = "waiting"
    reason: str = ""
    traceback: str = ""
    generation: int = 0
    attempt: int = 0
    next_cut: int = 1
    chain_intact: bool = True
    is_restored: bool = False
    has_started: bool = False
    training_over: bool = False
    repeated: dict[int, int] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)
    best_trained: int = 0
    errors_in_row: int = 0
    stalls_in_row: int = 0
    refused_reports: int = 0
    final_scores: tuple[SplitTotals, ...] = ()

    def to_json(self) -> dict[str, object]:
        """As JSON, whose keys are text."""
        return {
            **asdict(self),
            "repeated": [list(pair) for pair in self.repeated.items()],
            "seconds": [list(pair) for pair in self.seconds.items()],
            "final_scores": [
                [totals.split, totals.num_rows, scores_to_json(totals.scores)]
                for totals in self.final_scores
            ],
        }

    @classmethod
    def from_json(cls, record: Json) -> "JobHead":
        """Back from JSON."""
        values = {
            **record,
            "repeated": dict(record["repeated"]),
            "seconds": dict(record["seconds"]),
            "final_scores": tuple(
                SplitTotals(split, num_rows, scores_from_json(scores))
                for split, num_rows, scores in record["final_scores"]
            ),
        }
        return cls(**values)


class LedgerRecords:
    """Changes of the ledger that are to be written with the next transaction."""

    def __init__(self) -> None:
        self._changes: dict[str, Json | None] = {}
        self._is_durable = False
        self._has_head = False
        self._newest_era = 0
        self._task_names: set[str] = set()
        """Records of training tasks that have been put and not deleted."""
        self.base_era = 0
        self.scoring_era = 0

    def continue_after(self, stored: "StoredJob") -> None:
        """Goes on where another master ended."""
        self.base_era, self.scoring_era = stored.base_era, stored.scoring_era
        self._task_names = set(stored.task_names)
        self._newest_era = max(self.base_era, self.scoring_era)

    def put(self, name: str, record: Json | None, *, durable: bool) -> None:
        """A record has changed; None: it is gone."""
        self._changes[name] = record
        self._is_durable |= durable

    def put_head(self, *, durable: bool = False) -> None:
        """The head has changed; rendered when it is written, as it may change once more."""
        self._has_head = True
        self._is_durable |= durable

    def put_base(self, ledger: Ledger, claims: Claims) -> None:
        """An era begins: records of single tasks before it are void from now on."""
        self._newest_era += 1
        self.base_era = self._newest_era
        for name in self._task_names:
            self._changes[name] = None
        self._task_names.clear()
        record = {"era": self.base_era, "ledger": ledger.freeze(), "claims": claims.to_json()}
        self.put("base", record, durable=True)

    def put_scoring(self, epoch: int, *, final: bool) -> None:
        """Splits begin to be scored: the final ones, or the one after every epoch."""
        self._newest_era += 1
        self.scoring_era = self._newest_era
        record = {"era": self.scoring_era, "epoch": epoch, "final": final}
        self.put("scoring", record, durable=True)

    def drop_scoring(self) -> None:
        """Nothing is being scored any more."""
        self.put("scoring", None, durable=True)

    def put_task(self, key: TaskKey, task: Task, claims: Claims, *, durable: bool) -> None:
        """A training task has changed."""
        name = f"task/{key.task}"
        self._task_names.add(name)
        record = {**task.to_json(), "era": self.base_era, "claims": claims.to_json(key.task)}
        self.put(name, record, durable=durable)

    def put_score_task(self, key: TaskKey, task: Task, *, durable: bool) -> None:
        """A score task has changed."""
        record = {**task.to_json(), "era": self.scoring_era}
        self.put(f"score/{key.split}/{key.task}", record, durable=durable)

    def put_member(self, member: MemberState, *, durable: bool) -> None:
        """A member has changed."""
        self.put(f"member/{member.role}/{member.index}", member.to_json(), durable=durable)

    def put_servers(self, servers: Servers | None) -> None:
        """Who holds what has changed; None: it is as at the beginning."""
        record = None if servers is None else asdict(servers)
        self.put("servers", record, durable=True)

    def put_cut(self, record: CutRecord) -> None:
        """A cut can be restored from now on."""
        self.put(f"cut/{record.cut}", record.to_json(), durable=True)

    def drop_cut(self, cut: int) -> None:
        """A cut is forgotten."""
        self.put(f"cut/{cut}", None, durable=False)

    def take(self, head: JobHead) -> Persist | None:
        """The transaction to be written now; None if nothing has changed."""
        if self._has_head:
            self._changes["head"] = head.to_json()
        if not self._changes:
            return None
        transaction = Persist(self._changes, self._is_durable)
        self._changes, self._is_durable, self._has_head = {}, False, False
        return transaction


@dataclass(frozen=True)
class StoredJob:
    """A job as its ledger describes it.

    Attributes:
        head: What there is one of.
        ledger: What is counted.
        scoring: What is being scored; None: nothing is.
        members: By role and index.
        cuts: By number.
        servers: None: as the job began.
        base_era: Of the records of training tasks.
        scoring_era: Of the records of score tasks.
        claims: Batches that were reported and that no cut has shown yet.
        task_names: Of all records of training tasks, void ones included.
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
        settings: Of the job.
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
            trained[TaskKey("train", ledger.epoch, int(number), "train")] = record
        elif kind == "score" and scoring is not None and record["era"] == scoring_era:
            scored[TaskKey("score", scored_epoch, int(number), owner)] = record
        elif kind == "member":
            role: Role = "ps" if owner == "ps" else "worker"
            members[role, int(number)] = MemberState(role, int(number))
            members[role, int(number)].load_json(record)
        elif kind == "cut":
            cuts[int(number)] = CutRecord.from_json(record)
    if ledger.board is not None:
        ledger.board.load(trained)
    if scoring is not None:
        scoring.load(scored)
    head = JobHead.from_json(records["head"])
    servers = Servers.from_json(records["servers"]) if "servers" in records else None
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
