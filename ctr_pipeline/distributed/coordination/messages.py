"""Control messages between members, as frozen dataclasses; `codec` makes them JSON.

Bit k of a mask stands for batch k of a task.
"""

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from ctr_pipeline.distributed.coordination.placement import Placement
from ctr_pipeline.distributed.coordination.spec import JobSpec
from ctr_pipeline.embeddings.log_chain import CutFile
from ctr_pipeline.machine import ProcessUsage

Role = Literal["master", "ps", "worker"]
TaskKind = Literal["train", "score"]
Directive = Literal["go_on", "pause", "register_again", "leave"]
Verdict = Literal["tasks", "wait", "leave", "end"]


@dataclass(frozen=True)
class Member:
    """One process of a job.

    Attributes:
        index: Which of them; a restarted one keeps its index.
        incarnation: Random name of this process; another one after each restart. Others know it.
        secret: Known to this process and the master alone; who registers with it has to show it
            in every later call.
    """

    role: Role
    index: int
    incarnation: str
    secret: str = field(default="", repr=False)


@dataclass(frozen=True)
class TaskKey:
    """One task.

    Attributes:
        kind: `train`: 64 batches of an epoch. `score`: a range of rows of a split.
        epoch: From 0; of score tasks, the epoch that asks.
        task: Number within the epoch or the split, from 0.
        split: `train`, or the split that is scored.
    """

    kind: TaskKind
    epoch: int
    task: int
    split: str


@dataclass(frozen=True)
class BatchLoss:
    """Loss sum of one trained batch."""

    batch: int
    loss_sum: float


@dataclass(frozen=True)
class ScoreSummary:
    """What a score task found, mergeable; see `evaluation.histogram`.

    Attributes:
        positives: Sparse histogram of the logits of positive rows: (bin, count) pairs.
        negatives: The same of negative rows.
        loss_sum: Sum of logloss.
        probability_sum: Sum of predictions.
    """

    positives: tuple[tuple[int, int], ...]
    negatives: tuple[tuple[int, int], ...]
    loss_sum: float
    probability_sum: float


@dataclass(frozen=True)
class TaskReport:
    """Progress of a leased task; cumulative, so that a lost or repeated report does no harm.

    Attributes:
        key: The task.
        attempt: Number of the lease it was trained under.
        done_mask: Batches that every parameter server has acknowledged under this attempt, or that
            the lease gave as done before.
        repeated_mask: Batches among these that some parameter server had applied before.
        losses: Losses of the batches done under this attempt.
        finished: All of it is done.
        failure: Why it cannot be done, with the traceback; empty if nothing is wrong.
        seconds: Spent on it so far.
        scores: Scores of a finished score task.
        is_final: Another attempt would fail as this one did.
    """

    key: TaskKey
    attempt: int
    done_mask: int
    repeated_mask: int
    losses: tuple[BatchLoss, ...]
    finished: bool
    failure: str
    seconds: float
    scores: ScoreSummary | None
    is_final: bool = False


@dataclass(frozen=True)
class PartitionLoads:
    """What each partition of a parameter server holds and serves, in the same order.

    Attributes:
        partitions: Their numbers.
        rows: Held now.
        row_bytes: Bytes of the records, keys and marks of these rows.
        pulled_keys: Asked for so far, in calls that were not refused as another server's.
        pushed_keys: With gradients, so far.
        table_rows: Rows held now of each embedding table, over all partitions.
        bytes_a_row: Bytes of a row's record, key and mark.
    """

    partitions: tuple[int, ...]
    rows: tuple[int, ...]
    row_bytes: tuple[int, ...]
    pulled_keys: tuple[int, ...]
    pushed_keys: tuple[int, ...]
    table_rows: tuple[int, ...] = ()
    bytes_a_row: int = 0


