"""The proof that an export scores raw rows as the trainer does."""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ctr_pipeline.durable import write_text
from ctr_pipeline.errors import ExportError
from ctr_pipeline.export.model_card import library_versions
from ctr_pipeline.export.proving_process import ProvingProcess
from ctr_pipeline.export.raw_table import columns_as_arrays, columns_as_texts, render_value
from ctr_pipeline.export.servable import ExportedModel
from ctr_pipeline.specs.parity import ParityProof

PARITY_FILE = "parity.json"

TOLERANCE = 1e-4
"""Largest |difference of logits|, times the logit's size where that is above 1.

Both sides compute in float32, in another order: a few units in the last place of sums over some
hundred terms. 1e-4 in the logit is 2.5e-5 in the probability, at most.
"""

_SIGNATURES = ("serving_default", "serving_strings")
# Criteo's 39 columns fit; a message about thousands helps nobody.
_COLUMNS_IN_MESSAGE = 50


def prove_parity(
    exported: ExportedModel,
    rows: pa.Table,
    trainer_logits: NDArray[np.floating[Any]],
    *,
    process: ProvingProcess,
    workspace: Path,
    num_edge_rows: int = 0,
    sensitive: Collection[str] = (),
) -> ParityProof:
    """Scores raw rows in a process that has TensorFlow alone, and compares.

    The proof is stored as `parity.json` in the export.

    Args:
        exported: The export, published or not.
        rows: Raw columns, as they are in the file.
        trainer_logits: The trainer's logits of these rows, [rows].
        process: The process that scores.
        workspace: An existing folder for the two files that the processes exchange.
        num_edge_rows: How many of the rows came from `edge_rows`, for the record.
        sensitive: Columns whose values stay out of messages.

    Raises:
        ExportError: A row differs (the message names it and its values), or the export cannot be
            loaded or run by TensorFlow alone.
    """
    if rows.num_rows == 0 or trainer_logits.shape != (rows.num_rows,):
        raise ValueError(
            f"{rows.num_rows} rows and logits of shape {trainer_logits.shape} prove nothing"
        )
    folder = exported.folder if exported.folder.exists() else exported.version_folder
    response = _score_elsewhere(process, exported, folder, rows, workspace)
    expected = np.asarray(trainer_logits, dtype=np.float64)
    differences = {}
    for signature in _SIGNATURES:
        comparison = compare_scores(
            expected, response[f"{signature}.logit"], response[f"{signature}.probability"]
        )
        if comparison.problem is not None:
            described = describe_row(rows, comparison.row, exported.column_types, sensitive)
            raise ExportError(
                f"{signature}: row {comparison.row} {comparison.problem}; the row is {described}",
                place=str(folder),
                remedy="A custom model must give equal rows equal logits, in this process and in "
                "another; if the model is not your own, please report this",
            )
        differences[signature] = comparison.max_difference
    proof = ParityProof(
        num_rows=rows.num_rows,
        num_edge_rows=num_edge_rows,
        max_difference=differences,
        tolerance=TOLERANCE,
        num_not_a_number=int(np.isnan(expected).sum()),
        versions={
            **library_versions(),
            "serving_tensorflow": response["tensorflow"].tobytes().decode(),
        },
    )
    write_text(folder / PARITY_FILE, json.dumps(asdict(proof), indent=2) + "\n")
    return proof


@dataclass(frozen=True)
class ScoreComparison:
    """How far the export is from the trainer.

    Attributes:
        row: The row that is furthest away, or the first one at fault.
        max_difference: Its difference: |difference of logits| / max(1, |trainer's logit|).
        problem: What is wrong with the row; None if all rows agree.
    """

    row: int
    max_difference: float
    problem: str | None


def compare_scores(
    expected: NDArray[np.float64], logits: NDArray[Any], probabilities: NDArray[Any]
) -> ScoreComparison:
    """Compares the export's scores with the trainer's logits; all are [rows].

    Equal infinities are equal, and so are two NaN.
    """
    logits = logits.astype(np.float64)
    same = (expected == logits) | (np.isnan(expected) & np.isnan(logits))
    with np.errstate(invalid="ignore"):
        difference = np.abs(expected - logits) / np.maximum(1.0, np.abs(expected))
    # NaN on one side, or an infinity against another value, is as far apart as can be.
    difference = np.where(np.isfinite(difference), difference, np.inf)
    difference = np.where(same, 0.0, difference)
    worst = int(np.argmax(difference))
    problem = None
    if difference[worst] > TOLERANCE:
        problem = (
            f"has the logit {logits[worst]:.6g} in the export and {expected[worst]:.6g} in "
            f"training (tolerance {TOLERANCE:g})"
        )
    else:
        # Beyond ±80 a float32 sigmoid is 0 or 1 and exp would overflow.
        sigmoid = 1.0 / (1.0 + np.exp(-np.clip(logits, -80, 80)))
        wrong = ~np.isclose(probabilities, sigmoid, rtol=1e-5, atol=1e-6, equal_nan=True)
        if wrong.any():
            worst = int(np.argmax(wrong))
            problem = (
                f"has the probability {probabilities[worst]:.6g} in the export, not that of its "
                f"logit, {sigmoid[worst]:.6g}"
            )
    return ScoreComparison(worst, float(difference[worst]), problem)


def _score_elsewhere(
    process: ProvingProcess, exported: ExportedModel, folder: Path, rows: pa.Table, workspace: Path
) -> dict[str, NDArray[Any]]:
    request_file, response_file = workspace / "parity_in.npz", workspace / "parity_out.npz"
    try:
        np.savez(request_file, allow_pickle=False, **_request(exported, rows))
        process.score(folder, request_file, response_file, rows.num_rows)
        with np.load(response_file, allow_pickle=False) as response:
            arrays = dict(response)
    finally:
        request_file.unlink(missing_ok=True)
        response_file.unlink(missing_ok=True)
    foreign = arrays["foreign_modules"].tobytes().decode()
    if foreign:
        raise ValueError(f"the proving process imported more than TensorFlow: {foreign}")
    return arrays


def _request(exported: ExportedModel, rows: pa.Table) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {}
    typed = columns_as_arrays(rows, exported.column_types)
    texts = columns_as_texts(rows, exported.column_types)
    names = "\n".join(exported.input_names[column] for column in typed)
    arrays["names"] = np.frombuffer(names.encode(), dtype=np.uint8)
    arrays["num_rows"] = np.array(rows.num_rows)
    for kind, columns in (("typed", typed), ("texts", texts)):
        for index, values in enumerate(columns.values()):
            if values.dtype == np.float64:
                arrays[f"{kind}.{index}"] = values
            else:
                lengths = [len(value) for value in values]
                arrays[f"{kind}.{index}.offsets"] = np.cumsum([0, *lengths], dtype=np.int64)
                data = b"".join(values.tolist())
                arrays[f"{kind}.{index}.data"] = np.frombuffer(data, dtype=np.uint8)
    return arrays


def describe_row(
    rows: pa.Table, row: int, column_types: Mapping[str, str], sensitive: Collection[str]
) -> str:
    """The raw values of a row, for a message; those of sensitive columns hidden."""
    values = []
    for column in list(column_types)[:_COLUMNS_IN_MESSAGE]:
        value = rows.column(column)[row].as_py()
        values.append(f"{column}={'(hidden)' if column in sensitive else render_value(value)}")
    left_out = len(column_types) - len(values)
    return ", ".join(values) + (f" and {left_out} more columns" if left_out else "")
