"""The export end to end: real preprocessing, a model, rows; read by TensorFlow alone."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from ctr_pipeline.embeddings.store import RowBlock
from ctr_pipeline.errors import ExportError, RunFolderError
from ctr_pipeline.export import parity, proving_process
from ctr_pipeline.export.edge_rows import edge_rows
from ctr_pipeline.export.model_card import ModelCardInfo
from ctr_pipeline.export.parity import PARITY_FILE, TOLERANCE, prove_parity
from ctr_pipeline.export.proving_process import ProvingProcess
from ctr_pipeline.export.rows import FIELD_SHIFT
from ctr_pipeline.export.servable import (
    ExportedModel,
    discard_export,
    export_servable,
    publish_export,
)
from ctr_pipeline.models.build import build_model
from ctr_pipeline.models.inputs import ModelSignature
from ctr_pipeline.preprocessing.build import build_preprocessing
from ctr_pipeline.preprocessing.encode import ColumnEncoder
from ctr_pipeline.preprocessing.plan import FieldPlan, NumberPlan, PreprocessingPlan, raw_signature
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.specs.model_kinds import MODELS, DeepFMConfig
from ctr_pipeline.transforms.hash import HashStep
from ctr_pipeline.transforms.log import Log
from ctr_pipeline.transforms.shared.intervals import IntervalsStep
from ctr_pipeline.transforms.standardize import StandardizeStep
from ctr_pipeline.transforms.vocabulary import VocabularyStep

DIM = 3
WORDS = ["a", "žluť", "two\nlines"]


def make_plan(folder: Path) -> PreprocessingPlan:
    pq.write_table(
        pa.table({"value": WORDS, "count": [3, 2, 2], "label_sum": [1, 1, 0]}),
        folder / "words.parquet",
    )
    return PreprocessingPlan(
        fields=(
            FieldPlan(
                name="item name",
                column="item name",
                column_type=ColumnType.TEXT,
                transforms=("vocabulary",),
                num_ids=5,
                step=VocabularyStep(file="words.parquet", size=3, oov_buckets=1, missing_id=4),
            ),
            FieldPlan(
                name="site",
                column="site",
                column_type=ColumnType.TEXT,
                transforms=("hash",),
                num_ids=8,
                step=HashStep(num_bins=7, missing_id=7),
            ),
            FieldPlan(
                name="price",
                column="price",
                column_type=ColumnType.NUMBER,
                transforms=("bucketize",),
                num_ids=4,
                step=IntervalsStep(thresholds=(0.5, 10.0), ids=(0, 1, 2), missing_id=3),
            ),
        ),
        numbers=(
            NumberPlan(
                name="price",
                column="price",
                steps=(Log(), StandardizeStep(mean=1, standard_deviation=2, clip=5)),
            ),
        ),
    )


class Job:
    """A trained model as the pipeline hands it over, and its score by kernels and a dict."""

    def __init__(self, folder: Path, name: str = "deepfm") -> None:
        self.folder = folder
        self.plan = make_plan(folder)
        self.types = raw_signature(self.plan)
        generator = np.random.default_rng(4)
        self.model = build_model(
            MODELS[name](embedding_dim=DIM, hidden_units=(5,)),
            ModelSignature(3, DIM, 1, base_rate=0.3),
            seed=1,
        )
        for variable in self.model.trainable_variables:
            variable.assign(generator.normal(scale=0.5, size=variable.shape))
        # Not every id has a row: 0 and 3 of "item name", some hashes, one bucket.
        pairs = [(0, 1), (0, 2), (0, 4), (1, 0), (1, 3), (1, 5), (1, 7), (2, 0), (2, 2), (2, 3)]
        self.keys = np.array([(f << FIELD_SHIFT) | i for f, i in pairs])
        self.values = generator.normal(size=(len(pairs), 1 + DIM)).astype(np.float32)
        self.rows = pa.table(
            {
                "item name": ["a", "žluť", None, "two\nlines", "other", ""],
                "site": ["x.com", "y.org", "", "日本", None, "z"],
                "price": [1.0, None, 0.25, 12.0, float("inf"), float("nan")],
            }
        )

    def score(self, rows: pa.Table) -> np.ndarray:
        """The trainer's logits; embedding rows come from a plain dict."""
        encoder = ColumnEncoder(self.plan, self.folder)
        encoded = encoder.encode(rows.combine_chunks().to_batches()[0])
        by_key = dict(zip(self.keys.tolist(), self.values, strict=True))
        zeros = np.zeros(1 + DIM, dtype=np.float32)
        looked_up = np.array(
            [
                [by_key.get((f << FIELD_SHIFT) | int(i), zeros) for f, i in enumerate(ids)]
                for ids in encoded.ids
            ]
        )
        inputs = {
            "linear": looked_up[:, :, 0],
            "embeddings": looked_up[:, :, 1:],
            "numbers": encoded.numbers,
        }
        return self.model(inputs).numpy()

    def export(self, version_folder: Path, **changes: Any) -> ExportedModel:
        arguments: dict[str, Any] = {
            "model": self.model,
            "preprocessing": build_preprocessing(self.plan, self.folder),
            "column_types": self.types,
            "row_blocks": [
                RowBlock(self.keys[:4], self.values[:4]),
                RowBlock(self.keys[4:], self.values[4:]),
            ],
            "num_rows": len(self.keys),
            "width": 1 + DIM,
            "version_folder": version_folder,
            "info": INFO,
        }
        return export_servable(**(arguments | changes))