@dataclass(frozen=True)
class MemberStats(ProcessUsage):
    """What a member says of itself; what its process uses is measured by `machine.measure_usage`.

    Attributes:
        cores: How many its threads may keep busy.
        samples_per_second: A worker's speed over the last seconds.
        rows_held: Embedding rows of a parameter server.
        bytes_received: Payload so far.
        bytes_sent: Payload so far.
        dense_bytes: The part of both that a parameter server's dense gradients and values take.
        version: Updates applied, of a parameter server.
        loads: Loads of a parameter server's partitions; None in most heartbeats, which leaves the
            last ones valid.
    """

    cores: float = 1.0
    samples_per_second: float = 0.0
    rows_held: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0
    dense_bytes: int = 0
    version: int = 0
    loads: PartitionLoads | None = None


@dataclass(frozen=True)
class MemberReport:
    """A member of a job that has no master is there, and how it does.

    Attributes:
        pid: Its process.
        host: Its host.
        address: `host:port` that it serves on.
        stats: Its figures.
        unreachable: Addresses of servers that have not answered it for long.
    """

    member: Member
    pid: int
    host: str
    address: str
    stats: MemberStats
    unreachable: tuple[str, ...] = ()


@dataclass(frozen=True)
class RegisterRequest:
    """A member has started.

    Attributes:
        pid: Its process.
        host: Its host.
        address: `host:port` that it serves on; empty for workers.
        metrics_address: Address of its Prometheus metrics; empty if it has none.
        protocol: Its `PROTOCOL_VERSION`.
        config_fingerprint: Fingerprint of the config that it was started with.
    """

    member: Member
    pid: int
    host: str
    address: str
    metrics_address: str
    protocol: int
    config_fingerprint: str


@dataclass(frozen=True)
class RegisterReply:
    """What a member needs to begin.

    Attributes:
        refused: Why it may not join; empty if it may.
        generation: Generation of the job now.
        spec: The job.
        ps_addresses: By index; empty where one is not there yet.
        heartbeat_seconds: Between heartbeats.
        news_seconds: How long a worker's progress waits for its heartbeat, at most: what is
            trained again if the worker is lost.
    """

    refused: str
    generation: int
    spec: JobSpec
    ps_addresses: tuple[str, ...]
    heartbeat_seconds: float
    news_seconds: float = 0.2


@dataclass(frozen=True)
class HeldLease:
    """A lease by its task and attempt."""

    key: TaskKey
    attempt: int


@dataclass(frozen=True)
class HeartbeatRequest:
    """A member lives; a worker's progress goes with it.

    Attributes:
        generation: The generation that the sender works in.
        reports: Progress of a worker's tasks since the last acknowledged heartbeat.
        held: Leases of a worker that it has not given up, and whose end no acknowledged heartbeat
            has reported; the reply names those of them that are revoked.
        placement: Version that a parameter server knows; -1: of a worker.
        active_workers: `checksum_of` the active workers that a parameter server knows; -1: it
            knows none.
        paused: A worker has done as `pause` says: it works on nothing, and what it held is free.
        leaves_in_seconds: A parameter server was asked to end (SIGTERM) and does so then, unless
            it may sooner; None: it was not asked.
    """

    member: Member
    generation: int
    reports: tuple[TaskReport, ...]
    stats: MemberStats
    held: tuple[HeldLease, ...] = ()
    placement: int = -1
    active_workers: int = -1
    paused: bool = False
    leaves_in_seconds: float | None = None


def checksum_of(workers: Iterable[str]) -> int:
    """Tells sets of workers apart, whatever their order."""
    return zlib.crc32("\n".join(sorted(workers)).encode())


@dataclass(frozen=True)
class HeartbeatReply:
    """What a member has to know.

    Attributes:
        directive: `go_on`; `pause`: finish the batch, report, hand back all leases, and ask for
            none until the next reply with another directive; `register_again`: the master does not
            know this incarnation, or it lost its leases, and everything it holds is void; `leave`:
            finish the batch, report, end with exit code 0.
        generation: Generation of the job now; a worker of an older one drops leases and caches.
        ps_addresses: By index.
        revoked: Leases that are no longer the worker's; it stops working on them.
        active_workers: To parameter servers that gather rounds: incarnations that hold training
            leases; None: it knows them, or gathers none.
        placement: For a parameter server that knows another version; None: it knows the right one.
        move: As in `PlacementRequest`.
    """

    directive: Directive
    generation: int
    ps_addresses: tuple[str, ...]
    revoked: tuple[HeldLease, ...]
    active_workers: tuple[str, ...] | None
    placement: Placement | None = None
    move: int = 0


