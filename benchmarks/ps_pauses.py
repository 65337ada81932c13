"""The longest time for which a parameter server holds its lock, by what it does and by rows.

One server in this process, with rows of 4 values under Adagrad: 48 bytes of a record, 57 with key
and mark, and 16 to 64 of the index while that grows; 30 million rows take about 4 GB, and a cut of
them 1.5 GB in `--folder`. The rows are made and updated 30,000 at a time. Then a cut of all of them
is written while updates go on, one before which half of the rows are evicted, and one whose disk
stalls, so that updates wait for it and give it up where rows are many. Prints a Markdown table of
milliseconds, and for how long nobody was served because rows were evicted: no batch is on its way
then.

    python benchmarks/ps_pauses.py [--rows 1000000 3000000 10000000 30000000] [--folder runs]
"""

import argparse
import itertools
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import numpy as np
from machine import describe_machine, print_machine, print_table, write_results
from ps_speed import job_spec

from ctr_pipeline.distributed.coordination.messages import (
    RestoreRequest,
    SnapshotReply,
    SnapshotRequest,
)
from ctr_pipeline.distributed.coordination.rounds import BatchId
from ctr_pipeline.distributed.coordination.spec import BATCHES_PER_TASK
from ctr_pipeline.distributed.ps.core import PsCore
from ctr_pipeline.distributed.ps.program import row_threads, warm_up
from ctr_pipeline.distributed.rpc.packed import (
    DenseRequest,
    PullReply,
    PullRequest,
    PushReply,
    PushRequest,
    Status,
)
from ctr_pipeline.embeddings.cut_storage import CutStorage
from ctr_pipeline.embeddings.log_chain import CutFile
from ctr_pipeline.embeddings.row_log import RowLogWriter
from ctr_pipeline.specs.initializer import InitializerSpec
from ctr_pipeline.specs.optimizer import OptimizerSpec
from ctr_pipeline.specs.segment import SegmentSpec
from ctr_pipeline.specs.table import TableSpec

NUM_KEYS, WIDTH = 30_000, 4
OLD_STEP, NEW_STEP = 1, 100
NUM_REPEATS = 30
STALL_SECONDS = 2.0


@dataclass
class Server:
    """A server and what is asked of it.

    Args:
        core: Restored.
        longest_ms: The longest hold of its lock, by what it did.
        unserved_seconds: For how long nobody was served.
    """

    core: PsCore
    longest_ms: dict[str, float]
    num_pushed: int = 0
    unserved_seconds: float = 0.0

    def pull(self, keys: np.ndarray) -> bool:
        """Makes rows and reads them; whether it was served."""
        request = PullRequest(0, None, 0, create=True, dense_version=None, keys=keys)
        reply = self.core.updates.pull(PullRequest.decode(request.encode()))
        if not isinstance(reply, PullReply):
            raise TypeError("a pull of asynchronous mode is answered at once")
        return reply.status is Status.DONE

    def push(self, keys: np.ndarray, step: int) -> bool:
        """Updates rows; whether it was served."""
        task, number = divmod(self.num_pushed, BATCHES_PER_TASK)
        request = PushRequest(
            generation=0,
            batch=BatchId(0, task, 1, number),
            worker=0,
            step=step,
            learning_rate_factor=1.0,
            num_examples=NUM_KEYS,
            version=0,
            keys=keys,
            num_occurrences=np.ones(len(keys), np.int32),
            sums=np.ones((len(keys), WIDTH), np.float32),
            dense=np.zeros(1, np.float32),
            fresh_keys=keys[:0],
        )
        reply = self.core.updates.push(PushRequest.decode(request.encode()))
        if not isinstance(reply, PushReply):
            raise TypeError("a push of asynchronous mode is answered at once")
        served = reply.status is Status.DONE
        self.num_pushed += served
        return served

    def note(self, what: str) -> None:
        """Notes the longest hold since the last note."""
        held = self.core.serving.lock.take_longest() * 1e3
        self.longest_ms[what] = max(self.longest_ms.get(what, 0.0), held)

    def cut(self, request: SnapshotRequest, chunks: Sequence[np.ndarray]) -> SnapshotReply:
        """Takes a cut while updates of rows go on, of these by turns."""
        replies: list[SnapshotReply] = []
        thread = threading.Thread(
            target=lambda: replies.append(self.core.checkpoints.snapshot(request))
        )
        thread.start()
        for keys in itertools.cycle(chunks):
            if not thread.is_alive():
                break
            started = time.perf_counter()
            served = self.push(keys, NEW_STEP)
            if not served:
                time.sleep(0.005)
                self.unserved_seconds += time.perf_counter() - started
        thread.join()
        return replies[0]