# `Job.rows` as "serving_default" takes them.
TENSORS = {
    "item_name": tf.constant(["a", "žluť", "", "two\nlines", "other", ""]),
    "site": tf.constant(["x.com", "y.org", "", "日本", "", "z"]),
    "price": tf.constant([1.0, np.nan, 0.25, 12.0, np.inf, np.nan], tf.float64),
}

INFO = ModelCardInfo(
    name="criteo",
    architecture="deepfm",
    created=datetime(2030, 1, 2, tzinfo=UTC),
    training_rows=1234,
    base_rate=0.3,
    metrics={"test": {"auc": 0.75}},
    features=[{"column": "price", "transforms": ["log", "standardize"]}],
    missing_values=("", "NA", "NaN", "-1.0", "1e20"),
)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    return Job(tmp_path_factory.mktemp("job"))


@pytest.fixture(scope="module")
def exported(job: Job) -> ExportedModel:
    exported = job.export(job.folder / "export" / "7")
    publish_export(exported)
    return exported


def test_parity_is_proved_on_ordinary_and_hard_rows_and_stored(
    job: Job, exported: ExportedModel, tmp_path: Path
) -> None:
    hard = edge_rows(job.types, ordinary=job.rows, missing_values=INFO.missing_values)
    rows = pa.concat_tables([job.rows.select(list(job.types)), hard])
    with ProvingProcess() as process:
        proof = prove_parity(
            exported,
            rows,
            job.score(rows),
            process=process,
            workspace=tmp_path,
            num_edge_rows=hard.num_rows,
        )
    assert proof.num_rows == rows.num_rows
    assert max(proof.max_difference.values()) <= TOLERANCE
    assert proof.num_not_a_number == 0
    stored = json.loads((exported.version_folder / PARITY_FILE).read_text())
    assert stored["num_edge_rows"] == hard.num_rows
    assert set(stored["max_difference"]) == {"serving_default", "serving_strings"}
    assert stored["versions"]["serving_tensorflow"] == tf.__version__
    assert list(tmp_path.iterdir()) == []


def test_a_difference_names_the_row_and_hides_sensitive_values(
    job: Job, exported: ExportedModel, tmp_path: Path
) -> None:
    logits = job.score(job.rows)
    outputs = {"logit": logits, "probability": tf.sigmoid(logits).numpy()}
    response = {
        f"{signature}.{name}": values
        for signature in ("serving_default", "serving_strings")
        for name, values in outputs.items()
    }

    class Process:
        def score(self, folder, request_file, response_file, num_rows):
            np.savez(response_file, foreign_modules=np.empty(0, np.uint8), **response)

    trainer_logits = logits.copy()
    trainer_logits[3] += 0.001
    with pytest.raises(ExportError, match="serving_default: row 3 has the logit") as caught:
        prove_parity(
            exported,
            job.rows,
            trainer_logits,
            process=Process(),
            workspace=tmp_path,
            sensitive=["site"],
        )
    assert "price=12.0" in str(caught.value)
    assert "site=(hidden)" in str(caught.value)
    assert "日本" not in str(caught.value)


