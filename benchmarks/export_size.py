"""An export above 2 GB: written in bounded memory, loaded by TensorFlow alone, scored right.

A process of its own writes a cut of so many rows, a base and a delta with every tenth row, block by
block (a row's values are a function of its key; the base has others where a delta follows). As
`ctrpipe export` does, its rows are then sorted on the disk, exported under a small DeepFM and read
for a batch. The SavedModel is loaded in a process that has only TensorFlow, and logits are
compared with the trainer's forward pass. `--rows-from blocks` leaves the cut out: rows come as from
parameter servers.

    python benchmarks/export_size.py --gigabytes 2.2
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from machine import describe_machine, print_machine, print_table, write_results

DIM = 16
WIDTH = 1 + DIM
NUM_PARTITIONS = 64
CUT = 2
CHANGED_EVERY = 10
BLOCK_ROWS = 262_144
EXPORT_ROWS = 65_536
LOADER = """
import json, sys, time
import tensorflow as tf
started = time.perf_counter()
serve = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
name = json.load(open(sys.argv[1] + "/model_card.json"))["inputs"][0]["name"]
values = tf.constant(json.loads(sys.argv[2]))
print(json.dumps({"seconds": time.perf_counter() - started,
                  "logits": serve(**{name: values})["logit"].numpy().tolist()}))
