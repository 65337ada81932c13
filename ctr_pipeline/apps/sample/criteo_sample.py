"""Writes rows in the format of the Criteo Display Advertising Challenge, and their best figures.

The file is tab-separated: label, I1..I13 (integers), C1..C26 (8 hexadecimal digits); an empty cell
is a missing value; there is no header unless asked for. Beside it stands `NAME.truth.json` with the
best possible figures. The rows are a pure function of (`num_rows`, `seed`).
"""

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv as arrow_csv
from pydantic import BaseModel, ConfigDict, Field

from ctr_pipeline.apps.sample.counter_random import Float64s, derive_key, scramble_32_bits
from ctr_pipeline.apps.sample.criteo_columns import COLUMN_NAMES, NUM_CATEGORIES, NUM_NUMBERS
from ctr_pipeline.apps.sample.planted_model import MISSING, Draw, PlantedModel, sigmoid
from ctr_pipeline.apps.sample.reference_losses import (
    SeenIds,
    best_additive_loss,
    cross_entropy,
    predict_floor,
    ranking_quality,
)
from ctr_pipeline.durable import durable_write, os_errors_explained, write_text
from ctr_pipeline.pipeline.stages.planted import truth_path
from ctr_pipeline.progress import Progress

SMALLEST_SAMPLE = 100
BLOCK_ROWS = 16_384
_HEX_PAIRS = np.frombuffer(
    "".join(f"{byte:02x}" for byte in range(256)).encode("ascii"), dtype=np.uint16
)


class RealizedFigures(BaseModel):
    """Figures with the very labels of the test rows, comparable with a model's test metrics."""

    model_config = ConfigDict(frozen=True)
    bayes_logloss: float
    bayes_auc: float
    learnable_floor: float
    learnable_floor_auc: float
    base_rate_logloss: float


class SampleSummary(BaseModel):
    """What is knowable of a sample; losses in nats per test row.

    Attributes:
        path: The file of rows.
        num_rows: Rows written: first training, then validation, then test rows.
        seed: Seed of weights and rows.
        num_train_rows: Rows at the start.
        num_valid_rows: Rows after them.
        num_test_rows: Rows at the end, which every figure is about.
        click_rate: Share of clicks in all rows.
        test_click_rate: Share of clicks in the test rows.
        bayes_logloss: Mean entropy of the true probabilities.
        bayes_auc: AUC of the true probabilities, expected over labels.
        learnable_floor: Loss of the true weights without those of ids unseen in training.
        base_rate_logloss: Loss of the training rows' click rate, a constant.
        interaction_nats: What the best model of main effects alone loses against Bayes.
        unseen_fraction: Share of test rows with an id that no training row shows.
        realized: The same figures with the labels that were drawn.
    """

    model_config = ConfigDict(frozen=True)
    version: int = Field(default=1, ge=1)
    path: str
    num_rows: int
    seed: int
    num_train_rows: int
    num_valid_rows: int
    num_test_rows: int
    click_rate: float
    test_click_rate: float
    bayes_logloss: float
    bayes_auc: float
    learnable_floor: float
    base_rate_logloss: float
    interaction_nats: float
    unseen_fraction: float
    realized: RealizedFigures

    def to_json(self) -> str:
        """The summary as indented JSON, as the truth file holds it."""
        return self.model_dump_json(indent=2) + "\n"


@dataclass
class _TestRows:
    """What the figures need of each test row: 8 bytes for each of five numbers."""

    labels: list[Float64s] = field(default_factory=list)
    probabilities: list[Float64s] = field(default_factory=list)
    additive_logits: list[Float64s] = field(default_factory=list)
    floor_probabilities: list[Float64s] = field(default_factory=list)
    num_unseen: int = 0


