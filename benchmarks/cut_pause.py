r"""Time for which updates wait while a parameter server writes a cut.

A store of 2.6 million rows (a linear weight under Adagrad, a vector of 16 under Adam: 208 bytes a
record) is updated without a pause, 40,000 drawn keys a time, first alone, then while cuts of all
rows and of the changed ones are written. Then the cuts are read back into an empty store and
compared with it, bit for bit.

With `--storage`, cuts of all rows are written there as well, by turns, and their files once more by
themselves, which is the store's own time:

    python -m tests.storage.store_servers seaweedfs \
        python benchmarks/cut_pause.py --storage s3://runs-of-tests/cuts

With `--job` instead: a real job, one worker and one or two parameter servers as processes, about as
many rows; see `cut_job.py`.

    python benchmarks/cut_pause.py [--rows 2600000] [--repeats 3] [--folder runs]
    python benchmarks/cut_pause.py --job [--cut-seconds 10] [--epochs 4]
"""

import argparse
import itertools
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
from machine import Spread, describe_machine, print_machine, print_table, write_results
from store_speed import SEGMENTS

from ctr_pipeline.embeddings.cut_storage import CutStorage
from ctr_pipeline.embeddings.log_chain import CutFile, extend_chain
from ctr_pipeline.embeddings.row_log import restore_rows
from ctr_pipeline.embeddings.snapshot import RowSnapshot
from ctr_pipeline.embeddings.store import EmbeddingStore
from ctr_pipeline.specs.table import TableSpec

NUM_PARTITIONS = 64
NUM_DRAWN = 40_000
# Of which a million records meet 2.6 million in 26 tables.
ROWS_PER_TABLE = 650_000


@dataclass(frozen=True)
class CutFigures:
    """What one cut cost.

    Attributes:
        seconds: Until its files were durable.
        num_rows: Rows written.
        num_bytes: Bytes written.
        update_ms: Of each update meanwhile.
        pause_ms: The longest time for which the lock was held or an update waited for room.
        memory_bytes: Growth of resident memory, at most.
    """

    seconds: float
    num_rows: int
    num_bytes: int
    update_ms: list[float]
    pause_ms: float
    memory_bytes: int


class Updates:
    """Updates of random keys, one after another."""

    def __init__(self, store: EmbeddingStore, num_rows: int) -> None:
        self._store = store
        self._num_rows = num_rows
        self._rng = np.random.default_rng(0)
        self._gradients = self._rng.normal(0, 1e-3, (NUM_DRAWN, store.width)).astype(np.float32)
        self._step = 0

    def one_ms(self) -> float:
        """Milliseconds of one update."""
        keys = np.unique(self._rng.integers(0, self._num_rows, NUM_DRAWN))
        ones = np.ones(len(keys), np.int32)
        self._step += 1
        started = time.perf_counter()
        self._store.apply_gradients(
            keys,
            self._gradients[: len(keys)],
            ones,
            step=self._step,
            learning_rate_factor=1.0,
            num_examples=4096,
        )
        return (time.perf_counter() - started) * 1e3


def make_store(num_rows: int, threads: int) -> EmbeddingStore:
    """An empty store."""
    return EmbeddingStore([TableSpec("t", num_rows)], SEGMENTS, seed=0, threads=threads)


def run_beside(work: Callable[[], None], beside: Callable[[], None]) -> None:
    """Runs `beside` over and over until `work`, in another thread, is done."""
    failures: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)
            raise

    thread = threading.Thread(target=guarded)
    thread.start()
    while thread.is_alive():
        beside()
    thread.join()
    if failures:
        raise failures[0]


