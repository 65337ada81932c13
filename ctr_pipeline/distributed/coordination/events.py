"""What happens to a job, and what is to be done about it: what `coordination.job` is told and says.

The executor turns the outside into events, hands them to `Job`, and performs the actions in their
order, before it answers the call that caused them: a `Persist` with `durable` is on disk before
the reply that it allows leaves the process.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from ctr_pipeline.distributed.coordination.launching import ProcessState
from ctr_pipeline.distributed.coordination.messages import LeaseReply, Role, ScoreSummary
from ctr_pipeline.distributed.coordination.moves import PlannedMove
from ctr_pipeline.distributed.coordination.news import Topic
from ctr_pipeline.distributed.coordination.placement import Placement

Phase = Literal[
    "waiting",
    "restoring",
    "training",
    "cutting",
    "validating",
    "scoring",
    "stopping",
    "finished",
    "stopped",
    "failed",
]
"""`waiting`: for parameter servers and the first workers. `restoring`: parameter servers load a
cut. `cutting`: the cut at the end of an epoch. `validating`: the split `valid` after an epoch.
`scoring`: all splits under the best cut. `stopping`: workers pause, and the last cut before an
asked stop. `finished`, `stopped`, `failed`: members leave."""

RestoreFailure = Literal["damage", "storage", "outrun", "server"]
"""`damage`: the cut is proven bad, and the one before it is tried. `storage`: it cannot be read at
the moment, and is tried again for as long as the job waits for storage. `outrun`: a server knows a
newer generation than the ledger, which was lost. `server`: one was not reachable, or failed."""

Json = Mapping[str, Any]

# Events: `Job.handle(event, now)`.


@dataclass(frozen=True)
class ProcessesSeen:
    """What the launcher observed: the newest process of every member it ever started."""

    processes: tuple[ProcessState, ...]


@dataclass(frozen=True)
class StartRefused:
    """The launcher did not start a member that it was asked for.

    Attributes:
        reason: In the launcher's words.
        is_final: Asking again does not help.
    """

    role: Role
    index: int
    reason: str
    is_final: bool


@dataclass(frozen=True)
class Tick:
    """Time has passed; sent several times a second."""


@dataclass(frozen=True)
class CutTaken:
    """The manifest of a cut is durable."""

    cut: int
    pause_seconds: float = 0.0


@dataclass(frozen=True)
class CutFailed:
    """A cut did not come about; what was written of it is ignored.

    Attributes:
        cut: Its number.
        reason: For a person.
        of_storage: Files could not be read or written: it is tried again for as long as the job
            waits for storage.
    """

    cut: int
    reason: str
    of_storage: bool = False


@dataclass(frozen=True)
class CutContradicted:
    """Workers reported batches that some server has not applied; there is no cut.

    Attributes:
        cut: Its number.
        missing: Tasks, and masks of those batches.
    """

    cut: int
    missing: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class CutDamaged:
    """A cut that was kept has proved damaged; its files were set aside.

    Attributes:
        cut: Its number.
        reason: For a person, naming the file.
    """

    cut: int
    reason: str


@dataclass(frozen=True)
class RestoreDone:
    """All parameter servers hold a cut.

    Attributes:
        generation: Generation of the `RestoreCut` that asked.
        cut: The cut that was restored; 0: the beginning.
        frozen: The `TakeCut.frozen` of that cut, from its manifest; empty for 0.
    """

    generation: int
    cut: int
    frozen: Json


@dataclass(frozen=True)
class RestoreFailed:
    """Parameter servers could not restore a cut.

    Attributes:
        generation: Generation of the `RestoreCut` that asked.
        cut: The cut that should have been restored.
        reason: For a person, naming the file.
        announced: The newest generation that a server knows; 0 unless that was the cause.
    """

    generation: int
    cut: int
    reason: str
    cause: RestoreFailure
    announced: int = 0


@dataclass(frozen=True)
class EpochDecided:
    """The answer to `DecideEpoch`.

    Attributes:
        epoch: The epoch.
        record: Its line of the history, as JSON; kept, rolled back and returned as it is.
        stop: Training is over.
        best_epoch: The best epoch so far.
        reason: Why it stops, or empty.
    """

    epoch: int
    record: Json
    stop: bool
    best_epoch: int
    reason: str


@dataclass(frozen=True)
class CannotGoOn:
    """The executor met what only a person can mend, such as validation rows of one class.

    The job fails: `Fail`, then members leave. What was trained stays in the last cut.

    Attributes:
        reason: One sentence.
    """

    reason: str


@dataclass(frozen=True)
class StopAsked:
    """A person asks to stop; workers pause, and the job takes a cut first and can be resumed."""


@dataclass(frozen=True)
class ScaleAsked:
    """A person or the autoscaler asks for another number of workers.

    Attributes:
        min_workers: New bounds; None leaves the bound.
        max_workers: New bounds; None leaves the bound.
        target_workers: Wanted now, within the bounds; None means `max_workers`.
    """

    min_workers: int | None = None
    max_workers: int | None = None
    target_workers: int | None = None


@dataclass(frozen=True)
class ServersAsked:
    """A person asks for another number of parameter servers."""

    num_parameter_servers: int


@dataclass(frozen=True)
class MoveReady:
    """The target of a move has everything, and the source holds updates up.

    Attributes:
        generation: Generation of the `MovePartitions` that asked.
        version: Version of the placement after the move.
    """

    generation: int
    version: int


@dataclass(frozen=True)
class MoveFailed:
    """A move did not come about.

    Attributes:
        generation: Generation of the `MovePartitions` that asked.
        version: Version of the placement that it was to make.
        reason: For a person.
    """

    generation: int
    version: int
    reason: str


Event = (
    ProcessesSeen
    | StartRefused
    | Tick
    | CutTaken
    | CutFailed
    | CutContradicted
    | CutDamaged
    | RestoreDone
    | RestoreFailed
    | EpochDecided
    | CannotGoOn
    | MoveReady
    | MoveFailed
    | StopAsked
    | ScaleAsked
    | ServersAsked
)


# Actions, to be performed in their order.


@dataclass(frozen=True)
class Persist:
    """Changes of the ledger, one transaction.

    Attributes:
        records: New values of records, as JSON; None deletes.
        durable: Must be on disk before anything that follows; otherwise a later commit will do.
    """

    records: Mapping[str, Json | None]
    durable: bool


@dataclass(frozen=True)
class StartMember:
    """Start a member unless it runs."""

    role: Role
    index: int


@dataclass(frozen=True)
class StopMember:
    """End one process, and no other of its place; with 0 seconds of grace, kill it at once."""

    role: Role
    index: int
    incarnation: str
    grace_seconds: float


@dataclass(frozen=True)
class TakeCut:
    """Ask every parameter server for a snapshot, then write the manifest.

    The answer is `CutTaken`, `CutFailed` or `CutContradicted`.

    Attributes:
        cut: Its number.
        parent: The cut that its deltas build on; 0 if `full`.
        full: Write all rows.
        epoch: Being trained, or trained last.
        step: Batches that it counts, all epochs.
        best_cut: The best cut so far; 0: none yet.
        frozen: The ledger as this cut counts it; goes into the manifest.
        ends_epoch: All of the epoch is trained and nothing of the next one.
        claims: Tasks of the epoch, and masks of their batches, that were reported since the last
            cut: servers must hold them.
    """

    cut: int
    generation: int
    parent: int
    full: bool
    epoch: int
    step: int
    best_cut: int
    frozen: Json
    ends_epoch: bool = False
    claims: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class RestoreCut:
    """Ask every parameter server to restore a cut; answer with `RestoreDone` or `RestoreFailed`.

    Attributes:
        cut: Its number; 0: begin with no rows and initial dense parameters.
        generation: From now on.
    """

    cut: int
    generation: int


@dataclass(frozen=True)
class MovePartitions:
    """Copy partitions to another server until it has all of them; then `MoveReady`.

    Attributes:
        version: Version of the placement after the move.
        placement: Until then.
    """

    generation: int
    version: int
    placement: Placement
    planned: PlannedMove


@dataclass(frozen=True)
class AnnouncePlacement:
    """Tell all servers who holds what; it is durable.

    Attributes:
        placement: From now on.
        planned: The move that made it, or that came to nothing.
        is_done: Whether it did.
    """

    generation: int
    placement: Placement
    planned: PlannedMove
    is_done: bool


@dataclass(frozen=True)
class DropCuts:
    """Cuts beyond these, and files that none of these needs, may be deleted."""

    keep: tuple[int, ...]


@dataclass(frozen=True)
class SplitTotals:
    """A split scored in full.

    Attributes:
        split: Its name.
        num_rows: Rows scored.
        scores: Sums over all rows.
    """

    split: str
    num_rows: int
    scores: ScoreSummary


@dataclass(frozen=True)
class EpochTotals:
    """An epoch trained in full.

    Attributes:
        epoch: From 0.
        trained: Records counted by the ledger, each once.
        repeated: Executions beyond that.
        dropped: Records of tasks that were given up.
        loss_sum: Over the records trained.
        seconds: From its first lease to its last report, without validation.
    """

    epoch: int
    trained: int
    repeated: int
    dropped: int
    loss_sum: float
    seconds: float


@dataclass(frozen=True)
class DecideEpoch:
    """Compute the metrics and decide whether to stop; answer with `EpochDecided`.

    Attributes:
        valid: None without a split `valid`.
        history: Records of the epochs before, as `EpochDecided` gave them.
    """

    totals: EpochTotals
    valid: SplitTotals | None
    history: tuple[Json, ...]


class WaitingCall(Protocol):
    """A call whose caller waits for its answer."""

    def give(self, reply: object) -> None:
        """Answers; returns at once."""


@dataclass(frozen=True)
class AnswerLease:
    """A request for tasks that was kept waiting has its answer.

    Attributes:
        call: The argument of `Job.lease`.
        reply: The result of `Job.lease`.
    """

    call: WaitingCall
    reply: LeaseReply


@dataclass(frozen=True)
class Announce:
    """Something that a person wants to know of: a line of the event log.

    Attributes:
        done: How the job reacted.
        recovery_seconds: From the failure to work going on; None if that is not what this is.
        is_disruption: Work was lost, or stands still, because of it.
    """

    what: str
    done: str
    recovery_seconds: float | None = None
    topic: Topic = "job"
    is_disruption: bool = False


@dataclass(frozen=True)
class Fail:
    """The job has failed: tell the person, with exit code 1.

    Attributes:
        reason: One sentence.
        traceback: Traceback of the member that failed; may be empty.
    """

    reason: str
    traceback: str


@dataclass(frozen=True)
class End:
    """All members have left, or had time to; the master ends.

    Attributes:
        phase: `finished`, `stopped` or `failed`.
    """

    phase: Phase


Action = (
    Persist
    | StartMember
    | StopMember
    | TakeCut
    | RestoreCut
    | MovePartitions
    | AnnouncePlacement
    | DropCuts
    | DecideEpoch
    | AnswerLease
    | Announce
    | Fail
    | End
)
