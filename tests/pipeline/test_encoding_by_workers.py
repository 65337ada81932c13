"""Rows that worker processes encode are those that one process encodes, whoever is killed."""

import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest

from ctr_pipeline.apps.convert import Target, convert_rows
from ctr_pipeline.apps.sample import write_criteo_sample
from ctr_pipeline.config.loader import load_config
from ctr_pipeline.dataset import parts
from ctr_pipeline.dataset.encoded import EncodedReader, load_meta
from ctr_pipeline.distributed.master.ledger.unit_file import EncodedUnits, read_encoded_units
from ctr_pipeline.distributed.master.preparing import WorkerKeeper
from ctr_pipeline.errors import Interrupted, TrainingError
from ctr_pipeline.pipeline.context import RunContext
from ctr_pipeline.pipeline.job import encoding
from ctr_pipeline.pipeline.job.encoding import encode_by_workers
from ctr_pipeline.pipeline.run import prepare_rows
from ctr_pipeline.progress import SilentProgress

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(300)]

NUM_ROWS = 12_000
PART_ROWS = 500
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
runtime: {{mode: processes, rows_per_encoding_task: 1000, workers: {{min: 1, max: {workers}}}}}
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


def write_as(folder, kind):
    """The rows in a format; converted when they are needed first."""
    file = folder / f"rows.{kind}"
    if not file.exists():
        record = "example" if kind == "recordio" else "line"
        target = Target(file, kind, record=record)
        convert_rows(str(folder / "rows.tsv"), target, progress=SilentProgress())
    return file


def context_of(folder, data, *, workers=3, more="", features=""):
    folder.mkdir(exist_ok=True)
    config = folder / "config.yaml"
    config.write_text(
        CONFIG.format(
            data=data, output=folder / "run", workers=workers, more=more, features=features
        )
    )
    return RunContext.create(load_config(config), SilentProgress())


def prepare(context, *, by_workers):
    share = partial(encode_by_workers, context) if by_workers else None
    return prepare_rows(context, share_units=share).encoding


def assert_same(found, expected):
    assert found.fingerprint == expected.fingerprint
    for mine, theirs in zip(found.counts, expected.counts, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    for split, folder in expected.folders.items():
        with EncodedReader(found.folders[split]) as ours, EncodedReader(folder) as alone:
            assert ours.meta.num_rows == alone.meta.num_rows
            assert ours.meta.num_positive == alone.meta.num_positive
            mine, theirs = (one.read_range(0, one.meta.num_rows) for one in (ours, alone))
        for name in ("ids_BF", "numbers_BN", "labels_B"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))
        if theirs.weights_B is not None:
            np.testing.assert_allclose(mine.weights_B, theirs.weights_B, rtol=1e-6)


def num_parts(encoding):
    return {split: len(load_meta(folder).parts) for split, folder in encoding.folders.items()}


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("kind", ["tsv", "parquet", "recordio"])
def test_workers_encode_as_one_process_does(sources, tmp_path, kind, workers):
    data = write_as(sources, kind)
    alone = prepare(context_of(tmp_path / "alone", data), by_workers=False)
    context = context_of(tmp_path / "shared", data, workers=workers)
    shared = prepare(context, by_workers=True)
    assert num_parts(alone) == dict.fromkeys(SPLITS, 0)
    assert num_parts(shared)["train"] > 5
    assert min(num_parts(shared).values()) > 0
    assert_same(shared, alone)
    assert not context.run.encoding.exists()


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
    assert (num_parts(shared)["train"] == 0) == bool(features)
    assert num_parts(shared)["test"] > 0


class Killer:
    """Kills the first process that encodes each of some units while it does."""

    def __init__(self, encoded, num_kills):
        self._encoded = encoded
        self._num_kills = num_kills
        self.killed = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()

    def _run(self):
        while not self._over.wait(0.001) and len(self.killed) < self._num_kills:
            begun = [
                path.parent.name
                for path in self._encoded.glob("*/parts/*/rows.bin")
                if not (path.parent / "meta.json").exists()
            ]
            if begun and not set(begun) <= set(self.killed):
                self.killed += begun
                for process in psutil.Process().children(recursive=True):
                    if "--encodes" in process.cmdline():
                        process.kill()


@pytest.mark.parametrize("workers", [1, 3])
def test_killed_workers_repeat_only_their_units(sources, tmp_path, workers):
    data = write_as(sources, "tsv")
    alone = prepare(context_of(tmp_path / "alone", data), by_workers=False)
    context = context_of(tmp_path / "shared", data, workers=workers)
    with Killer(context.run.encoded, num_kills=2) as killer:
        shared = prepare(context, by_workers=True)
    assert killer.killed
    assert_same(shared, alone)
    names = load_meta(shared.folders["train"]).parts
    attempts = [int(name.partition("-")[2]) for name in names]
    assert max(attempts) > 1
    assert min(attempts) == 1


def interrupt(context, monkeypatch):
    """Interrupts the encoding when three units are done."""
    look = WorkerKeeper.look

    def interrupted(keeper, board, now):
        look(keeper, board, now)
        if board.num_done >= 3:
            raise Interrupted(2)

    with monkeypatch.context() as patch:
        patch.setattr(WorkerKeeper, "look", interrupted)
        # A worker is done with all of them within a tenth of a second.
        patch.setattr(encoding, "LOOK_SECONDS", 0.001)
        with pytest.raises(Interrupted):
            prepare(context, by_workers=True)


def test_a_run_that_was_interrupted_encodes_what_is_left(sources, tmp_path, monkeypatch):
    data = write_as(sources, "tsv")
    alone = prepare(context_of(tmp_path / "alone", data), by_workers=False)
    context = context_of(tmp_path / "shared", data, workers=1)
    interrupt(context, monkeypatch)
    before = read_encoded_units(context.run.encoding)
    assert 3 <= before.num_done < before.num_units
    made = {path: path.stat().st_mtime_ns for path in context.run.encoded.glob("*/parts/*/meta*")}
    assert_same(prepare(context, by_workers=True), alone)
    # A worker that wrote its unit and could not report it wrote in vain, and that is deleted.
    found = {path: path.stat().st_mtime_ns for path in made if path.exists()}
    assert len(found) >= before.num_done
    assert found.items() <= made.items()
    assert read_encoded_units(context.run.encoding) is None


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
    while not (run.encoding / "endpoint.json").exists():
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
    assert read_encoded_units(tmp_path) is None
    (tmp_path / "ledger.json").write_text(
        '{"identity": "x", "num_units": 4, "records": {"train/0": '
        '{"attempt": 1, "failures": 0, "is_done": true}, "train/1": '
        '{"attempt": 2, "failures": 0, "is_done": false}}}'
    )
    assert read_encoded_units(tmp_path) == EncodedUnits(1, 4)
