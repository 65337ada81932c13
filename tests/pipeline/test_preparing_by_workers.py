"""Rows that workers read and encode are those that one process does, whoever is killed."""

import contextlib
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from watched_run import with_word

from ctr_pipeline.apps.convert import Target, convert_rows
from ctr_pipeline.apps.sample import write_criteo_sample
from ctr_pipeline.config.loader import load_config
from ctr_pipeline.dataset import parts
from ctr_pipeline.dataset.encoded import EncodedReader, load_meta
from ctr_pipeline.dataset.ingested import load_ingested
from ctr_pipeline.distributed.coordination.preparation import PreparationBoard
from ctr_pipeline.distributed.launchers.restarts import KeptWorkers
from ctr_pipeline.distributed.master.ledger.unit_file import UnitsDone, read_units_done
from ctr_pipeline.embeddings.counts import pack_counts
from ctr_pipeline.errors import Interrupted, TrainingError
from ctr_pipeline.pipeline.context import RunContext
from ctr_pipeline.pipeline.job.preparing import PhaseWorkers
from ctr_pipeline.pipeline.run import prepare_rows
from ctr_pipeline.progress import SilentProgress
from tests.distributed.waiting import wait_until
from tests.maxcompute.maxcompute_service import service_in_environment

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(300)]

NUM_ROWS = 12_000
PART_ROWS = 500
LEASE_SECONDS = 0.1
SPLITS = ("train", "valid", "test")
CONFIG = """
data:
  train: {data}
  label: label
  {more}
features:
  - {{columns: "I1..I6", number: [log, standardize], id: {{bucketize: {{quantiles: 10}}}}}}
  - {{columns: "C1..C6", id: {{vocabulary: {{min_count: 2}}}}}}
{features}
train: {{seed: 3}}
runtime:
  mode: processes
  bytes_per_reading_task: {unit_bytes}
  rows_per_encoding_task: 1000
  workers: {{min: 1, max: {workers}}}
output: {output}
"""


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    add = parts.PartsWriter.add

    def add_piecewise(writer, table):
        for first in range(0, table.num_rows, PART_ROWS):
            add(writer, table.slice(first, PART_ROWS))

    monkeypatch.setattr(parts, "PART_ROWS", PART_ROWS)
    monkeypatch.setattr(parts.PartsWriter, "add", add_piecewise)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    text = folder / "rows.tsv"
    write_criteo_sample(text, num_rows=NUM_ROWS, seed=1, progress=SilentProgress())
    names = ["label", *(f"I{n}" for n in range(1, 14)), *(f"C{n}" for n in range(1, 27))]
    text.write_text("\t".join(names) + "\n" + text.read_text())
    return folder


def write_as(folder, kind, name="rows"):
    """The rows in a format; converted when they are needed first."""
    file = folder / f"{name}.{kind}"
    if not file.exists():
        record = "example" if kind == "recordio" else "line"
        target = Target(file, kind, record=record)
        convert_rows(str(folder / f"{name}.tsv"), target, progress=SilentProgress())
    return file