def test_no_rows_prove_nothing(job: Job, exported: ExportedModel, tmp_path: Path) -> None:
    with ProvingProcess() as process, pytest.raises(ValueError, match="prove nothing"):
        prove_parity(exported, job.rows, np.zeros(2), process=process, workspace=tmp_path)


def test_an_export_that_cannot_be_loaded_fails_the_proof(
    job: Job, exported: ExportedModel, tmp_path: Path
) -> None:
    broken = replace(exported, folder=tmp_path / "none", version_folder=tmp_path / "none")
    with (
        # As runs in this process have it, which does not import TensorFlow again.
        proving_process.ProvingProcess() as process,
        pytest.raises(ExportError, match="TensorFlow alone cannot run the export"),
    ):
        prove_parity(broken, job.rows, job.score(job.rows), process=process, workspace=tmp_path)


@pytest.mark.slow
def test_the_proving_process_ends_with_its_block_and_with_whoever_started_it() -> None:
    with ProvingProcess() as process:
        started = psutil.Process(process.pid)
        assert started.is_running()
    assert not started.is_running()
    orphan = subprocess.run(
        [sys.executable, "-I", str(Path(parity.__file__).with_name("parity_process.py"))],
        stdin=subprocess.DEVNULL,
        timeout=120,
        check=False,
    )
    assert orphan.returncode == 0


def test_texts_that_mean_missing_are_missing(job: Job, exported: ExportedModel) -> None:
    signatures = tf.saved_model.load(str(exported.version_folder)).signatures

    def logit(name: str, site: str, price: str | float) -> float:
        is_text = isinstance(price, str)
        outputs = signatures["serving_strings" if is_text else "serving_default"](
            item_name=tf.constant([name]),
            site=tf.constant([site]),
            price=tf.constant([price], tf.string if is_text else tf.float64),
        )
        return float(outputs["logit"][0])

    assert logit("NA", "NA", "NA") == logit("", "", "")
    assert logit("a", "x", "no number") == logit("a", "x", "")
    assert logit("a", "x", " 1e1 ") == logit("a", "x", "10")
    assert logit("a", "x", "10") != logit("a", "x", "")
    for price in ("-1", "-1.00", "1E+20", -1.0, 1e20, math.nan):
        assert logit("a", "x", price) == logit("a", "x", "")


def test_card_names_inputs_and_what_the_caller_knows(exported: ExportedModel) -> None:
    card = json.loads((exported.version_folder / "model_card.json").read_text())
    assert {entry["column"]: (entry["name"], entry["type"]) for entry in card["inputs"]} == {
        "price": ("price", "double"),
        "item name": ("item_name", "string"),
        "site": ("site", "string"),
    }
    assert card["created"] == "2030-01-02T00:00:00+00:00"
    assert card["training_rows"] == 1234
    assert card["embedding_rows"] == 10
    assert card["metrics"] == {"test": {"auc": 0.75}}
    assert card["versions"]["tensorflow"] == tf.__version__


def test_export_leaves_no_temporary_files(exported: ExportedModel) -> None:
    assert [path.name for path in exported.version_folder.parent.iterdir()] == ["7"]
    names = {path.name for path in exported.version_folder.iterdir()}
    assert names >= {"saved_model.pb", "variables", "assets.extra", "model_card.json"}
    assert "variables.parts" not in names


# DIN needs sequences, which this job has none of: its export is proved in a run of its own.
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(MODELS) - {"custom", "din"}))
def test_every_model_scores_as_in_training(name: str, tmp_path: Path) -> None:
    job = Job(tmp_path, name)
    exported = job.export(tmp_path / "1")
    signature = tf.saved_model.load(str(exported.folder)).signatures["serving_default"]
    outputs = signature(**TENSORS)
    np.testing.assert_allclose(outputs["logit"], job.score(job.rows), rtol=1e-5, atol=1e-5)
    discard_export(exported)
    assert not exported.folder.exists()