def measure_cut(
    store: EmbeddingStore, updates: Updates, storage: CutStorage, *, cut: int, full: bool
) -> tuple[CutFigures, tuple[CutFile, ...]]:
    """Writes a cut while updates go on."""
    process = psutil.Process()
    before = process.memory_info().rss
    most = before
    update_ms: list[float] = []
    files: list[CutFile] = []
    started = time.perf_counter()
    snapshot = RowSnapshot(store, cut=cut)
    snapshot.begin(full=full)

    def write() -> None:
        files.extend(
            snapshot.write(storage, num_partitions=NUM_PARTITIONS, partitions=range(NUM_PARTITIONS))
        )

    def update() -> None:
        nonlocal most
        update_ms.append(updates.one_ms())
        most = max(most, process.memory_info().rss)

    run_beside(write, update)
    figures = CutFigures(
        seconds=time.perf_counter() - started,
        num_rows=sum(file.num_rows for file in files),
        num_bytes=sum(file.num_bytes for file in files),
        update_ms=update_ms,
        pause_ms=snapshot.longest_pause_seconds * 1e3,
        memory_bytes=most - before,
    )
    return figures, tuple(files)


def write_seconds(storage: CutStorage, folder: Path, files: Sequence[CutFile]) -> float:
    """Seconds to write the files of a cut again, under other names, and nothing beside."""
    contents = [(file.name, (folder / file.name).read_bytes()) for file in files]
    started = time.perf_counter()
    for name, data in contents:
        storage.write(f"again-{name}", data)
    return time.perf_counter() - started