@dataclass(frozen=True)
class LeaseRequest:
    """A worker asks for work.

    Attributes:
        generation: The generation that the sender works in.
        num_tasks: How many more tasks it would hold.
        held: As in a heartbeat; a lease that the worker was given and does not name is given again,
            so that a lost reply loses no task.
        wait_seconds: For so long the answer may be kept back while there is nothing to give; the
            worker goes on with what it holds meanwhile.
    """

    member: Member
    generation: int
    num_tasks: int
    held: tuple[HeldLease, ...] = ()
    wait_seconds: float = 0.0


@dataclass(frozen=True)
class LeasedTask:
    """Work for one worker.

    Attributes:
        key: The task.
        attempt: To be named in every push and report.
        done_mask: Batches that are done already and are to be left out.
        first_row: The first row of a score task.
        num_rows: The number of rows of a score task.
        scores_file: Where the logits of a score task go, float32, written whole or not at all;
            empty if they are not kept.
        learning_rate_factor: The part of the schedule's factor that is the same all epoch long.
    """

    key: TaskKey
    attempt: int
    done_mask: int
    first_row: int
    num_rows: int
    scores_file: str
    learning_rate_factor: float = 1.0


@dataclass(frozen=True)
class LeaseReply:
    """The answer; silence and errors are never the end of data.

    Attributes:
        verdict: `tasks`; `wait`: ask again after `wait_seconds`; `leave`: the worker is wanted no
            more; `end`: nothing is left for ever.
        generation: Generation of the job now.
        tasks: Leased now.
        wait_seconds: For `wait`.
    """

    verdict: Verdict
    generation: int
    tasks: tuple[LeasedTask, ...]
    wait_seconds: float


@dataclass(frozen=True)
class BitmapScope:
    """A part of what a parameter server holds.

    Attributes:
        dense: The range of dense parameters, from the first place to before the second.
    """

    partitions: tuple[int, ...]
    dense: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class TaskBitmap:
    """Batches of a training task that a parameter server has applied.

    Attributes:
        mask: Batches.
        scope: Where they were applied; None: to all that the server holds. After a restore under
            another number of servers its parts may come from servers that had applied different
            batches, until these are trained again.
    """

    epoch: int
    task: int
    mask: int
    scope: BitmapScope | None = None


@dataclass(frozen=True)
class MoveRequest:
    """The master tells a parameter server to take partitions over from another one.

    Attributes:
        version: Version of the placement after the move.
        source: Address of the server that holds them.
        takes_dense: The source's whole dense range moves too.
    """

    generation: int
    version: int
    source: str
    partitions: tuple[int, ...]
    takes_dense: bool


@dataclass(frozen=True)
class MoveReply:
    """Whether the target has everything; the source holds updates up until it hears the outcome.

    Attributes:
        refused: Why the move cannot be; empty if it can.
        num_rows: Rows that were copied while updates went on.
        num_changed: Rows that were copied again, because they had changed meanwhile.
    """

    refused: str
    num_rows: int
    num_changed: int


@dataclass(frozen=True)
class MovedRowsRequest:
    """The target of a move asks the source for rows.

    Attributes:
        move: The move that it belongs to; the first request begins it.
        first_row: Where the source goes on; -1: rows that have changed since they were shown.
    """

    move: MoveRequest
    first_row: int


@dataclass(frozen=True)
class HoldReply:
    """The source answers nobody from now on; what it knows beside rows.

    Attributes:
        refused: Why it does not hold; empty if it does.
        epoch: Newest one.
        bitmaps: Batches that it has applied.
        attempts: The newest attempt at each task: epoch, task, attempt.
        pieces: Pieces of its dense range, in case that moves.
    """

    refused: str
    epoch: int
    bitmaps: tuple[TaskBitmap, ...]
    attempts: tuple[tuple[int, int, int], ...]
    pieces: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class PlacementRequest:
    """The master tells who holds what from now on.

    Attributes:
        generation: The job's generation; a server that holds nothing yet begins with it.
        placement: The durable placement.
        move: Version of the placement that a move is about to make; any other move is void. 0:
            none is.
    """

    generation: int
    placement: Placement
    move: int


