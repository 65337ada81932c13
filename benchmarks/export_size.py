"""An export above 2 GB: written in bounded memory, loaded by TensorFlow alone, scored right.

Makes a store's worth of rows, block by block (a row's values are a function of its key), exports
them under a small DeepFM, loads the SavedModel in a process that has only TensorFlow, and compares
logits of rows from both ends and the middle with the trainer's forward pass.

    python benchmarks/export_size.py --gigabytes 2.2
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
from machine import describe_machine, print_machine, print_table, write_results

DIM = 16
WIDTH = 1 + DIM
BLOCK_ROWS = 262_144
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
    from ctr_pipeline.export.rows import RowBlock

    for first in range(0, num_rows, BLOCK_ROWS):
        keys = np.arange(first, min(first + BLOCK_ROWS, num_rows), dtype=np.int64)
        yield RowBlock(keys, row_values(keys))


def main() -> None:
    """Exports, loads, compares."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2.2, help="Of row values, 10^9 bytes.")
    parser.add_argument("--quick", action="store_true", help="0.1 GB.")
    parser.add_argument("--json", type=Path, help="Write the results there.")
    arguments = parser.parse_args()
    gigabytes = 0.1 if arguments.quick else arguments.gigabytes
    num_rows = int(gigabytes * 1e9 / (WIDTH * 4))

    import json

    from ctr_pipeline.config.models import ModelConfig
    from ctr_pipeline.export.model_card import ModelCardInfo
    from ctr_pipeline.export.servable import export_servable, publish_export
    from ctr_pipeline.features import ColumnType
    from ctr_pipeline.models.inputs import ModelSignature
    from ctr_pipeline.models.registry import build_model
    from ctr_pipeline.preprocessing.build import build_preprocessing
    from ctr_pipeline.preprocessing.encode import ColumnEncoder
    from ctr_pipeline.preprocessing.fitted import FieldPlan, FittedHash, PreprocessingPlan

    machine = describe_machine()
    plan = PreprocessingPlan(
        fields=(
            FieldPlan(
                name="id",
                column="id",
                column_type=ColumnType.TEXT,
                transforms=("hash",),
                num_ids=num_rows + 1,
                step=FittedHash(num_bins=num_rows, missing_id=num_rows),
            ),
        ),
        numbers=(),
    )
    model = build_model(ModelConfig(embedding_dim=DIM), ModelSignature(1, DIM, 0, 0.25), seed=0)
    texts = [f"value-{number}" for number in range(200)]
    with tempfile.TemporaryDirectory(prefix="export-size-") as temporary:
        folder = Path(temporary)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started = time.perf_counter()
        exported = publish_export(
            export_servable(
                model=model,
                preprocessing=build_preprocessing(plan, folder),
                column_types={"id": "string"},
                row_blocks=row_blocks(num_rows),
                num_rows=num_rows,
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
                warmup_rows=pa.table({"id": texts[:2]}),
            )
        )
        seconds = time.perf_counter() - started
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
        rows = row_values(ids[:, 0].astype(np.int64))[:, None, :]
        expected = model(
            {
                "embeddings": rows[:, :, 1:],
                "linear": rows[:, :, 0],
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
        "export_seconds": seconds,
        "memory_growth_gigabytes": growth * 1024 / 1e9,
        "load_seconds": loaded["seconds"],
        "largest_difference": difference,
    }
    print_table(["figure", "value"], [[name, f"{value:,.3g}"] for name, value in figures.items()])
    write_results(arguments.json, benchmark="export_size", machine=machine, results=figures)


if __name__ == "__main__":
    main()