def measure(num_rows: int, folder: Path) -> dict[str, float]:
    """Longest holds of the lock with so many rows, in milliseconds."""
    segment = SegmentSpec(
        "vector",
        WIDTH,
        OptimizerSpec(name="adagrad", learning_rate=0.05),
        "sum",
        0.0,
        0,
        InitializerSpec(scale=0.01),
    )
    spec = replace(
        job_spec(1, num_rows, 1, batch_size=NUM_KEYS, folder=str(folder)),
        tables=(TableSpec("rows", num_rows),),
        segments=(segment,),
    )
    warm_up(spec)
    server = Server(PsCore(spec, 0, threads=row_threads(spec)), {})
    server.core.checkpoints.restore(RestoreRequest(0, 0, (), (), ()))
    server.core.updates.init_dense(DenseRequest(0, 0, np.zeros(1, np.float32)))
    rng = np.random.default_rng(0)
    chunks = np.array_split(rng.permutation(num_rows), max(num_rows // NUM_KEYS, 1))
    server.core.serving.lock.take_longest()
    for number, keys in enumerate(chunks):
        server.pull(keys)
        server.note("pull, new rows")
        server.push(keys, NEW_STEP if number % 2 else OLD_STEP)
        server.note("push")
    for _ in range(NUM_REPEATS):
        keys = rng.choice(num_rows, NUM_KEYS, replace=False)
        server.pull(keys)
        server.note("pull")
    # Of a step that stays.
    chunk = [chunks[min(1, len(chunks) - 1)]]
    base = require_done(server.cut(SnapshotRequest(0, 1, 0, True), chunk))
    server.note("cut of all rows, pushes beside it")
    server.unserved_seconds = 0.0
    delta = SnapshotRequest(0, 2, 1, False, oldest_step=NEW_STEP)
    require_done(server.cut(delta, chunk))
    server.note("cut after eviction")
    with stalling_disk():
        server.cut(SnapshotRequest(0, 3, 0, True), chunks[1::2] or chunks)
    server.note("cut, disk stalls")
    remove(folder, base.files)
    return {
        **server.longest_ms,
        "evicted": server.core.state.num_evicted,
        "unserved, s": server.unserved_seconds,
    }


def require_done(reply: SnapshotReply) -> SnapshotReply:
    """The reply, unless there was no cut."""
    if reply.refused:
        raise RuntimeError(reply.refused)
    return reply


@contextmanager
def stalling_disk() -> Iterator[None]:
    """The disk takes nothing for a while once a cut has begun."""
    original, stalls = RowLogWriter.flush, itertools.chain([STALL_SECONDS], itertools.repeat(0.0))

    def flush(writer: RowLogWriter) -> None:
        time.sleep(next(stalls))
        original(writer)

    with mock.patch.object(RowLogWriter, "flush", flush):
        yield


def remove(folder: Path, files: tuple[CutFile, ...]) -> None:
    """Deletes files of a cut."""
    for file in files:
        (folder / file.name).unlink(missing_ok=True)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--rows", type=int, nargs="+", default=[1_000_000, 3_000_000, 10_000_000, 30_000_000]
    )
    parser.add_argument("--folder", type=Path, help="for the cuts; a temporary one otherwise")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    machine = describe_machine()
    print_machine(machine)
    results = {}
    for num_rows in [200_000, 600_000] if options.quick else options.rows:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            CutStorage.at(Path(folder)).begin("benchmark")
            results[str(num_rows)] = measure(num_rows, Path(folder))
    names = list(next(iter(results.values())))
    print_table(
        ["rows", *names],
        [
            [f"{int(num_rows):,}", *(f"{figures[name]:,.1f}" for name in names)]
            for num_rows, figures in results.items()
        ],
    )
    write_results(options.json, benchmark="ps_pauses", machine=machine, results=results)


if __name__ == "__main__":
    main()