def same_rows(one: EmbeddingStore, other: EmbeddingStore) -> bool:
    """Whether two stores hold the same records, bit for bit."""
    if one.num_rows != other.num_rows:
        return False
    orders = [np.argsort(store.rows.keys_N[: store.num_rows]) for store in (one, other)]
    for first in range(0, one.num_rows, 100_000):
        parts = [
            store.rows.headers_NR[order[first : first + 100_000]]
            for store, order in zip((one, other), orders, strict=True)
        ]
        if not np.array_equal(*parts):
            return False
    return True


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_600_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2, help="Of the store.")
    parser.add_argument("--folder", type=Path, help="Where the cuts go; default: temporary files.")
    parser.add_argument("--storage", help="Where cuts go as well, such as s3://bucket/cuts.")
    parser.add_argument("--quick", action="store_true", help="200,000 rows, once.")
    parser.add_argument("--json", type=Path, help="Write the results there.")
    parser.add_argument("--job", action="store_true", help="Steps of a worker in a real job.")
    parser.add_argument("--only", type=int, help="With --job: the number of a run, from 0.")
    parser.add_argument("--records", type=int, default=1_000_000, help="With --job: of an epoch.")
    parser.add_argument("--epochs", type=int, default=4, help="With --job: the first is not seen.")
    parser.add_argument("--cut-seconds", type=float, default=10.0, help="With --job: between cuts.")
    options = parser.parse_args()
    if options.job:
        from cut_job import measure_job

        machine = describe_machine()
        print_machine(machine)
        found = measure_job(
            num_records=100_000 if options.quick else options.records,
            rows_per_table=20_000 if options.quick else ROWS_PER_TABLE,
            epochs=options.epochs,
            cut_seconds=2.0 if options.quick else options.cut_seconds,
            storage=options.storage,
            only=options.only,
        )
        write_results(options.json, benchmark="cut_pause_job", machine=machine, results=found)
        return
    num_rows = 200_000 if options.quick else options.rows
    repeats = 1 if options.quick else options.repeats

    machine = describe_machine()
    store = make_store(num_rows, options.threads)
    store.read_rows(np.random.default_rng(1).permutation(num_rows).astype(np.int64), create=True)
    updates = Updates(store, num_rows)
    with tempfile.TemporaryDirectory(prefix="cut-pause-", dir=options.folder) as temporary:
        folder = Path(temporary)
        disk = CutStorage.at(folder)
        remote = CutStorage.at(options.storage) if options.storage else None
        # Everything is compiled and every page is there before anything is measured.
        measure_cut(store, updates, disk, cut=1, full=True)
        alone = [updates.one_ms() for _ in range(20 * repeats + 20)][20:]
        measured: dict[str, list[CutFigures]] = {"all rows": [], "changed rows": []}
        remote_cuts: list[CutFigures] = []
        remote_writes: list[float] = []
        chains: dict[int, tuple[CutFile, ...]] = {}
        cuts = itertools.count(2)
        for _ in range(repeats):
            if remote is not None:
                # Before the others, as a cut of the changed rows follows the last one of all.
                one, _ = measure_cut(store, updates, remote, cut=next(cuts), full=True)
                remote_cuts.append(one)
            for name, figures in measured.items():
                full = name == "all rows"
                one, files = measure_cut(store, updates, disk, cut=next(cuts), full=full)
                figures.append(one)
                for file in files:
                    chains[file.partition] = extend_chain(chains.get(file.partition, ()), file)
                if remote is not None and full:
                    remote_writes.append(write_seconds(remote, folder, files))
        last = RowSnapshot(store, cut=next(cuts))
        last.begin(full=False)
        for file in last.write(
            disk, num_partitions=NUM_PARTITIONS, partitions=range(NUM_PARTITIONS)
        ):
            chains[file.partition] = extend_chain(chains[file.partition], file)
        other = make_store(num_rows, options.threads)
        started = time.perf_counter()
        restore_rows(
            other,
            disk,
            list(chains.values()),
            num_partitions=NUM_PARTITIONS,
            cut=last.cut,
        )
        restore_seconds = time.perf_counter() - started
        read_bytes = sum(file.num_bytes for chain in chains.values() for file in chain)
    if not same_rows(store, other):
        raise SystemExit("what was read back is not what was written")

    print_machine(machine)
    print(
        f"{num_rows:,} rows of {store.row_bytes} bytes, {num_rows * store.row_bytes / 1e6:,.0f} MB"
    )
    print(f"Updates of {NUM_DRAWN:,} drawn keys alone: median {statistics.median(alone):.1f} ms, ")
    print(f"longest {max(alone):.1f} ms\n")
    header = [
        "cut of",
        "seconds",
        "rows/s",
        "MB",
        "update, median ms",
        "update, longest ms",
        "lock held, longest ms",
        "memory, MB",
    ]
    rows = []
    results: dict[str, object] = {
        "alone_ms": {"median": statistics.median(alone), "longest": max(alone)},
        "restore": {"seconds": restore_seconds, "bytes": read_bytes, "rows": other.num_rows},
    }
    if remote_cuts:
        measured["all rows, in the store"] = remote_cuts
    for name, figures in measured.items():
        spreads = {
            "seconds": Spread.of([one.seconds for one in figures]),
            "rows_per_second": Spread.of([one.num_rows / one.seconds for one in figures]),
            "megabytes": Spread.of([one.num_bytes / 1e6 for one in figures]),
            "median_update_ms": Spread.of([statistics.median(one.update_ms) for one in figures]),
            "longest_update_ms": Spread.of([max(one.update_ms) for one in figures]),
            "longest_pause_ms": Spread.of([one.pause_ms for one in figures]),
            "memory_megabytes": Spread.of([one.memory_bytes / 1e6 for one in figures]),
        }
        digits = {"seconds": 2, "rows_per_second": 0, "megabytes": 0, "memory_megabytes": 0}
        rows.append([name, *(value.show(digits.get(key, 1)) for key, value in spreads.items())])
        results[name] = {key: value.as_dict() for key, value in spreads.items()}
    print_table(header, rows)
    if remote_writes:
        writes = Spread.of(remote_writes)
        above = Spread.of(
            [
                (far.seconds - write) / near.seconds
                for far, write, near in zip(
                    remote_cuts, remote_writes, measured["all rows"], strict=True
                )
            ]
        )
        print(
            f"The store took {writes.show(2)} s to write the files of a cut by themselves; without "
            f"that, a cut in the store takes {above.show(2)} times one on the disk\n"
        )
        results["store alone"] = writes.as_dict()
        results["store without its writing, beside the disk"] = above.as_dict()
    print(
        f"Read back, a base and its deltas, {read_bytes / 1e6:,.0f} MB: "
        f"{restore_seconds:.2f} s for {other.num_rows:,} rows, equal bit for bit\n"
    )
    write_results(options.json, benchmark="cut_pause", machine=machine, results=results)


if __name__ == "__main__":
    main()