@dataclass(frozen=True)
class PlacementReply:
    """A server knows who holds what.

    Attributes:
        held_seconds: For how long it held updates up in a move, at most, since it started.
    """

    held_seconds: float


@dataclass(frozen=True)
class SnapshotRequest:
    """The master asks a parameter server for its part of a cut.

    Attributes:
        cut: Number of the cut; grows, and is never used twice.
        parent: The cut that deltas build on. A server that does not know what changed since exactly
            that one, because a cut after it failed elsewhere, writes all rows. 0: none.
        full: Write all rows, not only those touched since `parent`.
        oldest_step: First, rows last updated at an earlier step are removed; 0: none. No batch is
            on its way then.
        epoch: The epoch of the previous cut.
        over: Tasks of that epoch that it has shown to be done or given up, as the first of each
            run and the one after it: their bitmaps, and those of earlier epochs, are left out.
        placement: Version of the placement that says what each server writes.
        prefix: Begins the keys of what is written.
    """

    generation: int
    cut: int
    parent: int
    full: bool
    oldest_step: int = 0
    epoch: int = 0
    over: tuple[tuple[int, int], ...] = ()
    placement: int = 0
    prefix: str = ""


@dataclass(frozen=True)
class SnapshotReply:
    """A parameter server's part of a cut, durable.

    Attributes:
        refused: Why there is none; empty if there is.
        files: The files that were written.
        bitmaps: Batches that the snapshot holds, less what the request leaves out.
        version: Updates applied when it was taken.
        pause_seconds: For how long updates waited, at most.
        of_storage: Refused because files could not be written at the moment.
    """

    refused: str
    files: tuple[CutFile, ...]
    bitmaps: tuple[TaskBitmap, ...]
    version: int
    pause_seconds: float
    of_storage: bool = False


@dataclass(frozen=True)
class PartitionFiles:
    """Files that make up one partition at a cut, base first; and its owner's bitmaps."""

    partition: int
    files: tuple[CutFile, ...]
    bitmaps_of: int


@dataclass(frozen=True)
class RestoreRequest:
    """The master tells a parameter server what it holds from now on.

    Attributes:
        generation: From now on; older pushes and pulls are refused.
        cut: The cut to restore; 0: nothing was trained yet.
        partitions: Files of all partitions; a server reads those that it owns.
        dense: Files of the dense parameters; a server reads its range.
        bitmaps: By number of the server that took the snapshot, `PartitionFiles.bitmaps_of`.
        ranges: Ranges of dense parameters by number of the server that took the snapshot; empty: as
            a job of so many servers begins.
        placement: Which server holds what from now on; None: as the job began.
    """

    generation: int
    cut: int
    partitions: tuple[PartitionFiles, ...]
    dense: tuple[CutFile, ...]
    bitmaps: tuple[tuple[TaskBitmap, ...], ...]
    ranges: tuple[tuple[int, int], ...] = ()
    placement: Placement | None = None


@dataclass(frozen=True)
class RestoreReply:
    """Whether a parameter server restored itself.

    Attributes:
        refused: Why not, naming the file if it is one; empty if all is well.
        num_rows: Rows held now.
        damaged: The cut itself is proven bad; otherwise it may be restored another time.
        announced: The newest generation that the server knows, if that is why; 0 otherwise.
    """

    refused: str
    num_rows: int
    damaged: bool = False
    announced: int = 0


@dataclass(frozen=True)
class ScaleRequest:
    """A person asks for another number of workers, or of parameter servers.

    Attributes:
        min_workers: Training needs so many; None leaves the bound.
        max_workers: There are never more; None leaves the bound.
        target_workers: Wanted now, within the bounds; None: as many as there may be, unless all of
            these are None, which leaves the workers as they are.
        parameter_servers: Wanted now; None leaves their number.
    """

    min_workers: int | None
    max_workers: int | None
    target_workers: int | None
    parameter_servers: int | None = None


@dataclass(frozen=True)
class Empty:
    """Nothing to say."""