"""


def row_values(keys: np.ndarray) -> np.ndarray:
    """Values of rows by key, float32 [n, WIDTH], small and different."""
    columns = np.arange(WIDTH, dtype=np.float32)[None, :]
    return (np.sin(keys[:, None].astype(np.float64) * 0.37 + columns) * 0.05).astype(np.float32)


def row_blocks(num_rows: int) -> Iterator[object]:
    """All rows by ascending key."""
    from ctr_pipeline.embeddings.store import RowBlock

    for first in range(0, num_rows, BLOCK_ROWS):
        keys = np.arange(first, min(first + BLOCK_ROWS, num_rows), dtype=np.int64)
        yield RowBlock(keys, row_values(keys))


def make_store(num_rows: int) -> Any:
    """An empty store of the one table."""
    from ctr_pipeline.embeddings.store import EmbeddingStore
    from ctr_pipeline.specs.optimizer import OptimizerSpec
    from ctr_pipeline.specs.segment import SegmentSpec
    from ctr_pipeline.specs.table import TableSpec

    segments = (
        SegmentSpec("linear", 1, OptimizerSpec(name="adagrad", learning_rate=0.05), "sum"),
        SegmentSpec("vector", DIM, OptimizerSpec(name="adam", learning_rate=0.001), "sum"),
    )
    return EmbeddingStore([TableSpec("id", num_rows + 1)], segments, seed=0, threads=1)


def write_cut(folder: Path, num_rows: int) -> None:
    """Writes the files of a cut, and their list; in a process of its own, for the memory of it."""
    from ctr_pipeline.embeddings.cut_storage import CutStorage
    from ctr_pipeline.embeddings.row_log import RowLogWriter
    from ctr_pipeline.embeddings.update_kernels import HEADER_WORDS

    store = make_store(num_rows)
    files = []
    for cut, kind, every in ((CUT - 1, "base", 1), (CUT, "delta", CHANGED_EVERY)):
        writer = RowLogWriter(
            CutStorage.at(folder),
            store,
            cut=cut,
            kind=kind,
            num_partitions=NUM_PARTITIONS,
            partitions=range(NUM_PARTITIONS),
        )
        for first in range(0, num_rows, BLOCK_ROWS):
            # Not in order: rows lie as training met them.
            keys = np.arange(first, min(first + BLOCK_ROWS, num_rows), dtype=np.int64)[::-1]
            keys = np.ascontiguousarray(keys[keys % every == 0])
            records = np.zeros((len(keys), store.layout.record_floats), np.float32)
            values = row_values(keys)
            if kind == "base":
                values[keys % CHANGED_EVERY == 0] = np.nan
            records[:, HEADER_WORDS : HEADER_WORDS + WIDTH] = values
            place = 0
            while (place := writer.put_records(records, keys, place)) < len(keys):
                writer.flush()
        files += [vars(file) for file in writer.finish()]
    (folder / "files.json").write_text(json.dumps(files), encoding="utf-8")


@contextmanager
def rows_of_cut(folder: Path, num_rows: int) -> Iterator[Any]:
    """The rows of a cut as `ctrpipe export` opens them."""
    from ctr_pipeline.embeddings.cut_storage import CutStorage
    from ctr_pipeline.embeddings.log_chain import CutFile, ParameterFiles
    from ctr_pipeline.embeddings.stored_rows import open_stored_rows

    files = [CutFile(**one) for one in json.loads((folder / "files.json").read_text("utf-8"))]
    chains = tuple(
        tuple(file for file in files if file.partition == partition)
        for partition in range(NUM_PARTITIONS)
    )
    cut = ParameterFiles(chains, (), trained_by=1)
    rows = open_stored_rows(make_store(num_rows), CutStorage.at(folder), cut, folder)
    yield rows
    rows.release()


def batch_difference(rows: Any, num_rows: int) -> float:
    """How far the values that a batch is given are from those of its keys, at most."""
    ids = np.random.default_rng(0).integers(0, num_rows, (4096, 1))
    prepared = rows.prepare(ids, len(ids))
    rows.locate(prepared, create=False)
    _, values = rows.gather_parts(prepared, 0)
    return float(np.abs(values[:, 0] - row_values(ids[:, 0])).max())


def main() -> None:
    """Exports, loads, compares."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2.2, help="Of row values, 10^9 bytes.")
    parser.add_argument("--quick", action="store_true", help="0.1 GB.")
    parser.add_argument("--rows-from", choices=("cut", "blocks"), default="cut")
    parser.add_argument("--folder", type=Path, help="Where files go; default: temporary files.")
    parser.add_argument("--write-cut", type=Path, help="Only write the cut, into this folder.")
    parser.add_argument("--json", type=Path, help="Write the results there.")
    arguments = parser.parse_args()
    gigabytes = 0.1 if arguments.quick else arguments.gigabytes
    num_rows = int(gigabytes * 1e9 / (WIDTH * 4))

    if arguments.write_cut is not None:
        write_cut(arguments.write_cut, num_rows)
        return

    from ctr_pipeline.export.model_card import ModelCardInfo
    from ctr_pipeline.export.servable import export_servable, publish_export
    from ctr_pipeline.models.build import build_model
    from ctr_pipeline.models.inputs import ModelSignature
    from ctr_pipeline.preprocessing.build import build_preprocessing
    from ctr_pipeline.preprocessing.encode import ColumnEncoder
    from ctr_pipeline.preprocessing.plan import FieldPlan, PreprocessingPlan
    from ctr_pipeline.specs.columns import ColumnType
    from ctr_pipeline.specs.model_kinds import DeepFMConfig
    from ctr_pipeline.transforms.hash import HashStep

    machine = describe_machine()
    plan = PreprocessingPlan(
        fields=(
            FieldPlan(
                name="id",
                column="id",
                column_type=ColumnType.TEXT,
                transforms=("hash",),
                num_ids=num_rows + 1,
                step=HashStep(num_bins=num_rows, missing_id=num_rows),
            ),
        ),
        numbers=(),
    )
    model = build_model(DeepFMConfig(embedding_dim=DIM), ModelSignature(1, DIM, 0, 0.25), seed=0)
    texts = [f"value-{number}" for number in range(200)]
    with (
        tempfile.TemporaryDirectory(prefix="export-size-", dir=arguments.folder) as temporary,
        ExitStack() as stack,
    ):
        folder = Path(temporary)
        from_cut = arguments.rows_from == "cut"
        if from_cut:
            own = [sys.executable, __file__, "--gigabytes", str(gigabytes)]
            subprocess.run([*own, "--write-cut", str(folder)], check=True)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started = time.perf_counter()
        rows = stack.enter_context(rows_of_cut(folder, num_rows)) if from_cut else None
        opened = time.perf_counter()
        exported = publish_export(
            export_servable(
                model=model,
                preprocessing=build_preprocessing(plan, folder),
                column_types={"id": "string"},
                row_blocks=row_blocks(num_rows) if rows is None else rows.iterate_rows(EXPORT_ROWS),
                num_rows=num_rows if rows is None else rows.num_rows,
                width=WIDTH,
                version_folder=folder / "export" / "1",
                info=ModelCardInfo(
                    name="size",
                    architecture="deepfm",
                    created=datetime.now(UTC),
                    training_rows=0,
                    base_rate=0.25,
                    metrics={},
                    features=[],
                ),
            )
        )
        seconds = time.perf_counter() - opened
        if rows is not None and batch_difference(rows, num_rows) != 0.0:
            raise SystemExit("a batch is given other values than those of its rows")
        growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        size = sum(file.stat().st_size for file in exported.rglob("*") if file.is_file())
        output = subprocess.run(
            [sys.executable, "-I", "-c", LOADER, str(exported), json.dumps(texts)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        loaded = json.loads(output.splitlines()[-1])
        ids = ColumnEncoder(plan, folder).encode(pa.record_batch({"id": texts})).ids
        values = row_values(ids[:, 0].astype(np.int64))[:, None, :]
        expected = model(
            {
                "embeddings": values[:, :, 1:],
                "linear": values[:, :, 0],
                "numbers": np.empty((len(texts), 0), np.float32),
            },
            training=False,
        )
        difference = float(np.abs(np.asarray(expected) - np.array(loaded["logits"])).max())
    if difference > 1e-4:
        raise SystemExit(f"the export differs by {difference} in the logit")
    print_machine(machine)
    figures = {
        "rows": num_rows,
        "export_gigabytes": size / 1e9,
        "sort_seconds": opened - started,
        "export_seconds": seconds,
        "memory_growth_gigabytes": growth * 1024 / 1e9,
        "load_seconds": loaded["seconds"],
        "largest_difference": difference,
    }
    print_table(["figure", "value"], [[name, f"{value:,.3g}"] for name, value in figures.items()])
    write_results(arguments.json, benchmark="export_size", machine=machine, results=figures)


if __name__ == "__main__":
    main()