def write_criteo_sample(
    path: Path,
    *,
    num_rows: int,
    seed: int,
    valid_fraction: float = 0.1,
    test_fraction: float = 0.1,
    progress: Progress,
    header: bool = False,
) -> SampleSummary:
    """Writes `num_rows` rows to `path` and their figures beside it; both are whole or absent.

    Args:
        path: File to write; its folder is created.
        num_rows: At least 100.
        seed: Seed of weights and rows.
        valid_fraction: Share of rows that validate, right before the test rows.
        test_fraction: Share of rows at the end that test.
        progress: Shows the rows written.
        header: Write the column names first, which the original files do not have.

    Raises:
        ValueError: Too few rows, a negative seed, or fractions that leave no training or no test
            rows.
        RunFolderError: The file cannot be written.
    """
    _refuse_impossible(num_rows, seed, valid_fraction, test_fraction)
    num_test = max(1, round(num_rows * test_fraction))
    num_valid = round(num_rows * valid_fraction)
    num_train = num_rows - num_valid - num_test
    model, seen, test = PlantedModel(seed=seed, num_rows=num_rows), SeenIds(), _TestRows()
    num_clicks = num_train_clicks = 0
    with os_errors_explained(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    bounds = [0, num_train, num_train + num_valid, num_rows]
    with durable_write(path) as file, progress.task("sample", total=num_rows) as task:
        writer = _open_writer(file, header=header)
        for part, (start, stop) in enumerate(pairwise(bounds)):
            for first in range(start, stop, BLOCK_ROWS):
                block_rows = min(BLOCK_ROWS, stop - first)
                draw = model.draw(first, block_rows)
                additive_B, interaction_B = model.additive_and_interaction_logits(draw)
                probabilities_B = sigmoid(additive_B + interaction_B)
                labels_B = model.draw_labels(first, probabilities_B)
                writer.write_batch(_to_batch(draw, labels_B, seed))
                num_clicks += int(labels_B.sum())
                if part == 0:
                    seen.add(draw)
                    num_train_clicks += int(labels_B.sum())
                elif part == 2:
                    floor = predict_floor(model, draw, seen)
                    test.labels.append(labels_B.astype(np.float64))
                    test.probabilities.append(probabilities_B)
                    test.additive_logits.append(additive_B)
                    test.floor_probabilities.append(floor.probabilities_B)
                    test.num_unseen += int(floor.has_unseen_B.sum())
                task.advance(block_rows)
        writer.close()
    summary = _summarize(
        test,
        train_click_rate=num_train_clicks / num_train,
        path=str(path),
        num_rows=num_rows,
        seed=seed,
        num_train_rows=num_train,
        num_valid_rows=num_valid,
        num_test_rows=num_test,
        click_rate=num_clicks / num_rows,
    )
    write_text(truth_path(path), summary.to_json())
    return summary


def _refuse_impossible(
    num_rows: int, seed: int, valid_fraction: float, test_fraction: float
) -> None:
    if num_rows < SMALLEST_SAMPLE:
        raise ValueError(f"num_rows is {num_rows}, but a sample has at least {SMALLEST_SAMPLE}")
    if seed < 0:
        raise ValueError(f"the seed {seed} is negative")
    if not (valid_fraction >= 0 and test_fraction > 0 and valid_fraction + test_fraction < 1):
        raise ValueError(
            f"valid {valid_fraction} and test {test_fraction} leave no training or no test rows"
        )


def _open_writer(file: IO[bytes], *, header: bool) -> Any:
    schema = pa.schema(
        [
            pa.field(name, pa.string() if name.startswith("C") else pa.int64())
            for name in COLUMN_NAMES
        ]
    )
    if header:
        # Arrow quotes names whatever the quoting style, which the original format never does.
        file.write(("\t".join(COLUMN_NAMES) + "\n").encode("ascii"))
    options = arrow_csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    return arrow_csv.CSVWriter(file, schema, write_options=options)


def _to_batch(draw: Draw, labels_B: NDArray[np.int8], seed: int) -> Any:
    """An Arrow record batch in the order of the file."""
    columns = [pa.array(labels_B.astype(np.int64))]
    for order in range(NUM_NUMBERS):
        columns.append(pa.array(draw.numbers_NB[order], mask=draw.number_missing_NB[order]))
    for column in range(NUM_CATEGORIES):
        columns.append(hexadecimal_names(draw.ids_FB[column], derive_key(seed, column)))
    return pa.record_batch(columns, names=list(COLUMN_NAMES))


def hexadecimal_names(ids_B: NDArray[np.int64], key: int) -> Any:
    """Ids as 8 hexadecimal digits that show no order, distinct for distinct ids; -1 as NULL."""
    values_B = scramble_32_bits(ids_B.astype(np.uint32), key)
    # Big-endian bytes, each looked up as two digits: 8 bytes of text a value.
    digits = _HEX_PAIRS[values_B.astype(">u4").view(np.uint8)]
    offsets = np.arange(0, 8 * ids_B.size + 1, 8, dtype=np.int32)
    present = np.packbits(ids_B != MISSING, bitorder="little")
    buffers = [pa.py_buffer(present), pa.py_buffer(offsets), pa.py_buffer(digits)]
    return pa.Array.from_buffers(pa.string(), ids_B.size, buffers)


def _summarize(test: _TestRows, *, train_click_rate: float, **facts: Any) -> SampleSummary:
    labels = np.concatenate(test.labels)
    probabilities = np.concatenate(test.probabilities)
    floor = np.concatenate(test.floor_probabilities)
    # A tiny sample may have no click in training; a constant of 0 has no logloss.
    constant = np.full_like(labels, min(max(train_click_rate, 1e-6), 1 - 1e-6))
    bayes = cross_entropy(probabilities, probabilities)
    additive = best_additive_loss(probabilities, np.concatenate(test.additive_logits))
    return SampleSummary(
        **facts,
        test_click_rate=float(labels.mean()),
        bayes_logloss=bayes,
        bayes_auc=ranking_quality(probabilities, probabilities),
        learnable_floor=cross_entropy(probabilities, floor),
        base_rate_logloss=cross_entropy(probabilities, constant),
        interaction_nats=additive - bayes,
        unseen_fraction=test.num_unseen / labels.size,
        realized=RealizedFigures(
            bayes_logloss=cross_entropy(labels, probabilities),
            bayes_auc=ranking_quality(labels, probabilities),
            learnable_floor=cross_entropy(labels, floor),
            learnable_floor_auc=ranking_quality(labels, floor),
            base_rate_logloss=cross_entropy(labels, constant),
        ),
    )