def with_times(folder, kind):
    """The rows in a format, each with a time."""
    file = folder / "timed.tsv"
    if not file.exists():
        rows = [line.split("\t") for line in (folder / "rows.tsv").read_text().splitlines()]
        place = rows[0].index("I2")
        for number, row in enumerate(rows[1:]):
            row[place] = str(1_700_000_000 + number * 7919 % 1000)
        file.write_text("".join("\t".join(row) + "\n" for row in rows))
    written = write_as(folder, kind, "timed")
    if kind == "parquet":
        # A file is cut between its row groups.
        pq.write_table(pq.read_table(written), written, row_group_size=NUM_ROWS // 12)
    return written


class Watching:
    """Looks again and again, in a thread, while the block lasts."""

    pause_seconds = 0.01

    def __enter__(self):
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()

    def _watch(self):
        while not self._over.wait(self.pause_seconds):
            self.look()


def working_processes():
    return with_word(psutil.Process().children(recursive=True), "--units")


def has_ended(process):
    """Whether it has, also where its launcher has not taken its exit code yet."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


class Shared:
    """What a run gives to workers: tasks of each phase, and who does them."""

    def __init__(self):
        self.num_units = {}
        self.pids = set()

    def share(self, workers, work, units):
        self.num_units[work.phase] = len(units)
        found = workers.share(work, units)
        self.pids |= {one.pid for one in working_processes()}
        return found


def context_of(folder, data, *, workers=3, more="", features="", unit_bytes=1 << 40):
    folder.mkdir(exist_ok=True)
    config = folder / "config.yaml"
    config.write_text(
        CONFIG.format(
            data=data,
            output=folder / "run",
            workers=workers,
            more=more,
            features=features,
            unit_bytes=unit_bytes,
        )
    )
    return RunContext.create(load_config(config), SilentProgress())


def prepare(context, *, by_workers, shared=None):
    if not by_workers:
        return prepare_rows(context).encoding
    with PhaseWorkers(context, context.run.preparing) as workers:
        share = partial((shared or Shared()).share, workers)
        return prepare_rows(context, share_units=share).encoding


def assert_same(found, expected, rtol=0.0):
    """Statistics that others counted may differ in the last bits, and with them the numbers."""
    if not rtol:
        assert found.fingerprint == expected.fingerprint
    np.testing.assert_array_equal(pack_counts(found.counts), pack_counts(expected.counts))
    for split, folder in expected.folders.items():
        with EncodedReader(found.folders[split]) as ours, EncodedReader(folder) as alone:
            assert ours.meta.num_rows == alone.meta.num_rows
            assert ours.meta.num_positive == alone.meta.num_positive
            mine, theirs = (one.read_range(0, one.meta.num_rows) for one in (ours, alone))
        for name in ("ids_BF", "labels_B"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))
        np.testing.assert_allclose(mine.numbers_BN, theirs.numbers_BN, rtol=rtol, atol=rtol)
        if theirs.weights_B is not None:
            np.testing.assert_allclose(mine.weights_B, theirs.weights_B, rtol=1e-6)


def num_parts(encoding):
    return {split: len(load_meta(folder).parts) for split, folder in encoding.folders.items()}


@pytest.mark.parametrize(("kind", "workers"), [("tsv", 3), ("parquet", 1), ("recordio", 3)])
def test_workers_encode_as_one_process_does(sources, tmp_path, kind, workers):
    data = write_as(sources, kind)
    alone = prepare(context_of(tmp_path / "alone", data), by_workers=False)
    context = context_of(tmp_path / "shared", data, workers=workers)
    shared = prepare(context, by_workers=True)
    assert num_parts(alone) == dict.fromkeys(SPLITS, 0)
    assert num_parts(shared)["train"] > 5
    assert min(num_parts(shared).values()) > 0
    assert_same(shared, alone)
    assert not any(folder.exists() for folder in (context.run.encoding, context.run.preparing))


def read_rows(context):
    """What was read of each split, without how it is divided into parts."""
    rows = load_ingested(context.run.ingested)
    tables = {
        split: parts.read_columns(one.files, parts.column_names(one.files))
        for split, one in rows.splits.items()
    }
    sizes = {split: (one.num_rows, one.num_positive) for split, one in rows.splits.items()}
    times = {split: one.times for split, one in rows.splits.items()}
    return rows.fingerprint, rows.bad_rows, sizes, times, tables


def assert_read_alike(found, expected):
    assert found[:4] == expected[:4]
    for split, table in expected[4].items():
        assert found[4][split].equals(table)


UNIT_BYTES = 200_000


@pytest.mark.parametrize(
    ("kind", "split"),
    [
        ("tsv", "{by: order}"),
        ("parquet", "{by: random}"),
        ("recordio", "{by: time, column: I2, time_format: epoch_seconds}"),
        ("tsv", "{by: hash, column: C3}"),
    ],
)
def test_workers_read_as_one_process_does(sources, tmp_path, kind, split):
    data = with_times(sources, kind)
    more = f"quote: null\n  split: {split}"
    context = context_of(tmp_path / "alone", data, more=more)
    prepare(context, by_workers=False)
    shared = context_of(tmp_path / "shared", data, more=more, unit_bytes=UNIT_BYTES)
    given = Shared()
    prepare(shared, by_workers=True, shared=given)
    assert given.num_units["read"] >= 2
    # They stay from the first phase to the last one.
    assert len(given.pids) == 3
    assert_read_alike(read_rows(shared), read_rows(context))
    assert not any(folder.exists() for folder in (*shared.run.shared_work, shared.run.preparing))


def clicks(num_rows, start):
    numbers = range(start, start + num_rows)
    return pa.table(
        {
            "label": pa.array([int(n * 7919 % 100 < 30) for n in numbers], pa.int64()),
            **{f"I{k}": pa.array([n * k % 97 / 8 for n in numbers]) for k in range(1, 7)},
            **{f"C{k}": pa.array([f"c{n * n % (k * 11)}" for n in numbers]) for k in range(1, 7)},
        }
    )


PARTITIONS = "\n  ".join(f"{name}: odps://ads/clicks/ds={name}" for name in ("valid", "test"))


@pytest.mark.parametrize("more", [PARTITIONS, "split: {by: hash, column: C3}"])
def test_workers_read_ranges_of_a_table_that_the_service_has_counted(tmp_path, monkeypatch, more):
    sizes = {"train": (9000, 0), "valid": (1500, 9000), "test": (1500, 10_500)}
    with service_in_environment(monkeypatch) as service:
        splits = {split: clicks(*size) for split, size in sizes.items()}
        service.add_partitions("clicks", "ds", splits)
        context = context_of(tmp_path / "alone", "odps://ads/clicks/ds=train", more=more)
        alone = prepare(context, by_workers=False)
        # The stand-in says of each table that it has 4096 bytes.
        shared = context_of(
            tmp_path / "shared", "odps://ads/clicks/ds=train", more=more, unit_bytes=1000
        )
        given = Shared()
        with Killer(shared.run.reading, "parts/*/*", "read.json", num_kills=1) as killer:
            found = prepare(shared, by_workers=True, shared=given)
    assert killer.killed
    assert given.num_units["read"] > 3
    assert_read_alike(read_rows(shared), read_rows(context))
    assert_same(found, alone, rtol=1e-6)


@pytest.mark.parametrize("split", ["{by: order}", "{by: hash, column: C3}"])
def test_rows_that_killed_workers_read_are_read_once(sources, tmp_path, split):
    data, more = write_as(sources, "tsv"), f"quote: null\n  split: {split}"
    context = context_of(tmp_path / "alone", data, more=more)
    alone = prepare(context, by_workers=False)
    shared = context_of(tmp_path / "shared", data, more=more, unit_bytes=UNIT_BYTES)
    with Killer(shared.run.reading, "parts/*/*", "read.json", num_kills=2) as killer:
        found = prepare(shared, by_workers=True)
    assert killer.killed
    assert_read_alike(read_rows(shared), read_rows(context))
    assert_same(found, alone)


@pytest.mark.parametrize(
    ("more", "features"),
    [
        ("sample: {negatives: 0.3}", ""),
        ("weight: I7", ""),
        ("key_columns: []", "  - {columns: C7, number: [{target_encode: {}}, standardize]}"),
    ],
    ids=["sample", "weight", "target_encode"],
)
def test_rows_that_depend_on_their_place_are_the_same(sources, tmp_path, more, features):
    data = sources / "weighted.tsv"
    if not data.exists():
        lines = (sources / "rows.tsv").read_text().splitlines()
        rows = [line.split("\t") for line in lines]
        place = rows[0].index("I7")
        for number, row in enumerate(rows[1:]):
            row[place] = str((number * 7) % 5 / 4)
        data.write_text("".join("\t".join(row) + "\n" for row in rows))
    contexts = [
        context_of(tmp_path / name, data, more=more, features=features)
        for name in ("alone", "shared")
    ]
    alone = prepare(contexts[0], by_workers=False)
    shared = prepare(contexts[1], by_workers=True)
    assert_same(shared, alone)
    # A row that is encoded from others is encoded where all of them are.
    assert (num_parts(shared)["train"] == 1) == bool(features)
    assert num_parts(shared)["test"] > 0


class Killer(Watching):
    """Kills all workers when they begin some units, of which each gets one after the other slowly.

    Args:
        folder: Where attempts write.
        attempts: Pattern of their folders.
        ended: The file that an attempt writes last.
        num_kills: How many units.
    """

    pause_seconds = 0.001

    def __init__(self, folder, attempts, ended, num_kills):
        self._folder = folder
        self._attempts = attempts
        self._ended = ended
        self._num_kills = num_kills
        self._workers = []
        self._patch = pytest.MonkeyPatch()
        self.killed = []

    def __enter__(self):
        lease, last = PreparationBoard.lease, {}

        def lease_slowly(board, worker, now):
            """Otherwise all units may be done before one look."""
            if time.monotonic() - last.get(worker, 0.0) < LEASE_SECONDS:
                return None
            last[worker] = time.monotonic()
            # Looked for now, as it takes as long as a unit.
            self._workers = working_processes()
            return lease(board, worker, now)

        self._patch.setattr(PreparationBoard, "lease", lease_slowly)
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self._patch.undo()

    def look(self):
        if len(self.killed) >= self._num_kills:
            return
        if set(self._begun()) - set(self.killed):
            workers = self._workers
            for worker in workers:
                with contextlib.suppress(psutil.Error):  # it may end by itself
                    worker.kill()
            wait_until(lambda: all(map(has_ended, workers)))
            # Some have ended their unit before they were killed.
            self.killed += set(self._begun()) - set(self.killed)

    def _begun(self):
        return [
            path.name
            for path in self._folder.glob(self._attempts)
            if not (path / self._ended).exists()
        ]


@pytest.mark.parametrize("workers", [1, 3])
def test_killed_workers_repeat_only_their_units(sources, tmp_path, workers):
    data = write_as(sources, "tsv")
    alone = prepare(context_of(tmp_path / "alone", data), by_workers=False)
    context = context_of(tmp_path / "shared", data, workers=workers)
    with Killer(context.run.encoded, "*/parts/*", "meta.json", num_kills=2) as killer:
        shared = prepare(context, by_workers=True)
    assert killer.killed
    assert_same(shared, alone)
    names = load_meta(shared.folders["train"]).parts
    attempts = [int(name.partition("-")[2]) for name in names]
    assert max(attempts) > 1
    assert min(attempts) == 1


def interrupt(context, monkeypatch):
    """Interrupts the encoding when three units are done."""
    take_ended, lease = KeptWorkers.take_ended, PreparationBoard.lease

    def interrupted(workers, now, *, progress=0):
        if progress >= 3:
            raise Interrupted(2)
        return take_ended(workers, now, progress=progress)

    def lease_a_few(board, worker, now):
        return lease(board, worker, now) if board.num_done < 5 else None

    with monkeypatch.context() as patch:
        patch.setattr(KeptWorkers, "take_ended", interrupted)
        # A worker may be done with all of them before anybody looks.
        patch.setattr(PreparationBoard, "lease", lease_a_few)
        with pytest.raises(Interrupted):
            prepare(context, by_workers=True)


def test_a_run_that_was_interrupted_encodes_what_is_left(sources, tmp_path, monkeypatch):
    data = write_as(sources, "tsv")
    alone = prepare(context_of(tmp_path / "alone", data), by_workers=False)
    context = context_of(tmp_path / "shared", data, workers=1)
    interrupt(context, monkeypatch)
    before = read_units_done(context.run.encoding)
    assert 3 <= before.num_done < before.num_units
    made = {path: path.stat().st_mtime_ns for path in context.run.encoded.glob("*/parts/*/meta*")}
    assert_same(prepare(context, by_workers=True), alone)
    # A worker that wrote its unit and could not report it wrote in vain, and that is deleted.
    found = {path: path.stat().st_mtime_ns for path in made if path.exists()}
    assert len(found) >= before.num_done
    assert found.items() <= made.items()
    assert read_units_done(context.run.encoding) is None


def test_a_part_that_was_deleted_is_encoded_again(sources, tmp_path, monkeypatch):
    data = write_as(sources, "tsv")
    context = context_of(tmp_path / "shared", data, workers=1)
    expected = prepare(context_of(tmp_path / "alone", data), by_workers=False)
    interrupt(context, monkeypatch)
    next(context.run.encoded.glob("train/parts/00001-*/rows.bin")).unlink()
    assert_same(prepare(context, by_workers=True), expected)


def test_a_unit_that_cannot_be_encoded_fails_the_run_by_its_rows(sources, tmp_path):
    data = write_as(sources, "tsv")
    context = context_of(tmp_path / "shared", data, workers=1)
    damage = threading.Thread(target=_damage_a_part, args=(context.run,), daemon=True)
    damage.start()
    with pytest.raises(TrainingError, match=r"rows 0 to [0-9,]+ of train .*damaged") as failure:
        prepare(context, by_workers=True)
    damage.join()
    assert "--resume" in failure.value.remedy
    assert (Path(failure.value.place) / "worker-0.log").exists()


def _damage_a_part(run):
    """Truncates the first part of the training rows once nobody but workers will read it."""
    while not (run.preparing / "endpoint.json").exists():
        time.sleep(0.001)
    file = run.ingested / "train" / "part-00000.arrow"
    file.write_bytes(file.read_bytes()[:100])


def test_few_rows_are_encoded_by_this_process(sources, tmp_path):
    context = context_of(tmp_path / "few", write_as(sources, "tsv"))
    loaded = context.loaded
    runtime = loaded.config.runtime.model_copy(update={"rows_per_encoding_task": NUM_ROWS})
    config = loaded.config.model_copy(update={"runtime": runtime})
    object.__setattr__(loaded, "config", config)
    assert num_parts(prepare(context, by_workers=True)) == dict.fromkeys(SPLITS, 0)


def test_progress_names_tasks(tmp_path):
    assert read_units_done(tmp_path) is None
    (tmp_path / "ledger.json").write_text(
        '{"identity": "x", "num_units": 4, "records": {"train/0": '
        '{"attempt": 1, "failures": 0, "is_done": true}, "train/1": '
        '{"attempt": 2, "failures": 0, "is_done": false}}}'
    )
    assert read_units_done(tmp_path) == UnitsDone(1, 4)