def test_a_model_without_fields_or_without_rows(tmp_path: Path) -> None:
    job = Job(tmp_path)
    no_rows = job.export(tmp_path / "1", row_blocks=[], num_rows=0)
    job.keys, job.values = job.keys[:0], job.values[:0]
    outputs = tf.saved_model.load(str(no_rows.folder)).signatures["serving_default"](**TENSORS)
    np.testing.assert_allclose(outputs["logit"], job.score(job.rows), rtol=1e-5, atol=1e-5)

    job.plan = job.plan.model_copy(update={"fields": ()})
    signature = ModelSignature(0, DIM, 1, base_rate=0.3)
    job.model = build_model(DeepFMConfig(embedding_dim=DIM), signature, seed=0)
    job.types = raw_signature(job.plan)
    exported = job.export(tmp_path / "2", row_blocks=[], num_rows=0)
    price = tf.constant([1.0, np.nan], tf.float64)
    outputs = tf.saved_model.load(str(exported.folder)).signatures["serving_default"](price=price)
    assert outputs["logit"].shape == (2,)


def test_failure_leaves_the_earlier_export_and_nothing_half_written(
    job: Job, tmp_path: Path
) -> None:
    publish_export(job.export(tmp_path / "1"))
    before = (tmp_path / "1" / "saved_model.pb").stat().st_ino
    with pytest.raises(ValueError, match="announced"):
        job.export(tmp_path / "1", num_rows=3)
    assert [path.name for path in tmp_path.iterdir()] == ["1"]
    assert (tmp_path / "1" / "saved_model.pb").stat().st_ino == before
    publish_export(job.export(tmp_path / "1"))
    assert [path.name for path in tmp_path.iterdir()] == ["1"]
    assert (tmp_path / "1" / "saved_model.pb").stat().st_ino != before


def test_a_file_in_the_way_is_named(job: Job, tmp_path: Path) -> None:
    (tmp_path / "export").write_text("a file")
    with pytest.raises(RunFolderError, match="cannot be written"):
        job.export(tmp_path / "export" / "1")


BIG_EXPORT = """
import sys
from pathlib import Path
import numpy as np
from tests.export.test_servable import Job
from ctr_pipeline.specs.model_kinds import DeepFMConfig
from ctr_pipeline.embeddings.store import RowBlock
from ctr_pipeline.models.inputs import ModelSignature
from ctr_pipeline.models.build import build_model

folder, num_rows, dim = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
job = Job(folder)
model = build_model(
    DeepFMConfig(embedding_dim=dim), ModelSignature(3, dim, 1, base_rate=0.3), seed=1)

def blocks():
    for start in range(0, num_rows, 50_000):
        keys = np.arange(start, min(start + 50_000, num_rows))
        values = np.repeat(keys.astype(np.float32)[:, None], 1 + dim, axis=1)
        yield RowBlock(keys, values)

def memory(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

job.export(folder / "0", model=model, row_blocks=[], num_rows=0, width=1 + dim)
# Sets the peak to what is resident now; the peak of getrusage would be that of the parent.
Path("/proc/self/clear_refs").write_text("5")
before = memory("VmRSS")
exported = job.export(
    folder / "1", model=model, row_blocks=blocks(), num_rows=num_rows, width=1 + dim)
print(exported.folder, memory("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from Linux's /proc"
)
def test_large_exports_are_streamed(tmp_path: Path) -> None:
    """190 MB of rows go through in far less memory and are read back whole."""
    num_rows, dim = 1_500_000, 31
    size = num_rows * (1 + dim) * 4
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BIG_EXPORT, *map(str, (tmp_path, num_rows, dim))],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    folder, growth = result.stdout.split()
    assert 1_000_000 < int(growth) < size * 0.6
    # Nothing large is a constant of the graph.
    assert (Path(folder) / "saved_model.pb").stat().st_size < 1_000_000
    data = sum(path.stat().st_size for path in (Path(folder) / "variables").iterdir())
    assert size < data < size + num_rows * 8 + 1_000_000
    served = tf.saved_model.load(folder)
    keys, last_column = served.row_keys.numpy(), served.row_values[:, -1].numpy()
    np.testing.assert_array_equal(keys[:-1], np.arange(num_rows))
    np.testing.assert_array_equal(last_column[:-1], keys[:-1].astype(np.float32))
